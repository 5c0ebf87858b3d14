"""The index of a reflected stream: one document a window, and between two spans of it a reflection.

It is the index of the annotated stream (`everytoken.provenance.indexes.padded_index`), whose order it has, and two
arrays by window: ``places.npy``, the content tokens before the reflection, and ``sizes.npy``, its tokens. A window
without one has the place 0. One that is masked, of EOS alone, has the length of a window as its place, and no token of
its document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.arrays import ArrayInPlace, map_array, smallest_type
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import WindowsDescription, describe_windows
from everytoken.provenance.indexes.padded_index import PaddedIndex, lengths_in_order, write_padded_arrays
from everytoken.provenance.indexes.spans import ReflectionPlace, Span
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, RangeMap, Shards, versioned
from everytoken.tokens.streams import (
    REFLECTION_INDEX_FILE,
    REFLECTION_LENGTHS_FILE,
    TOKEN_LENGTHS_FILE,
    WindowCounts,
)

REFLECTED: Final = "reflected"
_PLACES, _SIZES = "places.npy", "sizes.npy"
_CHUNK = 1 << 18
_BYTES = 16  # a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`


class _Written(WindowCounts):
    """What the ledger of a reflected stream adds to windows and tokens."""

    document_tokens: int


@versioned("index_reflected_stream", 1, in_ranges=True)
def index_reflected_stream(
    folder: Path,
    *,
    lengths: Shards,
    split: str,
    reflected: Artifact,
    seq_length: int,
    seed: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write the index of a stream of `everytoken.reflections.splicing`.

    Memory: about 12 bytes a document, in one worker.

    Args:
        lengths: the documents of the stream, with ``token_length``.
        reflected: the stream; its arrays say where reflections are.
        seed: of the annotated stream, whose order it has.
        ranges: where lengths and the arrays of the stream are read, and the order is drawn.

    Raises:
        ProvenanceError: the documents are not those of the stream, or its arrays contradict them.
        StreamError: a length is null or negative.
    """
    made, window = reflected.statistics_as(_Written), seq_length + 1
    numbers = numbers_of({split: lengths})
    ranges = ranges.unless_small(len(numbers) * _BYTES)
    write_padded_arrays(folder, lengths, seq_length, seed, ranges)
    if len(numbers) != made["windows"]:
        raise ProvenanceError(
            f"the stream {reflected.root_digest[:16]} has {made['windows']:,} windows, there are {len(numbers):,} "
            f"{split} documents: it was made from others. Run the pipeline that makes it again"
        )
    kind = smallest_type(window)
    places, sizes = (ArrayInPlace.make(folder / name, kind, len(numbers)) for name in (_PLACES, _SIZES))
    starts = range(0, len(numbers), _CHUNK)
    arrays = _ReflectionArrays(folder, reflected, len(numbers), window, places, sizes)
    windows = [_WindowRange(start, min(start + _CHUNK, len(numbers))) for start in starts]
    for _ in ranges(arrays, windows):
        pass
    counts = {"windows": len(numbers), "window": window, "tokens": made["tokens"]}
    return Built(describe_windows(folder, REFLECTED, reflected, numbers, **counts))


@dataclass(frozen=True)
class _WindowRange:
    """The windows [first, end)."""

    first: int
    end: int

    @property
    def name(self) -> str:
        return f"windows from {self.first:,} on"


@dataclass(frozen=True)
class _ReflectionArrays:
    """Writes where reflections are in a range of the ``count`` windows."""

    folder: Path
    reflected: Artifact
    count: int
    window: int
    places: ArrayInPlace
    sizes: ArrayInPlace

    def __call__(self, windows: _WindowRange) -> None:
        here = slice(windows.first, windows.end)
        stored, own = _Arrays.read(self.reflected, here), lengths_in_order(self.folder, self.count, here)
        self.places.write(windows.first, stored.places_of(own, windows.first, self.window))
        self.sizes.write(windows.first, stored.sizes)


@dataclass(frozen=True)
class _Arrays:
    """What the stream says of a range of windows: content tokens, place and size of the reflection of each, (n,)."""

    lengths: np.ndarray
    places: np.ndarray
    sizes: np.ndarray

    @staticmethod
    def read(stream: Artifact, here: slice) -> _Arrays:
        names = (TOKEN_LENGTHS_FILE, REFLECTION_INDEX_FILE, REFLECTION_LENGTHS_FILE)
        return _Arrays(*(np.load(stream.path(name), mmap_mode="r")[here].astype(np.int64) for name in names))

    def places_of(self, own: np.ndarray, first: int, window: int) -> np.ndarray:
        """Return what the index keeps of each place, for windows whose documents have ``own`` content tokens, (n,)."""
        has, masked = self.sizes > 0, (self.lengths == 0) & (own > 0)
        whole = self.lengths == np.where(masked, 0, own + self.sizes)
        inside = np.where(has, (self.places >= 1) & (self.places <= own) & ~masked, self.places == -1)
        if not (holds := whole & inside & (self.sizes >= 0)).all():
            at = int(np.argmin(holds))
            raise ProvenanceError(
                f"window {first + at:,} has {self.lengths[at]:,} tokens with a reflection of {self.sizes[at]:,} after "
                f"{self.places[at]:,}, and its document has {own[at]:,}: the stream was made from other documents. Run "
                "the pipeline that makes it again"
            )
        return np.where(masked, window, np.where(has, self.places, 0))


@dataclass(frozen=True, eq=False)
class ReflectedIndex(PaddedIndex):
    """See the module."""

    kind: ClassVar[str] = REFLECTED

    places: np.ndarray
    sizes: np.ndarray

    @staticmethod
    def open(folder: Path, described: WindowsDescription, numbers: DocumentNumbers) -> ReflectedIndex:
        """Map the files that `index_reflected_stream` wrote."""
        padded = PaddedIndex.open(folder, described, numbers)
        places, sizes = (map_array(folder / name, described["windows"]) for name in (_PLACES, _SIZES))
        return ReflectedIndex(**vars(padded), places=places, sizes=sizes)

    def reflection(self, window: int) -> ReflectionPlace | None:
        """See `StreamIndex`."""
        place, size = int(self.places[window]), int(self.sizes[window])
        if place in (0, self.window):
            return None
        return ReflectionPlace(int(self.order[window]), place, place + size)

    def _spans(self, window: int) -> Iterator[Span]:
        yield from self._own_spans(int(self.order[window]), window)

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        window = int(self.window_of_document[document])
        yield from ((window, span) for span in self._own_spans(document, window))

    def _own_spans(self, document: int, window: int) -> Iterator[Span]:
        """Yield the tokens before the reflection, and those after it, EOS included; none of a masked window."""
        whole = self._span(document, window)
        place, size = int(self.places[window]), int(self.sizes[window])
        if place == self.window:
            return
        if not place:
            yield whole
            return
        holds = place < whole.end and whole.end + size <= self.window
        self._require(holds, f"window {window:,} has a reflection of {size:,} tokens after {place:,} of {whole.end:,}")
        yield Span(document, 0, place, 0)
        yield Span(document, place, whole.end, place + size)
