"""Reflection: annotated stream, columns of a run -> stream with reflections. Not a part of the default run."""

from kedro.pipeline import Pipeline

from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.reflections import GENERATION_RUNS


def create_pipeline(run: str = "reflections") -> Pipeline:
    """Return the pipeline of a generation run."""
    return Pipeline(
        splicing_pipeline(GENERATION_RUNS[run]),
        namespace="reflection",
        prefix_datasets_with_namespace=False,
    )
