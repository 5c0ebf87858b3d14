"""Provenance: indexes of the documents of all splits, and of the streams that every run has."""

from everytoken.parameters import ProvenanceParameters, TokenizationParameters
from everytoken.provenance.indexes import index_compact_stream, index_documents, index_padded_stream, made_stream
from everytoken.shards import Artifact, Shards, plan_artifact


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


def make_compact_index(
    unannotated_tokens: Shards, compact_stream: Artifact, tokenization: TokenizationParameters
) -> Artifact:
    """Draw the shuffles of the compact stream again, and keep them both ways."""
    return plan_artifact(
        index_compact_stream,
        lengths=unannotated_tokens,
        split="unannotated",
        stream=made_stream(compact_stream),
        seq_length=tokenization.seq_length,
        seed=tokenization.seed,
    )


def make_annotated_index(
    annotated_tokens: Shards, annotated_stream: Artifact, tokenization: TokenizationParameters
) -> Artifact:
    """Draw the order of the annotated documents again, and keep it both ways."""
    return plan_artifact(
        index_padded_stream,
        lengths=annotated_tokens,
        split="annotated",
        stream=made_stream(annotated_stream),
        seq_length=tokenization.seq_length,
        seed=tokenization.seed,
    )
