"""Published reflections, found again for the annotated windows: columns of a run without a generator."""

from everytoken.pipelines.published_reflections.pipeline import create_pipeline

__all__ = ["create_pipeline"]
