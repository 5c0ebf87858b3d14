"""Documents that follow each other without a gap: where each begins, and which lie between two positions.

A document's *place* is how many come before it. Kept are the tokens of each (2 bytes, where all are shorter than
2**16), and before which position every 64th begins (8 bytes); what is between them is added up when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type
from everytoken.provenance.indexes.spans import require_consistent_index

_SIZES_FILE, _STARTS_FILE = "sizes.npy", "starts.npy"
_STEP = 64


class Positions(Protocol):
    """Documents one after the other."""

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""

    def range_of(self, place: int) -> tuple[int, int]:
        """Return the positions [first, end) of the document at a place."""

    def between(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (place, first, end, at) of the documents with tokens in the positions [begin, end).

        Tokens [first, end) of the document are in it; the first of them is at position begin + at.
        """


class PositionsWriter:
    """Writes ``sizes.npy`` and ``starts.npy``; a context manager."""

    def __init__(self, folder: Path, most: int) -> None:
        """Prepare for documents of at most ``most`` tokens."""
        self.tokens = 0
        self._sizes = ArrayWriter(folder / _SIZES_FILE, smallest_type(most))
        self._starts = ArrayWriter(folder / _STARTS_FILE, np.dtype("<u8"))
        self._files = ExitStack()

    def __enter__(self) -> Self:
        self._files.enter_context(self._sizes)
        self._files.enter_context(self._starts)
        return self

    def append(self, sizes: np.ndarray) -> None:
        """Append documents of these numbers of tokens, EOS included, (n,)."""
        if not len(sizes):
            return
        ends = np.cumsum(sizes, dtype=np.int64) + self.tokens
        self._starts.append((ends - sizes)[-self._sizes.count % _STEP :: _STEP])
        self._sizes.append(sizes)
        self.tokens = int(ends[-1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)


class StoredPositions:
    """`Positions` from the files of a `PositionsWriter`."""

    def __init__(self, folder: Path, documents: int, tokens: int) -> None:
        """Map the files of so many documents, which have ``tokens`` tokens together."""
        self.tokens, self._folder = tokens, folder
        self._sizes = map_array(folder / _SIZES_FILE, documents)
        self._starts = map_array(folder / _STARTS_FILE, -(-documents // _STEP))

    def range_of(self, place: int) -> tuple[int, int]:
        """See `Positions`."""
        step = place // _STEP
        start, sizes = self._step(step)
        first = start + sum(sizes[: place % _STEP])
        return first, first + sizes[place % _STEP]

    def between(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """See `Positions`."""
        if not begin < end:
            return
        step = max(0, bisect_right(self._starts, begin) - 1)  # item by item: `searchsorted` may copy the map
        while step < len(self._starts):
            place = step * _STEP
            start, sizes = self._step(step)
            require_consistent_index(
                place > 0 or start == 0, self._name, f"by {_STARTS_FILE} tokens begin at {start:,}"
            )
            for size in sizes:
                if start >= end:
                    return
                if start + size > begin:
                    first = max(0, begin - start)
                    yield place, first, min(size, end - start), start + first - begin
                start, place = start + size, place + 1
            step += 1

    @property
    def _name(self) -> str:
        return f"the index {self._folder}"

    def _step(self, step: int) -> tuple[int, list[int]]:
        """Return where a step begins and the sizes of its documents, which must end where the next begins."""
        start, sizes = int(self._starts[step]), self._sizes[step * _STEP : (step + 1) * _STEP].tolist()
        until = int(self._starts[step + 1]) if step + 1 < len(self._starts) else self.tokens
        require_consistent_index(
            start + sum(sizes) == until,
            self._name,
            f"by {_SIZES_FILE} the documents from place {step * _STEP:,} on end at token {start + sum(sizes):,}, by "
            f"{_STARTS_FILE} at {until:,}",
        )
        return start, sizes
