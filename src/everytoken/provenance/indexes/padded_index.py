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

from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type, write_permutation
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import Made, WindowsDescription, describe_windows, require_same_counts
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.seeds import numpy_generator
from everytoken.shards import Built, Shards, versioned
from everytoken.tokens.streams import PaddedStatistics, document_sizes

PADDED: Final = "padded"
_ORDER, _WINDOWS, _LENGTHS = "order.npy", "windows.npy", "lengths.npy"


@versioned("index_padded_stream", 1)
def index_padded_stream(
    folder: Path, *, lengths: Shards, split: str, stream: Made, seq_length: int, seed: int
) -> Built:
    """Write the index of a stream of `everytoken.tokens.streams.one_document_per_window`.

    Memory: about 12 bytes a document.

    Args:
        lengths: the documents of the stream, with ``token_length``.
        stream: the stream; its statistics say windows and tokens.

    Raises:
        ProvenanceError: the documents are not those of the stream.
        StreamError: a length is null or negative.
    """
    numbers, _ = write_padded_arrays(folder, lengths, split, seq_length, seed)
    tokens = int(map_array(folder / _LENGTHS, len(numbers)).sum(dtype=np.int64))
    found = {"windows": len(numbers), "documents": len(numbers), "tokens": tokens}
    require_same_counts(split, found, stream.statistics_as(PaddedStatistics))
    counts = {"windows": len(numbers), "window": seq_length + 1, "tokens": tokens}
    return Built(describe_windows(folder, PADDED, stream, numbers, **counts))


def write_padded_arrays(
    folder: Path, lengths: Shards, split: str, seq_length: int, seed: int
) -> tuple[DocumentNumbers, np.ndarray]:
    """Write length, window and order of the documents; return their numbers, and the document of each window, (n,)."""
    numbers = numbers_of({split: lengths})
    with ArrayWriter(folder / _LENGTHS, smallest_type(seq_length + 1)) as writer:
        for part in lengths:
            writer.append(document_sizes(part) - 1)
    kind, permutation = smallest_type(len(numbers)), numpy_generator(seed).permutation(len(numbers))
    with ExitStack() as files:
        order, windows = (files.enter_context(ArrayWriter(folder / name, kind)) for name in (_ORDER, _WINDOWS))
        write_permutation(permutation, order, windows)
    return numbers, permutation


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
