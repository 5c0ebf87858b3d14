"""The row schemas of documents and of what is set aside, and how rows become record batches of bounded size.

A document's *address* (`everytoken.address`) says where it came from. It is never null and never changes. ``id`` is
the upstream's, may be null and may repeat; ``id_type`` is its JSON type, so that the number 1 and the string "1" stay
two ids.

Rows that do not become documents are *set aside*: their address and the reason, never silently dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from everytoken.address import address_fields

N_CLASSES = 6
CLASS_NAMES = ("safe", "minimal", "mild", "moderate", "significant", "severe")  # of the published classifier
MAX_BATCH_ROWS = 1_024
MAX_BATCH_BYTES = 4 << 20

# half-open ranges of code points of the text
_SPANS = pa.list_(pa.struct([pa.field("start", pa.int64(), False), pa.field("end", pa.int64(), False)]))
_SOURCE, *_NUMBERS = address_fields(nullable=False)

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=True),
        pa.field("id_type", pa.string(), nullable=True),
        pa.field("text", pa.large_string(), nullable=False),
        _SOURCE,
        pa.field("stratum", pa.string(), nullable=False),
        *_NUMBERS,
        pa.field("characters", pa.int64(), nullable=False),  # code points
        pa.field("utf8_bytes", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.binary(), nullable=False),  # of the UTF-8 text
        pa.field("assistant_spans", _SPANS, nullable=True),  # of a chat: the turns that are learned; else null
    ]
)

SET_ASIDE = pa.schema(
    [
        *address_fields(nullable=False),
        pa.field("offset", pa.int64(), nullable=True),  # of the row's first byte in the decompressed file
        pa.field("id", pa.large_string(), nullable=True),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=True),
        pa.field("raw", pa.large_binary(), nullable=True),  # the first bytes of a row that could not be read
    ]
)

SCORE_FIELDS = (
    pa.field("safety_score", pa.int8(), nullable=False),
    pa.field("safety_probs", pa.list_(pa.float32()), nullable=True),  # null where nothing says: the score is 0 then
)
SPLIT_FIELDS = (
    pa.field("has_annotation", pa.bool_(), nullable=False),
    pa.field("is_bad", pa.bool_(), nullable=False),
)

SCORED_DOCUMENTS = pa.schema([*DOCUMENTS, *SCORE_FIELDS])
SPLIT_DOCUMENTS = pa.schema([*SCORED_DOCUMENTS, *SPLIT_FIELDS])


def second_score_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of second scores (``annotation.second_scores``) of scored documents, or of a split."""
    return [field for field in schema if field.name not in SPLIT_DOCUMENTS.names]


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return ``schema`` with ``fields`` after its own."""
    return pa.schema([*schema, *fields])


class BatchBuilder:
    """Gathers rows into record batches of at most `MAX_BATCH_ROWS` rows and about `MAX_BATCH_BYTES` bytes.

    A row that is larger than the bound is a batch of its own.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, row: tuple[Any, ...], size: int) -> Iterator[pa.RecordBatch]:
        """Add a row that counts for ``size`` bytes; yield the batch before it when the bound is reached.

        Args:
            row: a value for each column in order; text may be given as its UTF-8 bytes.
            size: bytes.
        """
        if self._rows and (len(self._rows) == MAX_BATCH_ROWS or self._bytes + size > MAX_BATCH_BYTES):
            yield from self.rest()
        self._rows.append(row)
        self._bytes += size

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is gathered, if there is anything."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._rows, self._bytes = [], 0
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
