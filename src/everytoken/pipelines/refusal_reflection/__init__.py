"""Reflections that refuse harmful use (SPP{T0}^Refusals): a pipeline like `everytoken.pipelines.reflection`."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("refusal_reflection")
