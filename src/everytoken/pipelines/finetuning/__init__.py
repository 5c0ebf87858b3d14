"""Finetuning: a trained model learns to answer."""

from everytoken.pipelines.finetuning.pipeline import create_pipeline

__all__ = ["create_pipeline"]
