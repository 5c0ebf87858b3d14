"""Pretraining: streams by path -> checkpoint."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.pretraining.nodes import pretrain_model
from everytoken.pipelines.training.nodes import describe_training, report_training


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                pretrain_model,
                ["params:pretraining", "params:training"],
                "pretrained_checkpoint",
                name="pretrain_model",
            ),
            Node(
                describe_training,
                "pretrained_checkpoint",
                "pretraining_report",
                name="describe_pretraining",
                tags=["report"],
            ),
            Node(
                report_training,
                ["pretrained_checkpoint", "pretraining_report"],
                ["pretraining_metrics", "pretraining_history", "pretraining_loss_curve"],
                name="report_pretraining",
                tags=["report"],
            ),
        ],
        namespace="pretraining",
        prefix_datasets_with_namespace=False,
    )
