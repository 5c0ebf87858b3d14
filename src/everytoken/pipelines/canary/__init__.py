"""Canary: documents that the user brings become a stream of windows."""

from everytoken.pipelines.canary.pipeline import create_pipeline

__all__ = ["create_pipeline"]
