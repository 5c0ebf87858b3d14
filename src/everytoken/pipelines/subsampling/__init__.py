"""Subsampling: annotated, unannotated and held-out documents, drawn by stratum."""

from everytoken.pipelines.subsampling.pipeline import create_pipeline

__all__ = ["create_pipeline"]
