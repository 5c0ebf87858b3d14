"""Reflections: annotated stream -> columns of a generation run -> stream with reflections. On request.

A generator writes the columns. Where ``reflection.published`` names files that somebody published, the pipeline
``published_reflections`` makes those of the run ``reflections`` in its place (`everytoken.configuration.JobContext`).
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.reflection.nodes import (
    generating,
    merging,
    page_of_columns,
    page_of_stream,
    report_columns,
    report_reflections,
)
from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.reflections import GENERATION_RUNS
from everytoken.tokens.streams import STREAM_KINDS

MAIN_RUN = "reflections"
_NAMESPACE = "reflection"
_ANNOTATED = STREAM_KINDS["annotated"].dataset


def create_pipeline() -> Pipeline:
    """Return the pipeline of the run ``reflections``."""
    return pipeline_of_run(MAIN_RUN, _NAMESPACE)


def pipeline_of_run(run: str, namespace: str | None = None) -> Pipeline:
    """Return the pipeline of a generation run, which has its name or that of ``namespace``."""
    nodes = _generated(run) + splicing_pipeline(GENERATION_RUNS[run])
    return Pipeline(nodes, namespace=namespace or run, prefix_datasets_with_namespace=False)


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
            _reporting(run),
            _page(run),
        ]
    )


def _reporting(run: str) -> Node:
    columns, metrics = f"{run}_columns", f"{run}_metrics"
    if run != MAIN_RUN:  # of others nothing is published
        return Node(report_columns, columns, metrics, name=f"report_{run}", tags=["report"])
    return Node(report_reflections, [columns, "params:expect"], metrics, name=f"report_{run}", tags=["report"])


def _page(run: str) -> Node:
    """Return the node that shows what a run made, with windows of its stream if it has one."""
    columns, page, stream = f"{run}_columns", f"{run}_page", GENERATION_RUNS[run].stream
    if stream is None:
        return Node(page_of_columns(run), columns, page, name=f"show_{run}", tags=["report"])
    inputs = [columns, STREAM_KINDS[stream].dataset, "tokenizer", "params:tokenization"]
    return Node(page_of_stream(run), inputs, page, name=f"show_{run}", tags=["report"])
