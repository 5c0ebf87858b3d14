"""Training: token streams -> checkpoint."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.training.nodes import describe_training, report_training, train_model
from everytoken.tokens.streams import StreamKind, window_kinds


def create_pipeline(kinds: Sequence[StreamKind] | None = None) -> Pipeline:
    """Return the pipeline; ``kinds`` of streams are those that the job has, by default those of ``corpus``."""
    return Pipeline(
        [
            Node(
                train_model,
                {
                    "tokenizer": "tokenizer",
                    "held_out_documents": "held_out_documents",
                    "tokenization": "params:tokenization",
                    "parameters": "params:training",
                    **streams_of_job(kinds),
                },
                "checkpoint",
                name="train_model",
            ),
            Node(describe_training, "checkpoint", "training_report", name="describe_training", tags=["report"]),
            Node(
                report_training,
                ["checkpoint", "training_report"],
                ["training_metrics", "training_history", "loss_curve"],
                name="report_training",
                tags=["report"],
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )


def streams_of_job(kinds: Sequence[StreamKind] | None) -> dict[str, str]:
    """Return the datasets of the streams that a node takes, by name of the kind."""
    return {kind.name: kind.input for kind in window_kinds()} if kinds is None else {k.name: k.dataset for k in kinds}
