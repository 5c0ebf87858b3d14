"""Languages: documents -> the language of each, for reports and for strata of the subsampling.

A context adds these nodes to every pipeline that selects documents, where ``ingestion.languages`` is given.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.languages.nodes import identify_languages, report_languages, say_languages_are_identified


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(identify_languages, ["documents", "params:ingestion"], "languages", name="identify_languages"),
            Node(
                say_languages_are_identified,
                "languages",
                "languages_when_made",
                name="say_languages_are_identified",
            ),
            Node(report_languages, "languages", "language_report", name="report_languages", tags=["report"]),
        ],
        namespace="languages",
        prefix_datasets_with_namespace=False,
    )
