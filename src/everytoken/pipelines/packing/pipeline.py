"""Packing: documents -> raw shards, no document cut. Not a part of the default run, which reads windows."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.packing.nodes import (
    describe_configuration,
    encode_whole_documents,
    make_raw_shards_index,
    pack_raw_shards,
    say_raw_shards_are_made,
    verify_raw_shards,
)

_WHOLE = ("whole_unannotated_tokens", "whole_annotated_tokens")


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            *(
                Node(
                    encode_whole_documents,
                    [f"{split}_documents", "exclusions", "tokenizer", "engine_certificate", "params:tokenization"],
                    f"whole_{split}_tokens",
                    name=f"encode_whole_{split}",
                )
                for split in ("unannotated", "annotated")
            ),
            Node(
                pack_raw_shards,
                [*_WHOLE, "tokenizer", "params:packing"],
                "raw_shards",
                name="pack_raw_shards",
            ),
            Node(say_raw_shards_are_made, "raw_shards", "raw_shards_when_made", name="say_raw_shards_are_made"),
            Node(
                make_raw_shards_index,
                [*_WHOLE, "raw_shards", "params:packing"],
                "raw_shards_index",
                name="make_raw_shards_index",
            ),
            Node(
                describe_configuration,
                ["raw_shards", "tokenizer", "params:ingestion", "params:tokenization", "params:packing"],
                "raw_shards_configuration",
                name="describe_configuration",
            ),
            Node(
                verify_raw_shards,
                ["raw_shards", *_WHOLE, "params:ingestion"],
                "packing_metrics",
                name="verify_raw_shards",
            ),
        ],
        namespace="packing",
        prefix_datasets_with_namespace=False,
    )
