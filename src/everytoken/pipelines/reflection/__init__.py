"""Reflections: texts that a generator writes about documents become part of their windows."""

from everytoken.pipelines.reflection.pipeline import create_pipeline, pipeline_of_run

__all__ = ["create_pipeline", "pipeline_of_run"]
