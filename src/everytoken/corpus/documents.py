"""The row schemas of documents, and how rows become record batches of bounded size.

A document's *address* ``(source, shard_index, row)`` says where it came from: the source's name, the number of the
file in the source's sorted files, and the row's number in that file before any filter. It is never null and never
changes; ``id`` is the upstream's, may be null and may repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

N_CLASSES = 6
MAX_BATCH_ROWS = 1_024
MAX_BATCH_BYTES = 4 << 20

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=True),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("stratum", pa.string(), nullable=False),
        pa.field("shard_index", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)

SCORE_FIELDS = (
    pa.field("safety_score", pa.int8(), nullable=False),
    pa.field("safety_probs", pa.list_(pa.float32()), nullable=False),
)
SPLIT_FIELDS = (
    pa.field("has_annotation", pa.bool_(), nullable=False),
    pa.field("is_bad", pa.bool_(), nullable=False),
)

SCORED_DOCUMENTS = pa.schema([*DOCUMENTS, *SCORE_FIELDS])
SPLIT_DOCUMENTS = pa.schema([*SCORED_DOCUMENTS, *SPLIT_FIELDS])


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return ``schema`` with ``fields`` after its own."""
    return pa.schema([*schema, *fields])


def bounded_batches(rows: Iterable[tuple[dict[str, Any], int]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Gather rows into record batches of at most `MAX_BATCH_ROWS` rows and about `MAX_BATCH_BYTES` bytes.

    Args:
        rows: each a dictionary by column name, and the number of bytes it counts for. A row that is larger than the
            bound is a batch of its own.
        schema: of the batches.
    """
    gathered: list[dict[str, Any]] = []
    size = 0
    for row, row_bytes in rows:
        if gathered and (len(gathered) == MAX_BATCH_ROWS or size + row_bytes > MAX_BATCH_BYTES):
            yield pa.RecordBatch.from_pylist(gathered, schema=schema)
            gathered, size = [], 0
        gathered.append(row)
        size += row_bytes
    if gathered:
        yield pa.RecordBatch.from_pylist(gathered, schema=schema)
