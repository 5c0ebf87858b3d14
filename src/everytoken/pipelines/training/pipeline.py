"""Training: token streams -> checkpoint."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.training.nodes import describe_training, report_training, train_model
from everytoken.tokens.streams import trainable_kinds


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                train_model,
                [
                    "tokenizer",
                    "held_out_documents",
                    "params:tokenization",
                    "params:training",
                    *(kind.input for kind in trainable_kinds()),
                ],
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
