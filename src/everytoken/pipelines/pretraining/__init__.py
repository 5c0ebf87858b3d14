"""Pretraining: any streams on disk, by path, become a model."""

from everytoken.pipelines.pretraining.pipeline import create_pipeline

__all__ = ["create_pipeline"]
