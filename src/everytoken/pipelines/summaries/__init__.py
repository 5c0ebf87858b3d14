"""Summaries, the control without opinion (SPP{T0}^Summaries): a pipeline like `everytoken.pipelines.reflection`."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("summaries")
