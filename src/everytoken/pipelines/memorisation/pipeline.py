"""Memorisation: checkpoint, canary documents and held-out documents -> rank, exposure and recall.

On request, and in the default job where ``evaluation.memorisation`` is given.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.memorisation.nodes import measure_memorisation, report_memorisation


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                measure_memorisation,
                [
                    "checkpoint",
                    "canary_tokens",
                    "held_out_documents",
                    "tokenizer",
                    "params:tokenization",
                    "params:canary",
                    "params:evaluation",
                ],
                "memorisation_evaluation",
                name="measure_memorisation",
            ),
            Node(
                report_memorisation,
                "memorisation_evaluation",
                ["memorisation_metrics", "memorisation_by_condition"],
                name="report_memorisation",
                tags=["report"],
            ),
        ],
        namespace="memorisation",
        prefix_datasets_with_namespace=False,
    )
