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
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type
from everytoken.provenance.indexes.document_numbers import DocumentNumbers
from everytoken.provenance.indexes.index_folder import WindowsDescription, describe_windows
from everytoken.provenance.indexes.padded_index import PaddedIndex, write_padded_arrays
from everytoken.provenance.indexes.spans import ReflectionPlace, Span
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens.streams import (
    REFLECTION_INDEX_FILE,
    REFLECTION_LENGTHS_FILE,
    TOKEN_LENGTHS_FILE,
    WindowCounts,
)

REFLECTED: Final = "reflected"
_PLACES, _SIZES = "places.npy", "sizes.npy"
_CHUNK = 1 << 18


class _Written(WindowCounts):
    """What the ledger of a reflected stream adds to windows and tokens."""

    document_tokens: int


@versioned("index_reflected_stream", 1)
def index_reflected_stream(
    folder: Path, *, lengths: Shards, split: str, reflected: Artifact, seq_length: int, seed: int
) -> Built:
    """Write the index of a stream of `everytoken.reflections.splicing`.

    Memory: about 12 bytes a document.

    Args:
        lengths: the documents of the stream, with ``token_length``.
        reflected: the stream; its arrays say where reflections are.
        seed: of the annotated stream, whose order it has.

    Raises:
        ProvenanceError: the documents are not those of the stream, or its arrays contradict them.
        StreamError: a length is null or negative.
    """
    made, window = reflected.statistics_as(_Written), seq_length + 1
    numbers, order = write_padded_arrays(folder, lengths, split, seq_length, seed)
    if len(numbers) != made["windows"]:
        raise ProvenanceError(
            f"the stream {reflected.root_digest[:16]} has {made['windows']:,} windows, there are {len(numbers):,} "
            f"{split} documents: it was made from others. Run the pipeline that makes it again"
        )
    own = map_array(folder / "lengths.npy", len(numbers))
    kind = smallest_type(window)
    with ArrayWriter(folder / _PLACES, kind) as places, ArrayWriter(folder / _SIZES, kind) as sizes:
        for start in range(0, len(numbers), _CHUNK):
            here = slice(start, start + _CHUNK)
            stored = _Arrays.read(reflected, here)
            places.append(stored.places_of(own[order[here]].astype(np.int64), start, window))
            sizes.append(stored.sizes)
    counts = {"windows": len(numbers), "window": window, "tokens": made["tokens"]}
    return Built(describe_windows(folder, REFLECTED, reflected, numbers, **counts))


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
