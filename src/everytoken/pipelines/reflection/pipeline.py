"""Reflections: annotated stream -> replies of a generator -> columns. Not a part of the default run."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.reflection.nodes import generating, merging

_MAIN = "reflections"


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
                ["annotated_stream", "tokenizer", "params:reflection", "params:tokenization"],
                f"{run}_replies",
                name=f"generate_{run}",
            ),
            Node(
                merging(run),
                [f"{run}_replies", "annotated_stream", "params:reflection"],
                f"{run}_columns",
                name=f"merge_{run}",
            ),
        ],
        namespace=namespace or run,
        prefix_datasets_with_namespace=False,
    )
