"""Rows of one size put at their places in a file, in bounded memory and without temporary files.

While all rows fit into memory they are put in order there and written once. When they do not, the file itself is the
scratch space: it is cut into buckets of as many rows as fit, bucket b with the places ``[b * size, (b + 1) * size)``.
Rows are gathered until memory is full, and the rows of each bucket are appended to what the bucket's range of the file
holds already. Then each bucket is read, put in order and written back. In which order its rows came is known from their
places, so nothing else is stored.

Cost. Memory: ``memory`` bytes for rows, and 17 bytes a row for places. Disk: each row is written twice and read once,
in pieces of about ``memory ** 2 / size`` (160 KiB for a block of 100 GiB in 128 MiB of memory).
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from everytoken.outofcore.errors import ShuffleError
from everytoken.outofcore.shuffle import destinations, require_permutation

_COPIED_BYTES = 4 << 20


class RowScatter:
    """Give all rows in any pieces with `add`, then call `finish`: row r is at place ``position[r]``."""

    def __init__(self, file: BinaryIO, position: np.ndarray, items: int, dtype: np.dtype[Any], memory: int) -> None:
        """Prepare to fill the file from where it stands.

        Args:
            file: opened for reading and writing.
            position: a permutation of 0..n-1, int64 (n,), n the number of rows.
            memory: bytes that rows may take in memory; one row is always held.

        Raises:
            ShuffleError: ``position`` is not a permutation.
        """
        self._position = np.asarray(position, np.int64)
        require_permutation(self._position)
        self._file, self._start = file, file.tell()
        self._row_bytes = items * dtype.itemsize
        self._whole = len(self._position) * self._row_bytes <= memory
        copied = min(memory // 2, _COPIED_BYTES)
        self._copied_rows = max(1, copied // self._row_bytes)
        self._size = max(1, (memory - copied) // self._row_bytes)
        held = len(self._position) if self._whole else self._size
        self._rows = np.empty((held, items), dtype)
        self._held = self._done = 0
        self._filled = np.zeros(-(-len(self._position) // self._size), np.int64)

    def add(self, rows: np.ndarray) -> None:
        """Take the next rows, (n, items).

        Raises:
            ShuffleError: there are more than there are places.
        """
        if self._done + len(rows) > len(self._position):
            raise self._wrong_count(self._done + len(rows), "at least ")
        if self._whole:
            self._rows[self._position[self._done : self._done + len(rows)]] = rows
            self._done += len(rows)
            return
        while len(rows):
            taken = min(len(rows), self._size - self._held)
            self._rows[self._held : self._held + taken] = rows[:taken]
            self._held, self._done, rows = self._held + taken, self._done + taken, rows[taken:]
            if self._held == self._size:
                self._spill()

    def finish(self) -> None:
        """Put all rows in order; the file then stands behind them.

        Raises:
            ShuffleError: there are fewer than there are places.
        """
        if self._done != len(self._position):
            raise self._wrong_count(self._done)
        if self._whole:
            self._file.write(self._rows.data)
            return
        self._spill()
        came = destinations(self._position)  # the row at each place
        for start in range(0, len(came), self._size):
            order = destinations(np.argsort(came[start : start + self._size]))
            bucket = self._rows[: len(order)]
            self._file.seek(self._start + start * self._row_bytes)
            self._file.readinto(bucket.data)  # type: ignore[attr-defined]
            self._write(start, order)
        self._file.seek(self._start + len(came) * self._row_bytes)

    def _spill(self) -> None:
        """Append the rows in memory to their buckets."""
        bucket = self._position[self._done - self._held : self._done] // self._size
        order = np.argsort(bucket, kind="stable")
        ends = np.flatnonzero(np.diff(bucket[order], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            b = int(bucket[order[start]])
            self._write(b * self._size + int(self._filled[b]), order[start:end])
            self._filled[b] += end - start
            start = end
        self._held = 0

    def _write(self, place: int, order: np.ndarray) -> None:
        """Write the rows in memory that ``order`` names from a place on."""
        self._file.seek(self._start + place * self._row_bytes)
        for start in range(0, len(order), self._copied_rows):
            self._file.write(self._rows[order[start : start + self._copied_rows]].data)

    def _wrong_count(self, found: int, least: str = "") -> ShuffleError:
        return ShuffleError(
            f"there are {len(self._position)} places and {least}{found} rows; give the position of every row"
        )
