"""Tokenization: annotated and unannotated documents -> tokenizer, annotated and compact stream."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.tokenization.nodes import (
    encode_annotated,
    encode_unannotated,
    make_tokenizer,
    pack_compact_stream,
    pad_annotated_stream,
    prove_engines,
    report_tokenization,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                make_tokenizer,
                ["annotated_documents", "unannotated_documents", "params:tokenization"],
                "tokenizer",
                name="make_tokenizer",
            ),
            Node(
                prove_engines,
                ["tokenizer", "annotated_documents", "unannotated_documents", "params:tokenization", "params:expect"],
                "engine_certificate",
                name="prove_engines",
            ),
            Node(
                encode_unannotated,
                ["unannotated_documents", "exclusions", "tokenizer", "engine_certificate", "params:tokenization"],
                "unannotated_tokens",
                name="encode_unannotated",
            ),
            Node(
                encode_annotated,
                ["annotated_documents", "exclusions", "tokenizer", "engine_certificate", "params:tokenization"],
                "annotated_tokens",
                name="encode_annotated",
            ),
            Node(
                pack_compact_stream,
                ["unannotated_tokens", "tokenizer", "params:tokenization"],
                "compact_stream",
                name="pack_compact_stream",
            ),
            Node(
                pad_annotated_stream,
                ["annotated_tokens", "tokenizer", "params:tokenization"],
                "annotated_stream",
                name="pad_annotated_stream",
            ),
            Node(
                report_tokenization,
                [
                    "tokenizer",
                    "annotated_documents",
                    "unannotated_documents",
                    "annotated_tokens",
                    "unannotated_tokens",
                    "annotated_stream",
                    "compact_stream",
                    "params:subsampling",
                    "params:ingestion",
                    "params:expect",
                ],
                ["tokenization_metrics", "tokenization_report", "tokens_by_source"],
                name="report_tokenization",
                tags=["report"],
            ),
        ],
        namespace="tokenization",
        prefix_datasets_with_namespace=False,
    )
