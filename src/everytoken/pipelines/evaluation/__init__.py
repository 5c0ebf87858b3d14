"""Evaluation: what the model learned, measured on documents that it never saw."""

from everytoken.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
