"""Training: windows of tokens become a model."""

from everytoken.pipelines.training.pipeline import create_pipeline

__all__ = ["create_pipeline"]
