"""Published reflections: files -> matches with windows -> columns of the run ``reflections``, without a generator."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.published_reflections.nodes import (
    find_published_reflections,
    match_reflections,
    take_columns,
)
from everytoken.reflections import PUBLISHED_RUN
from everytoken.tokens.streams import STREAM_KINDS

_ANNOTATED = STREAM_KINDS["annotated"].dataset


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                find_published_reflections,
                "params:reflection",
                "reflection_files",
                name="find_published_reflections",
                tags=["listing"],
            ),
            Node(
                match_reflections,
                ["reflection_files", _ANNOTATED, "tokenizer", "params:reflection", "params:tokenization"],
                "published_reflections_index",
                name="match_reflections",
            ),
            Node(
                take_columns,
                ["published_reflections_index", _ANNOTATED, "params:reflection"],
                f"{PUBLISHED_RUN}_columns",
                name="take_columns",
            ),
        ],
        namespace="published_reflections",
        prefix_datasets_with_namespace=False,
    )
