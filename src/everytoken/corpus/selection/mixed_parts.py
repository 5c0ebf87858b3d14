"""The parts of a mixed corpus: equal numbers of documents, in the interleaved order that the selection decided.

A part of the mixed corpus is made from many parts that were read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.corpus.dedup import load_mapped
from everytoken.corpus.documents import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from everytoken.corpus.selection.decisions import KEPT, MIXED_ORDER, Selection
from everytoken.corpus.selection.selected_parts import TakenCounts, Tally
from everytoken.shards import Artifact, Part, Rows, Shards, value_digest, versioned


def mixture_parts(selection: Artifact, documents_per_part: int) -> Shards:
    """Return value parts, each a range of the mixed corpus, for `mix_part`.

    A value has ``first`` and ``documents``, the range, and ``uses``: how many documents of each source come before it.
    """
    sources = Selection(selection).sources
    order = load_mapped(selection.path(MIXED_ORDER))
    uses = np.zeros(len(sources), np.int64)
    values = []
    for first in range(0, len(order), documents_per_part):
        chosen = order[first : first + documents_per_part]
        values.append({"first": first, "documents": len(chosen), "uses": uses.tolist()})
        uses += np.bincount(chosen, minlength=len(sources))
    return Shards.from_values(values, [value_digest(value) for value in values])


@versioned("mix_part", 1)
def mix_part(part: Part, *, documents: Shards, selection: Artifact) -> Rows:
    """Return one range of the mixed corpus: for each source the next of its documents that stay, interleaved.

    Reads from every source the range that the part needs and holds a batch of each. A document that is repeated keeps
    its address.

    Args:
        part: its ``value`` is one of `mixture_parts`.

    Returns:
        Statistics as those of `everytoken.corpus.ingestion.ingest.read_part`, nothing set aside, and ``first_uses``:
        documents by source that are used here for the first time.
    """
    return Rows(documents.parts[0].schema, _mixed(part.value, documents, selection))


def _mixed(
    value: Mapping[str, Any], documents: Shards, selection: Artifact
) -> Generator[pa.RecordBatch, None, TakenCounts]:
    made = Selection(selection)
    order = load_mapped(selection.path(MIXED_ORDER))[value["first"] : value["first"] + value["documents"]]
    tally, chunk = Tally(), _Chunk(documents.parts[0].schema)
    with ExitStack() as stack:
        streams = [_staying(documents, made, number, uses) for number, uses in enumerate(value["uses"])]
        cursors = [_Cursor(stack.enter_context(closing(stream))) for stream in streams]
        for number in order.tolist():
            cursor = cursors[number]
            cursor.advance()
            if chunk.is_full(cursor):
                yield tally.keep(chunk.take())
            chunk.add(number, cursor)
        if chunk.rows:
            yield tally.keep(chunk.take())
    counts = np.bincount(order, minlength=len(made.sources))
    unused = np.maximum(made.kept_by_source() - np.array(value["uses"]), 0)
    first_uses = dict(zip(made.sources, np.minimum(counts, unused).tolist(), strict=True))
    return TakenCounts(**tally.statistics(len(order)), first_uses=first_uses)


def _staying(documents: Shards, selection: Selection, number: int, start: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield the documents of a source that stay from number ``start`` on, without end: after the last the first."""
    parts = [
        (part, first, kept)
        for part, (source, first, kept) in zip(documents, selection.parts.tolist(), strict=True)
        if source == number and kept
    ]
    skip = start % max(1, sum(kept for _, _, kept in parts))
    while parts:
        for part, first, kept in parts:
            if skip >= kept:
                skip -= kept
                continue
            codes = selection.codes[first : first + part.rows]
            row = int(np.flatnonzero(codes == KEPT)[skip]) if skip else 0
            skip = 0
            for batch in part.batches(first_row=row):
                stays = np.flatnonzero(codes[row : row + batch.num_rows] == KEPT)
                row += batch.num_rows
                if len(stays):
                    yield batch.take(pa.array(stays))


class _Cursor:
    """Stands at one document of a source; begins before the first."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self.row = self._rows = 0
        self._sizes: list[int] = []

    def advance(self) -> None:
        self.row += 1
        if self.row >= self._rows:
            self.batch, self.row = next(self._batches), 0
            self._rows, self._sizes = self.batch.num_rows, self.batch.column("utf8_bytes").to_pylist()

    @property
    def size(self) -> int:
        return self._sizes[self.row]


class _Chunk:
    """Documents of several sources in order, gathered up to the bounds of a batch and then copied together."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._clear()

    def _clear(self) -> None:
        self._slices: list[tuple[pa.RecordBatch, int]] = []  # each with its first row
        self._lengths: list[int] = []
        self._latest: dict[int, int] = {}  # the slice that a source goes on with
        self._places: list[tuple[int, int]] = []  # slice and row in it, of each document
        self._bytes = 0

    @property
    def rows(self) -> int:
        return len(self._places)

    def is_full(self, cursor: _Cursor) -> bool:
        """Return whether the document at ``cursor`` would exceed the bounds of a batch that holds something."""
        return self.rows > 0 and (self.rows == MAX_BATCH_ROWS or self._bytes + cursor.size > MAX_BATCH_BYTES)

    def add(self, number: int, cursor: _Cursor) -> None:
        latest = self._latest.get(number)
        if latest is None or self._slices[latest][0] is not cursor.batch:
            latest = self._latest[number] = len(self._slices)
            self._slices.append((cursor.batch, cursor.row))
            self._lengths.append(0)
        self._places.append((latest, self._lengths[latest]))
        self._lengths[latest] += 1
        self._bytes += cursor.size

    def take(self) -> pa.RecordBatch:
        """Return the documents as one batch, and begin the next."""
        slices = [batch.slice(row, length) for (batch, row), length in zip(self._slices, self._lengths, strict=True)]
        begins = np.cumsum([0, *self._lengths[:-1]])
        places = np.array(self._places)
        taken = pa.Table.from_batches(slices, self._schema).take(pa.array(begins[places[:, 0]] + places[:, 1]))
        self._clear()
        return taken.combine_chunks().to_batches()[0]
