"""Reflections: annotated stream -> replies of a generator -> columns. Not a part of the default run."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.reflection.nodes import generating, merging
from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.reflections import GENERATION_RUNS
from everytoken.tokens.streams import STREAM_KINDS

_MAIN = "reflections"
_ANNOTATED = STREAM_KINDS["annotated"].dataset


def create_pipeline() -> Pipeline:
    """Return the pipeline of the run ``reflections``."""
    return pipeline_of_run(_MAIN, "reflection")


def pipeline_of_run(run: str, namespace: str | None = None) -> Pipeline:
    """Return the pipeline of a generation run.

    Args:
        run: its name, which the names of its datasets begin with.
        namespace: name of the pipeline, where it is another one.
    """
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
            *splicing_pipeline(GENERATION_RUNS[run]).nodes,
        ],
        namespace=namespace or run,
        prefix_datasets_with_namespace=False,
    )
