"""Documents above the threshold, rephrased: columns alone, see `everytoken.pipelines.reflection`."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection import pipeline_of_run


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return pipeline_of_run("rephrasing_safelm")
