"""How far parts are that are being made: rows of each, from its worker to whoever waits for it.

A worker writes its count into a file of one int64 a part, at most twice a second. The file is for the eye: nothing else
reads it, and what goes wrong with it is ignored.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from everytoken import progress
from everytoken.arrays import Integers

_BYTES = 8
_SECONDS = 0.5

_part: _Slot | None = None


class _Slot:
    """The count of the part that this process makes."""

    def __init__(self, path: Path, number: int, counts_read: bool) -> None:
        self._path, self._place, self._counts_read = path, number * _BYTES, counts_read
        self._rows = self._read = 0
        self._last = progress.clock()

    def reach(self, rows: int) -> None:
        if rows > self._rows:
            self._rows = rows
            self._write()

    def read(self, rows: int) -> None:
        self._read += rows
        if self._counts_read:
            self.reach(self._read)

    def _write(self) -> None:
        now = progress.clock()
        if now - self._last < _SECONDS:
            return
        self._last = now
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, struct.pack("=q", self._rows), self._place)
            finally:
                os.close(descriptor)
        progress.tick()


@contextmanager
def counting(path: Path, number: int, *, reads: bool) -> Iterator[None]:
    """Let `rows_done` and `count_rows_read` count for part ``number`` in the file of `PartCounts`.

    Args:
        reads: whether rows that are read are what counts: the part is a value.
    """
    global _part
    before, _part = _part, _Slot(path, number, reads)
    try:
        yield
    finally:
        _part = before


def rows_done(rows: int) -> None:
    """Tell how many rows of the part that is being made are done."""
    if _part is not None:
        _part.reach(rows)


def count_rows_read(rows: int) -> None:
    """Count rows that were read from a stored part."""
    if _part is not None:
        _part.read(rows)
    else:
        progress.count_read(rows)


class PartCounts:
    """How much is done of the parts that are to be made: rows, or parts where nobody knows how many rows there are.

    Args:
        path: the file of their counts.
        rows: of the input of each part; 0 where nobody knows.
    """

    def __init__(self, path: Path, rows: Sequence[int]) -> None:
        self._path, self._rows = path, np.array(rows, np.int64)
        self._finished = np.zeros(len(rows), np.bool_)
        self.unit = "row" if self._rows.all() else "part"
        self.total = int(self._rows.sum()) if self.unit == "row" else len(rows)
        with contextlib.suppress(OSError):
            path.write_bytes(bytes(_BYTES * len(rows)))

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def finish(self, number: int) -> None:
        """Count a part as done."""
        self._finished[number] = True

    def __call__(self) -> int:
        """Return how much is done, in ``unit``."""
        if self.unit == "part":
            return int(self._finished.sum())
        return int(np.where(self._finished, self._rows, np.minimum(self._found(), self._rows)).sum())

    def further(self) -> str:
        """Return the end of a line: what is known besides."""
        if self.unit == "part":
            return f", {int(self._found().sum()):,} rows so far"
        return f", {int(self._finished.sum()):,} of {len(self._rows):,} parts"

    def _found(self) -> Integers:
        try:
            found = np.frombuffer(self._path.read_bytes(), np.int64)
        except OSError:
            found = np.zeros(0, np.int64)
        return found if len(found) == len(self._rows) else np.zeros_like(self._rows)
