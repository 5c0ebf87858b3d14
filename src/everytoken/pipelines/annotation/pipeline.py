"""Annotation: documents -> scored documents."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.annotation.nodes import report_scores, score_documents


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(score_documents, ["documents", "params:annotation"], "scored_documents", name="score_documents"),
            Node(
                report_scores,
                "scored_documents",
                ["annotation_metrics", "score_distribution"],
                name="report_scores",
                tags=["report"],
            ),
        ],
        namespace="annotation",
        prefix_datasets_with_namespace=False,
    )
