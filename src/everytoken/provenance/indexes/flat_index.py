"""The index of flat tokens: documents that follow each other, and windows only when somebody cuts them.

Raw shards, and Megatron streams of documents, are read as one sequence of tokens; a run cuts it into windows of T
predictions, window i is the tokens [i T, i T + T + 1), so a window shares one token with the next
(`everytoken.tokens.streams.flat_tokens`). `FlatIndex` answers for any range of tokens, and
`FlatIndex.windows_of_length` for the windows of a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.arrays import map_array
from everytoken.provenance.indexes.document_numbers import DocumentNumbers
from everytoken.provenance.indexes.index_folder import FlatDescription
from everytoken.provenance.indexes.shard_layout import ShardLayout
from everytoken.provenance.indexes.spans import Span, StreamIndex, require_consistent_index
from everytoken.provenance.indexes.token_positions import Positions, StoredPositions
from everytoken.tokens import StreamError
from everytoken.tokens.streams import IndexedTokens, open_indexed

FLAT: Final = "flat"
ORDER_FILE, PLACES_FILE = "order.npy", "places.npy"


class Order(Protocol):
    """Which document is at which place; both ways."""

    def document_at(self, place: int) -> int:
        """Return the document at a place."""

    def place_of(self, document: int) -> int:
        """Return the place of a document."""


@dataclass(frozen=True, eq=False)
class StoredOrder:
    """An order in two arrays."""

    documents: np.ndarray
    places: np.ndarray

    def document_at(self, place: int) -> int:
        """See `Order`."""
        document = int(self.documents[place])
        self._require_pair(place, document)
        return document

    def place_of(self, document: int) -> int:
        """See `Order`."""
        place = int(self.places[document])
        self._require_pair(place, document)
        return place

    def _require_pair(self, place: int, document: int) -> None:
        holds = max(place, document) < len(self.places)
        holds = holds and int(self.documents[place]) == document and int(self.places[document]) == place
        what = f"by {ORDER_FILE} and {PLACES_FILE}, place {place:,} and document {document:,} are not the same"
        require_consistent_index(holds, "the index of flat tokens", what)


class OrderOfNumbers:
    """The order of documents that lie as they are numbered."""

    def document_at(self, place: int) -> int:
        """See `Order`."""
        return place

    def place_of(self, document: int) -> int:
        """See `Order`."""
        return document


@dataclass(frozen=True, eq=False)
class FlatIndex:
    """See the module.

    Attributes:
        stream: root digest of what holds the tokens.
        shard_size: tokens of each shard but the last; None where there are no shards.
        layout: where documents lie in shards that are padded or leave documents out; None: one after the other.
    """

    stream: str
    numbers: DocumentNumbers
    positions: Positions
    order: Order
    shard_size: int | None
    layout: ShardLayout | None = None

    @staticmethod
    def open(folder: Path, described: FlatDescription, numbers: DocumentNumbers) -> FlatIndex:
        """Map the files that `everytoken.provenance.indexes.raw_shards_index` wrote."""
        return FlatIndex(
            described["stream"],
            numbers,
            StoredPositions(folder, len(numbers), described["tokens"]),
            StoredOrder(*(map_array(folder / name, len(numbers)) for name in (ORDER_FILE, PLACES_FILE))),
            described["shard_size_tokens"],
            _layout_of(folder, described),
        )

    @property
    def tokens(self) -> int:
        """Tokens of all documents, or, where there is a layout, of all shards with their padding."""
        return self.positions.tokens if self.layout is None else self.layout.tokens

    def position(self, shard: int, offset: int) -> int:
        """Return the position among all tokens of a token of a shard, by the numbers of both, from 0.

        Raises:
            ProvenanceError: there are no shards, or no such token.
        """
        if self.shard_size is None:
            raise ProvenanceError("these tokens are in one file, not in shards")
        position = shard * self.shard_size + offset
        if not (shard >= 0 and 0 <= offset < self.shard_size and position < self.tokens):
            shards = -(-self.tokens // self.shard_size)
            raise ProvenanceError(
                f"there is no token {offset:,} in shard {shard:,}: {self.tokens:,} tokens are in {shards:,} shards of "
                f"{self.shard_size:,}"
            )
        return position

    def spans_between(self, begin: int, end: int) -> list[Span]:
        """Return what the positions [begin, end) hold; a span's ``at`` counts from ``begin``. Padding has no span.

        Raises:
            ProvenanceError: there are no such positions.
        """
        if not 0 <= begin <= end <= self.tokens:
            raise ProvenanceError(f"there are {self.tokens:,} tokens, asked for [{begin:,}, {end:,})")
        pieces = [(begin, end, 0)] if self.layout is None else self.layout.pieces(begin, end)
        return [
            Span(self.order.document_at(place), first, stop, offset + at)
            for own, until, offset in pieces
            for place, first, stop, at in self.positions.between(own, until)
        ]

    def range_of(self, document: int) -> tuple[int, int]:
        """Return the positions [first, end) of a document; those behind the last token are in no shard.

        Raises:
            ProvenanceError: there is no such document.
        """
        self.numbers.part_of(document)  # the error
        first, end = self.positions.range_of(self.order.place_of(document))
        placed = first if self.layout is None else self.layout.placed(first)
        return placed, placed + end - first

    def windows_of_length(self, seq_length: int) -> FlatWindowIndex:
        """Return the index of the windows of ``seq_length`` predictions.

        Raises:
            ProvenanceError: ``seq_length`` is not positive.
        """
        if seq_length < 1:
            raise ProvenanceError(f"seq_length is {seq_length}; a window makes at least one prediction")
        windows = max(0, self.tokens - 1) // seq_length
        return FlatWindowIndex(self.stream, windows, seq_length + 1, self.numbers, self)


def _layout_of(folder: Path, described: FlatDescription) -> ShardLayout | None:
    if "shards" not in described or "stored_tokens" not in described:
        return None
    return ShardLayout.open(folder, described["shards"], described["shard_size_tokens"], described["stored_tokens"])


@dataclass(frozen=True, eq=False)
class FlatWindowIndex(StreamIndex):
    """Windows of flat tokens; the last token of one is the first of the next, so both have a span with it."""

    kind: ClassVar[str] = FLAT

    flat: FlatIndex

    def tokens_of(self, document: int) -> int:
        """See `StreamIndex`."""
        begin, end = self.flat.range_of(document)
        return end - begin

    def _spans(self, window: int) -> Iterator[Span]:
        begin = window * (self.window - 1)
        yield from self.flat.spans_between(begin, begin + self.window)

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        begin, end = self.flat.range_of(document)
        step = self.window - 1
        for window in range(max(0, (begin - 1) // step), min((end - 1) // step + 1, self.windows)):
            start = window * step
            first, last = max(begin, start), min(end, start + self.window)
            if first < last:
                yield window, Span(document, first - begin, last - begin, first - start)


class IndexedPositions:
    """`Positions` from the index of a Megatron stream that has one sequence a document."""

    def __init__(self, indexed: IndexedTokens) -> None:
        """Take the documents of a stream."""
        self._lengths = indexed.lengths.view(np.ndarray)
        self._pointers = indexed.pointers.view(np.ndarray)
        self._item, self.tokens = indexed.tokens.dtype.itemsize, len(indexed.tokens)

    def range_of(self, place: int) -> tuple[int, int]:
        """See `Positions`."""
        first = int(self._pointers[place]) // self._item
        return first, first + int(self._lengths[place])

    def between(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """See `Positions`."""
        place = bisect_right(self._pointers, begin * self._item) - 1 if begin < end else len(self._pointers)
        while place < len(self._pointers):
            start, stop = self.range_of(place)
            if start >= end:
                return
            first = max(0, begin - start)
            if start + first < stop:  # a sequence of another program may be empty
                yield place, first, min(stop, end) - start, start + first - begin
            place += 1


def flat_index_of_documents(prefix: Path, stream: str) -> FlatIndex:
    """Return the index of a Megatron stream of documents, which is its own: ``prefix.idx`` says where each is.

    Document i is sequence i. In what ``everytoken tokenize`` wrote that is line i of its inputs, one after the other.
    Nothing is written; an answer takes O(log n) steps.

    Args:
        prefix: of ``.bin`` and ``.idx``.
        stream: its root digest, or what else it is known by.

    Raises:
        ProvenanceError: it is no such stream.
    """
    try:
        indexed = open_indexed(prefix)
    except StreamError as error:
        raise ProvenanceError(str(error)) from error
    numbers = DocumentNumbers(("documents",), (0, 1), np.array([0, len(indexed)], np.uint64))
    return FlatIndex(stream, numbers, IndexedPositions(indexed), OrderOfNumbers(), None)
