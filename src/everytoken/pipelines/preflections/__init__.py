"""Preflections, texts about whole documents that become columns alone: see `everytoken.pipelines.reflection`."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("preflections")
