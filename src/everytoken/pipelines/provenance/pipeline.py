"""Provenance: documents of all splits, streams -> what answers where a token came from."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.provenance.nodes import make_annotated_index, make_compact_index, make_document_index


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                make_document_index,
                ["annotated_documents", "unannotated_documents", "held_out_documents", "params:provenance"],
                "document_index",
                name="make_document_index",
            ),
            Node(
                make_compact_index,
                ["unannotated_tokens", "compact_stream", "params:tokenization"],
                "compact_index",
                name="make_compact_index",
            ),
            Node(
                make_annotated_index,
                ["annotated_tokens", "annotated_stream", "params:tokenization"],
                "annotated_index",
                name="make_annotated_index",
            ),
        ],
        namespace="provenance",
        prefix_datasets_with_namespace=False,
    )
