"""Provenance: indexes of the documents of all splits, and of the streams that every run has."""

from collections.abc import Callable

from everytoken.parameters import ProvenanceParameters, TokenizationParameters
from everytoken.provenance.indexes import WINDOW_INDEXES, index_documents, made_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.streams import StreamKind


def make_document_index(
    annotated_documents: Shards,
    unannotated_documents: Shards,
    held_out_documents: Shards,
    parameters: ProvenanceParameters,
) -> Artifact:
    """Sort the documents of all splits by hashes of their ids and addresses."""
    return plan_artifact(
        index_documents,
        documents={
            "annotated": annotated_documents,
            "unannotated": unannotated_documents,
            "held_out": held_out_documents,
        },
        memory=parameters.memory,
    )


def index_of(kind: StreamKind) -> Callable[[Shards, Artifact, TokenizationParameters], Artifact]:
    """Return the function of the node that makes the index of a kind of stream."""

    def make_stream_index(tokens: Shards, stream: Artifact, tokenization: TokenizationParameters) -> Artifact:
        """Draw the shuffles of the stream again, and keep them both ways."""
        return plan_artifact(
            WINDOW_INDEXES[kind.layout],
            lengths=tokens,
            split=kind.split,
            stream=made_stream(stream),
            seq_length=tokenization.seq_length,
            seed=tokenization.seed,
        )

    return make_stream_index
