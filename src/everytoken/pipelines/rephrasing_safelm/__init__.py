"""The generation run ``rephrasing_safelm``: the nodes of `everytoken.pipelines.reflection`, under its name."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("rephrasing_safelm")
