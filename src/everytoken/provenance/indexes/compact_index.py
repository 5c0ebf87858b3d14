"""The index of a compact stream: documents shuffled inside their part, cut into windows, windows shuffled.

The maps, as `everytoken.tokens.streams.packed` draws them: ``rows.npy`` and ``places.npy`` between a document's place
in the shuffled part and its row in the part, ``cuts.npy`` and ``windows.npy`` between a window of the stream and its
number as cut; and where documents lie before windows are shuffled (`everytoken.provenance.indexes.token_positions`).

Size: 6.1 bytes a document where parts have at most 2**16 rows and documents fewer tokens (else 8.1 to 12.1), 8 bytes a
window below 2**32 windows (else 16).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from everytoken.outofcore import destinations
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type, write_permutation
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import Made, WindowsDescription, describe_windows, require_same_counts
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.provenance.indexes.token_positions import Positions, PositionsWriter, StoredPositions
from everytoken.seeds import numpy_generator
from everytoken.shards import IN_THIS_PROCESS, Built, Part, RangeMap, Shards, versioned
from everytoken.tokens.streams import CompactStatistics, document_sizes

COMPACT: Final = "compact"
_ROWS, _PLACES, _CUTS, _WINDOWS = "rows.npy", "places.npy", "cuts.npy", "windows.npy"
_BYTES = 4  # a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`


@versioned("index_compact_stream", 1, in_ranges=True)
def index_compact_stream(
    folder: Path,
    *,
    lengths: Shards,
    split: str,
    stream: Made,
    seq_length: int,
    seed: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write the index of a compact stream.

    Memory: about 30 bytes a document of one part, in each worker, and 12 bytes a window of one block of the shuffle.
    Disk: up to 16 bytes a document in temporary files, where workers draw.

    Args:
        lengths: the documents of the stream, with ``token_length``.
        stream: the stream; its statistics say windows, remainder and block.
        ranges: where lengths are read and the shuffles of parts drawn.

    Raises:
        ProvenanceError: the documents are not those of the stream.
        StreamError: a length is null or negative.
    """
    window, numbers = seq_length + 1, numbers_of({split: lengths})
    ranges = ranges.unless_small(len(numbers) * _BYTES)
    most = max(ranges(_largest, list(lengths)), default=0)
    in_part = smallest_type(max((part.rows for part in lengths), default=0))
    with (
        ArrayWriter(folder / _ROWS, in_part) as rows,
        ArrayWriter(folder / _PLACES, in_part) as places,
        PositionsWriter(folder, most) as positions,
    ):
        for drawn in ranges.pieces(_Draw(seed), list(lengths), folder):
            rows.append(drawn.rows)
            places.append(drawn.places)
            positions.append(drawn.sizes.astype(np.int64))
    windows, remainder = divmod(positions.tokens, window)
    found = {"documents": len(numbers), "windows": windows, "remainder_tokens": remainder}
    said = stream.statistics_as(CompactStatistics)
    require_same_counts(COMPACT, found, said)
    _write_windows(folder, windows, said["shuffle_block"], seed)
    counts = {"windows": windows, "window": window, "tokens": positions.tokens}
    return Built(describe_windows(folder, COMPACT, stream, numbers, **counts))


def _largest(part: Part) -> int:
    """Return the tokens of the longest document of a part."""
    return int(document_sizes(part).max(initial=0))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A shuffled part: the row at each place, the place of each row, and the tokens of the document at each place."""

    rows: np.ndarray
    places: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class _Draw:
    seed: int

    def __call__(self, part: Part) -> Iterator[_Drawn]:
        permutation = numpy_generator(self.seed, part.index).permutation(part.rows)
        kind, sizes = smallest_type(part.rows), document_sizes(part)
        sizes = sizes.astype(smallest_type(int(sizes.max(initial=0))))[permutation]
        yield _Drawn(permutation.astype(kind), destinations(permutation).astype(kind), sizes)


def _write_windows(folder: Path, windows: int, block: int, seed: int) -> None:
    kind, generator = smallest_type(windows), numpy_generator(seed)
    with ExitStack() as files:
        cuts, numbers = (files.enter_context(ArrayWriter(folder / name, kind)) for name in (_CUTS, _WINDOWS))
        for start in range(0, windows, block):
            write_permutation(generator.permutation(min(block, windows - start)), cuts, numbers, start)


@dataclass(frozen=True, eq=False)
class CompactIndex(StreamIndex):
    """See the module."""

    kind: ClassVar[str] = COMPACT

    positions: Positions
    rows: np.ndarray
    places: np.ndarray
    cuts: np.ndarray
    window_of_cut: np.ndarray

    @staticmethod
    def open(folder: Path, described: WindowsDescription, numbers: DocumentNumbers) -> CompactIndex:
        """Map the files that `index_compact_stream` wrote."""
        return CompactIndex(
            described["stream"],
            described["windows"],
            described["window"],
            numbers,
            StoredPositions(folder, len(numbers), described["tokens"]),
            *(map_array(folder / name, len(numbers)) for name in (_ROWS, _PLACES)),
            *(map_array(folder / name, described["windows"]) for name in (_CUTS, _WINDOWS)),
        )

    def tokens_of(self, document: int) -> int:
        """See `StreamIndex`."""
        begin, end = self.positions.range_of(self._place_of(document))
        return end - begin

    def _spans(self, window: int) -> Iterator[Span]:
        cut, at = int(self.cuts[window]), 0
        self._require_cut(cut, window)
        begin = cut * self.window
        for place, first, end, at_first in self.positions.between(begin, begin + self.window):
            span = Span(self._document_at(place), first, end, at_first)
            self._require(span.at == at, f"window {window:,} has no document at position {at:,}")
            at = span.until
            yield span
        self._require(at == self.window, f"window {window:,} has documents up to position {at:,}")

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        begin, end = self.positions.range_of(self._place_of(document))
        for cut in range(begin // self.window, min((end - 1) // self.window + 1, self.windows)):
            start = cut * self.window
            first, last = max(begin, start), min(end, start + self.window)
            window = int(self.window_of_cut[cut])
            self._require_cut(cut, window)
            yield window, Span(document, first - begin, last - begin, first - start)

    def _require_cut(self, cut: int, window: int) -> None:
        holds = cut < self.windows and window < self.windows
        holds = holds and int(self.window_of_cut[cut]) == window and int(self.cuts[window]) == cut
        self._require(holds, f"by {_CUTS} and {_WINDOWS}, cut {cut:,} and window {window:,} are not the same")

    def _place_of(self, document: int) -> int:
        place = self._first_of_part(document) + int(self.places[document])
        self._require_pair(place, document)
        return place

    def _document_at(self, place: int) -> int:
        document = self._first_of_part(place) + int(self.rows[place])
        self._require_pair(place, document)
        return document

    def _require_pair(self, place: int, document: int) -> None:
        holds = max(place, document) < self.documents
        if holds:
            first = self._first_of_part(place)
            holds = first + int(self.rows[place]) == document and first + int(self.places[document]) == place
        self._require(holds, f"by {_ROWS} and {_PLACES}, place {place:,} and document {document:,} are not the same")

    def _first_of_part(self, document: int) -> int:
        """Return the first number of the part that has this one: places stay in their part."""
        return int(self.numbers.first_rows[self.numbers.part_of(document)])
