"""Reflections: annotated stream -> columns of a generation run -> stream with reflections. On request.

A generator writes the columns. Where ``reflection.published`` names files that somebody published, those of the run
``reflections`` are taken from there.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.reflection.nodes import generating, merging
from everytoken.pipelines.reflection.published import published_nodes
from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.reflections import GENERATION_RUNS
from everytoken.tokens.streams import STREAM_KINDS

MAIN_RUN = "reflections"
_NAMESPACE = "reflection"
_ANNOTATED = STREAM_KINDS["annotated"].dataset


def create_pipeline() -> Pipeline:
    """Return the pipeline of the run ``reflections``."""
    return _in_namespace(_generated(MAIN_RUN) + splicing_pipeline(GENERATION_RUNS[MAIN_RUN]), _NAMESPACE)


def pipeline_of_published() -> Pipeline:
    """Return the pipeline of the run ``reflections`` whose columns somebody published."""
    return _in_namespace(Pipeline(published_nodes()) + splicing_pipeline(GENERATION_RUNS[MAIN_RUN]), _NAMESPACE)


def pipeline_of_run(run: str) -> Pipeline:
    """Return the pipeline of another generation run, which has its name."""
    return _in_namespace(_generated(run) + splicing_pipeline(GENERATION_RUNS[run]), run)


def _generated(run: str) -> Pipeline:
    return Pipeline(
        [
            Node(
                generating(run),
                [_ANNOTATED, "tokenizer", "params:reflection", "params:tokenization"],
                f"{run}_replies",
                name=f"generate_{run}",
            ),
            Node(
                merging(run),
                [f"{run}_replies", _ANNOTATED, "params:reflection"],
                f"{run}_columns",
                name=f"merge_{run}",
            ),
        ]
    )


def _in_namespace(pipeline: Pipeline, namespace: str) -> Pipeline:
    return Pipeline(pipeline, namespace=namespace, prefix_datasets_with_namespace=False)
