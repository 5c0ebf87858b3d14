"""Rows of one size put at their places in a file by several processes at once, in bounded memory.

While all rows fit into memory, each is written straight to its place. When they do not, the file itself is the scratch
space: it is cut into buckets of as many rows as a process may hold, bucket b with the places
``[b * size, (b + 1) * size)``. Each row is first written to the range of its bucket, where the rows of a bucket lie in
the order of their numbers. So every process knows where each of its rows goes, and no two write the same bytes. When
all are written, `RowPlaces.sort` puts each bucket in order.

A process that is killed may be followed by another that does the same: rows are written again to the same bytes, and a
bucket in order is kept in a file of its own until it is copied to its range.

Cost. Memory: what is written at a time, and one bucket a process. Disk: in ``scratch`` 8 bytes a row, and with buckets
16 more and one bucket a process; each row is then written three times and read twice, in pieces of about
``memory ** 2 / size`` for the memory of one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from everytoken.outofcore.shuffle import destinations

_COPIED_BYTES = 4 << 20
_BUFFER_BYTES = 256 << 10
_CHUNK = 1 << 16  # rows whose places are worked out at a time


@dataclass(frozen=True)
class Bucket:
    """Places [first, end) of a file."""

    first: int
    end: int

    @property
    def name(self) -> str:
        """The name of its file while it is put in order."""
        return f"rows_{self.first}_{self.end}"


@dataclass(frozen=True)
class RowPlaces:
    """Where each row of a file goes, for any process: what it knows is in files of the folder ``scratch``.

    Attributes:
        size: rows of a bucket; 1: rows are written to their places.
    """

    file: Path
    scratch: Path
    count: int
    row_bytes: int
    size: int

    def position(self, first: int, end: int) -> np.ndarray:
        """Return the places of the rows [first, end), int64, mapped."""
        return self._mapped("position", first, end)

    def write(self, first: int, rows: np.ndarray) -> None:
        """Write the rows ``first``, ``first + 1``, ..., an array (n, items)."""
        slots = self._slots(first, first + len(rows))
        order = np.argsort(slots)
        begins = np.flatnonzero(np.diff(slots[order], prepend=-2) != 1)
        with _opened(self.file) as file:
            for begin, end in pairwise([*begins.tolist(), len(rows)]):
                file.seek(int(slots[order[begin]]) * self.row_bytes)
                self._write(file, rows, order[begin:end])

    def write_bytes(self, row: int, offset: int, piece: np.ndarray) -> None:
        """Write a piece of a row, from a byte of it on."""
        with _opened(self.file) as file:
            file.seek(int(self._slots(row, row + 1)[0]) * self.row_bytes + offset)
            file.write(piece.data)

    def buckets(self) -> list[Bucket]:
        """Return what is to be put in order when all rows are written."""
        if self.size == 1:
            return []
        return [Bucket(first, min(first + self.size, self.count)) for first in range(0, self.count, self.size)]

    def sort(self, bucket: Bucket) -> Path:
        """Put a bucket in order; return a file that may go when this has succeeded."""
        ordered, rows = self.scratch / bucket.name, bucket.end - bucket.first
        if not ordered.exists():
            with self.file.open("rb") as file:
                file.seek(bucket.first * self.row_bytes)
                found = np.fromfile(file, np.uint8, rows * self.row_bytes).reshape(rows, self.row_bytes)
            temporary = ordered.with_suffix(".tmp")
            with _opened(temporary, "wb") as file:
                self._write(file, found, destinations(self._mapped("places", bucket.first, bucket.end) - bucket.first))
            temporary.replace(ordered)
        with ordered.open("rb") as source, _opened(self.file) as file:
            file.seek(bucket.first * self.row_bytes)
            shutil.copyfileobj(source, file, _BUFFER_BYTES)
        return ordered

    def _slots(self, first: int, end: int) -> np.ndarray:
        """Return where in the file rows are written first."""
        return self._mapped("position" if self.size == 1 else "slots", first, end)

    def _mapped(self, name: str, first: int, end: int) -> np.ndarray:
        if first == end:
            return np.empty(0, np.int64)  # an empty range cannot be mapped
        return np.memmap(self.scratch / name, np.int64, "r", 8 * first, (end - first,))

    def _write(self, file: BinaryIO, rows: np.ndarray, order: np.ndarray) -> None:
        step = max(1, _COPIED_BYTES // self.row_bytes)
        for start in range(0, len(order), step):
            file.write(rows[order[start : start + step]].data)


def plan_places(
    file: Path, positions: Iterable[np.ndarray], count: int, row_bytes: int, *, memory: int, workers: int, scratch: Path
) -> RowPlaces:
    """Make a file for ``count`` rows, and write down where each of them goes.

    Args:
        file: it is made, with zeros.
        positions: the place of each row, int64 in arrays of any length: a permutation of 0..count-1.
        row_bytes: bytes of a row.
        memory: bytes that rows may take in all processes together; each holds at least one row.
        workers: number of processes.
        scratch: an existing folder, which must stay until all is in order.
    """
    with file.open("wb") as made:
        made.truncate(count * row_bytes)
    share = memory // workers
    size = 1 if count * row_bytes <= memory else max(1, (share - min(share // 2, _COPIED_BYTES)) // row_bytes)
    places = RowPlaces(file, scratch, count, row_bytes, size)
    with _opened(scratch / "position", "wb") as written:
        for position in positions:
            written.write(np.ascontiguousarray(position, np.int64).data)
    if size > 1:
        _plan_slots(places)
    return places


def _plan_slots(places: RowPlaces) -> None:
    """Write where in its bucket each row is written first, and the place of the row in each slot."""
    filled = np.arange(0, places.count, places.size)
    place_of = np.memmap(places.scratch / "places", np.int64, "w+", 0, (places.count,))
    with _opened(places.scratch / "slots", "wb") as file:
        for start in range(0, places.count, _CHUNK):
            position = places.position(start, min(start + _CHUNK, places.count))
            bucket = position // places.size
            order = np.argsort(bucket, kind="stable")
            ordered = bucket[order]
            slots = np.empty(len(order), np.int64)
            slots[order] = filled[ordered] + np.arange(len(order)) - np.searchsorted(ordered, ordered)
            filled += np.bincount(bucket, minlength=len(filled))
            place_of[slots] = position
            file.write(slots.data)
    place_of.flush()


@contextmanager
def _opened(path: Path, mode: str = "r+b") -> Iterator[BinaryIO]:
    """Open a file to write to; errors of the system name it."""
    try:
        with path.open(mode) as file:
            yield file  # type: ignore[misc]
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
