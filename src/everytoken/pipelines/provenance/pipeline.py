"""Provenance: documents of all splits, streams -> what answers where a token came from."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.provenance.nodes import index_of, make_document_index
from everytoken.tokens.streams import STREAM_KINDS


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
            *(
                Node(
                    index_of(kind),
                    [f"{kind.split}_tokens", kind.dataset, "params:tokenization"],
                    kind.index,
                    name=f"make_{kind.index}",
                )
                for kind in STREAM_KINDS.values()
                if kind.index_pipeline == "provenance"
            ),
        ],
        namespace="provenance",
        prefix_datasets_with_namespace=False,
    )
