"""Counting: tokens of documents before their selection."""

from everytoken.pipelines.counting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
