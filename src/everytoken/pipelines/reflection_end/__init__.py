"""Reflections at the end of documents (SPP{T0}^Doc End): a pipeline like `everytoken.pipelines.reflection`."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("reflection_end")
