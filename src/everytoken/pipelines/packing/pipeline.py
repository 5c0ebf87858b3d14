"""Packing: encoded documents -> raw shards. Not a part of the default run: training here reads the streams."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.packing.nodes import (
    make_raw_shards_index,
    pack_raw_shards,
    report_packing,
    say_raw_shards_are_made,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                pack_raw_shards,
                ["unannotated_tokens", "annotated_tokens", "tokenizer", "params:packing"],
                "raw_shards",
                name="pack_raw_shards",
            ),
            Node(say_raw_shards_are_made, "raw_shards", "raw_shards_when_made", name="say_raw_shards_are_made"),
            Node(
                make_raw_shards_index,
                ["unannotated_tokens", "annotated_tokens", "raw_shards", "params:packing"],
                "raw_shards_index",
                name="make_raw_shards_index",
            ),
            Node(
                report_packing,
                "raw_shards",
                "packing_metrics",
                name="report_packing",
                tags=["report"],
            ),
        ],
        namespace="packing",
        prefix_datasets_with_namespace=False,
    )
