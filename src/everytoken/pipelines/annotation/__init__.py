"""Annotation: every document gets a safety score."""

from everytoken.pipelines.annotation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
