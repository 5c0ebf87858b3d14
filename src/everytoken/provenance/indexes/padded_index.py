"""The index of a padded stream (annotated, canary): one document a window.

``order.npy`` has the document of each window, ``windows.npy`` the window of each document, and ``lengths.npy`` the
content tokens of each document. Size: 10 bytes a document, which has one window (fewer than 2**32 documents, of fewer
than 2**16 tokens each).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from everytoken.provenance.indexes.arrays import ArrayInPlace, ArrayWriter, map_array, smallest_type, write_permutation
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import Made, WindowsDescription, describe_windows, require_same_counts
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.seeds import numpy_generator
from everytoken.shards import IN_THIS_PROCESS, Built, Part, RangeMap, Shards, versioned
from everytoken.tokens.streams import PaddedStatistics, document_sizes

PADDED: Final = "padded"
_ORDER, _WINDOWS, _LENGTHS = "order.npy", "windows.npy", "lengths.npy"
_BYTES = 8  # a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`


@versioned("index_padded_stream", 1, in_ranges=True)
def index_padded_stream(
    folder: Path,
    *,
    lengths: Shards,
    split: str,
    stream: Made,
    seq_length: int,
    seed: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write the index of a stream of `everytoken.tokens.streams.one_document_per_window`.

    Memory: about 12 bytes a document, in one worker.

    Args:
        lengths: the documents of the stream, with ``token_length``.
        stream: the stream; its statistics say windows and tokens.
        ranges: where lengths are read and the order is drawn.

    Raises:
        ProvenanceError: the documents are not those of the stream.
        StreamError: a length is null or negative.
    """
    numbers = numbers_of({split: lengths})
    tokens = write_padded_arrays(folder, lengths, seq_length, seed, ranges.unless_small(len(numbers) * _BYTES))
    found = {"windows": len(numbers), "documents": len(numbers), "tokens": tokens}
    require_same_counts(split, found, stream.statistics_as(PaddedStatistics))
    counts = {"windows": len(numbers), "window": seq_length + 1, "tokens": tokens}
    return Built(describe_windows(folder, PADDED, stream, numbers, **counts))


def write_padded_arrays(folder: Path, lengths: Shards, seq_length: int, seed: int, ranges: RangeMap) -> int:
    """Write length, window and order of the documents; return their content tokens."""
    made = ArrayInPlace.make(folder / _LENGTHS, smallest_type(seq_length + 1), lengths.rows)
    firsts = np.cumsum([0, *(part.rows for part in lengths)]).tolist()
    parts = [_PartLengths(part, first, made) for part, first in zip(lengths, firsts, strict=False)]
    both: list[_Order | _PartLengths] = [_Order(folder, lengths.rows, seed), *parts]
    return sum(ranges(_write, both))


def lengths_in_order(folder: Path, documents: int, windows: slice) -> np.ndarray:
    """Return the content tokens of the documents in a range of windows, by the arrays of all, int64 (windows,)."""
    order, lengths = (map_array(folder / name, documents) for name in (_ORDER, _LENGTHS))
    return np.asarray(lengths[order[windows]], np.int64)


def _write(arrays: _Order | _PartLengths) -> int:
    return arrays.write()


@dataclass(frozen=True)
class _PartLengths:
    """Writes the lengths of the documents of a part, the first of which has this number."""

    part: Part
    first: int
    lengths: ArrayInPlace

    @property
    def name(self) -> str:
        return self.part.name

    def write(self) -> int:
        """Return the content tokens of the part."""
        lengths = document_sizes(self.part) - 1
        self.lengths.write(self.first, lengths)
        return int(lengths.sum())


@dataclass(frozen=True)
class _Order:
    """Writes the document of each window and the window of each document: one draw, and so one range."""

    folder: Path
    documents: int
    seed: int

    @property
    def name(self) -> str:
        return _ORDER

    def write(self) -> int:
        """Return 0: it counts no tokens."""
        kind, permutation = smallest_type(self.documents), numpy_generator(self.seed).permutation(self.documents)
        with ExitStack() as files:
            order, windows = (files.enter_context(ArrayWriter(self.folder / name, kind)) for name in (_ORDER, _WINDOWS))
            write_permutation(permutation, order, windows)
        return 0


@dataclass(frozen=True, eq=False)
class PaddedIndex(StreamIndex):
    """See the module."""

    kind: ClassVar[str] = PADDED

    order: np.ndarray
    window_of_document: np.ndarray
    lengths: np.ndarray

    @staticmethod
    def open(folder: Path, described: WindowsDescription, numbers: DocumentNumbers) -> PaddedIndex:
        """Map the files that `index_padded_stream` wrote."""
        return PaddedIndex(
            described["stream"],
            described["windows"],
            described["window"],
            numbers,
            map_array(folder / _ORDER, described["windows"]),
            map_array(folder / _WINDOWS, described["windows"]),
            map_array(folder / _LENGTHS, len(numbers)),
        )

    def tokens_of(self, document: int) -> int:
        """See `StreamIndex`."""
        return int(self.lengths[document]) + 1

    def _spans(self, window: int) -> Iterator[Span]:
        yield self._span(int(self.order[window]), window)

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        window = int(self.window_of_document[document])
        yield window, self._span(document, window)

    def _span(self, document: int, window: int) -> Span:
        holds = max(document, window) < self.windows
        holds = holds and int(self.order[window]) == document and int(self.window_of_document[document]) == window
        self._require(holds, f"by {_ORDER} and {_WINDOWS}, window {window:,} is not the one of document {document:,}")
        length = int(self.lengths[document])
        self._require(length < self.window, f"document {document:,} has {length:,} tokens by {_LENGTHS}")
        return Span(document, 0, length + 1, 0)
