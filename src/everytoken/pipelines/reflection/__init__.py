"""Reflections: a generator writes about documents, and its replies become columns."""

from everytoken.pipelines.reflection.pipeline import create_pipeline, pipeline_of_run

__all__ = ["create_pipeline", "pipeline_of_run"]
