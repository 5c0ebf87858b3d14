"""Training: token streams -> checkpoint."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.training.nodes import report_training, train_model


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                train_model,
                ["compact_stream", "annotated_stream", "tokenizer", "params:tokenization", "params:training"],
                "checkpoint",
                name="train_model",
            ),
            Node(
                report_training,
                "checkpoint",
                ["training_metrics", "training_history", "loss_curve"],
                name="report_training",
                tags=["report"],
            ),
        ],
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
