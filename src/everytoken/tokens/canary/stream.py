"""The canary stream: one document a window, all conditions together in seeded order. It is never shuffled again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, RangeMap, Shards, versioned
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import tokenizer_facts, write_padded_stream

_CANARY = "canary"


@versioned("write_canary_stream", 1, unrecorded=["shuffle_memory"], in_ranges=True)
def write_canary_stream(
    folder: Path,
    *,
    tokens: Shards,
    tokenizer: Artifact,
    seq_length: int,
    seed: int,
    shuffle_memory: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write ``canary.bin``, ``canary.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    See `everytoken.tokens.streams.one_document_per_window.write_padded_stream`. The sidecar has every column of the
    documents but their tokens; effects come before universes in ``tokens``
    (`everytoken.tokens.canary.encode_canary_part`).

    Raises:
        StreamError: the parts differ in their columns, or a document does not fit in a window.
    """
    schema = _schema(tokens)
    return write_padded_stream(
        folder,
        _CANARY,
        tokens=tokens,
        facts=tokenizer_facts(tokenizer),
        sidecar=pa.schema([field for field in schema if field.name != "tokens"]),
        columns={},
        seq_length=seq_length,
        seed=seed,
        shuffle_memory=shuffle_memory,
        ranges=ranges,
    )


def _schema(tokens: Shards) -> pa.Schema:
    schemas = [part.schema.remove_metadata() for part in tokens]
    if not schemas:
        raise StreamError("there are no encoded canary documents; encode at least one file of them")
    for part, schema in zip(tokens, schemas, strict=True):
        if not {"tokens", "token_length"} <= set(schema.names) or not schema.equals(schemas[0]):
            raise StreamError(
                f"{part.name} has the columns {schema}; expected those of the first part, with token_length and tokens:"
                f" {schemas[0]}"
            )
    return schemas[0]
