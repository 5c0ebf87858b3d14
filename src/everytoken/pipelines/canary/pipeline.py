"""Canary: files of canary documents and a tokenizer -> canary stream. Not a part of the default run."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.canary.nodes import (
    encode_canary_documents,
    make_canary_index,
    pad_canary_stream,
    read_canary_documents,
    report_canary,
    say_canary_stream_is_made,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                read_canary_documents,
                "params:canary",
                "canary_documents",
                name="read_canary_documents",
            ),
            Node(
                encode_canary_documents,
                ["canary_documents", "tokenizer", "params:tokenization", "params:canary"],
                "canary_tokens",
                name="encode_canary_documents",
            ),
            Node(
                pad_canary_stream,
                ["canary_tokens", "tokenizer", "params:tokenization", "params:canary"],
                "canary_stream",
                name="pad_canary_stream",
            ),
            Node(
                say_canary_stream_is_made,
                "canary_stream",
                "canary_stream_when_made",
                name="say_canary_stream_is_made",
            ),
            Node(
                make_canary_index,
                ["canary_tokens", "canary_stream", "params:tokenization", "params:canary"],
                "canary_index",
                name="make_canary_index",
            ),
            Node(
                report_canary,
                ["canary_documents", "canary_tokens", "canary_stream"],
                ["canary_metrics", "canary_triggers"],
                name="report_canary",
                tags=["report"],
            ),
        ],
        namespace="canary",
        prefix_datasets_with_namespace=False,
    )
