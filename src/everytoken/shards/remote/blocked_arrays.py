"""Arrays over files that may be remote: a memory map where the file is here, else blocks that are fetched when read.

`map_values` and `map_npy` are the one seam between readers of streams and indexes and the cache. A `BlockedArray` gives
what a reader of a mapped array asks for: entries, slices, rows by number, and a binary search.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from everytoken.shards.remote.blocks import BlockedFile

_HEADER = 1 << 12  # bytes that hold the header of an array of NumPy


class BlockedArray:
    """An array, 1-D or 2-D, in a remote file. What is read of it is a copy.

    Attributes:
        shape: (n,), or (n, columns).
        dtype: of its entries.
    """

    def __init__(self, file: BlockedFile, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> None:
        self._file, self._offset = file, offset
        self.dtype, self.shape = dtype, shape
        self._row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, kind: type) -> BlockedArray:
        """Return itself: it is as plain as an array of that kind would be."""
        return self

    def reshape(self, *shape: int) -> BlockedArray:
        """Return the same entries as rows.

        Raises:
            ValueError: the shape has another number of entries.
        """
        if int(np.prod(shape, dtype=np.int64)) != self.size:
            raise ValueError(f"{self.size} entries cannot be an array of the shape {shape}")
        return BlockedArray(self._file, self.dtype, self._offset, shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all of it in memory."""
        return self._rows(0, len(self)).astype(dtype or self.dtype, copy=False)

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, key: Any) -> Any:
        """Return what a slice, a number or an array of numbers says, copied."""
        if isinstance(key, tuple):
            first, *rest = key
            if isinstance(first, int | np.integer):
                return self[first][tuple(rest)]
            return self[first][(slice(None), *rest)]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step < 0:
                return self._rows(stop + 1, start + 1)[::step]
            return self._rows(start, stop)[::step]
        if isinstance(key, int | np.integer):
            number = range(len(self))[int(key)]
            return self._rows(number, number + 1)[0]
        return self._gathered(np.asarray(key))

    def _rows(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if rows.size:
            self._file.read(self._offset + start * self._row, rows.reshape(-1).view(np.uint8))
        return rows

    def _gathered(self, numbers: np.ndarray) -> np.ndarray:
        if numbers.dtype == bool:
            numbers = np.flatnonzero(numbers)
        numbers = numbers.astype(np.int64, copy=False)
        flat, count = numbers.ravel(), len(self)
        if flat.size and (int(flat.min()) < -count or int(flat.max()) >= count):
            raise IndexError(f"there are {count} entries, asked for {int(flat.min())} to {int(flat.max())}")
        starts = self._offset + np.where(flat < 0, flat + count, flat) * self._row
        found = np.empty((len(flat), self._row), np.uint8)
        block = self._file.table.block
        first, last = starts // block, (starts + self._row - 1) // block
        order = np.argsort(first, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(first[order])) + 1):
            within = where[first[where] == last[where]]
            if len(within):
                held = self._file.block(int(first[within[0]]))
                rows = np.ndarray((len(held) - self._row + 1, self._row), np.uint8, held.data, 0, (1, 1))
                found[within] = rows[starts[within] - int(first[within[0]]) * block]
            for row in where[first[where] != last[where]].tolist():
                self._file.read(int(starts[row]), found[row])
        return found.view(self.dtype).reshape(*numbers.shape, *self.shape[1:])

    def searchsorted(self, values: Any, side: str = "left", sorter: None = None) -> Any:
        """Return where values go among its entries, which are in order, as `numpy.searchsorted` does."""
        wanted = np.asarray(values)
        low, high = np.zeros(wanted.shape, np.int64), np.full(wanted.shape, len(self), np.int64)
        while (open_ := low < high).any():
            middle = (low + high) // 2
            found = self._gathered(np.where(open_, middle, 0))
            right = (found <= wanted if side == "right" else found < wanted) & open_
            low, high = np.where(right, middle + 1, low), np.where(open_ & ~right, middle, high)
        return low if low.ndim else np.int64(low)


def map_values(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> np.ndarray:
    """Return entries of a file of values alone, (count,), from the byte ``offset`` on: mapped, or in blocks."""
    if not count:
        return np.empty(0, dtype)  # an empty range cannot be mapped
    if (file := BlockedFile.at(path)) is None:
        return np.memmap(path, dtype, "r", offset, (count,))
    return cast(np.ndarray, BlockedArray(file, dtype, offset, (count,)))


def map_npy(path: Path, rows: int) -> np.ndarray:
    """Return the array of a ``.npy`` file: mapped, or in blocks.

    Args:
        rows: that it should have; one without rows is read, as an empty file cannot be mapped.

    Raises:
        ValueError, OSError: it is none.
    """
    if (file := BlockedFile.at(path)) is not None:
        shape, dtype, offset = npy_header(path, file)
        return cast(np.ndarray, BlockedArray(file, dtype, offset, shape))
    array: np.ndarray = np.load(path, mmap_mode="r" if rows else None)
    return array


def npy_header(path: Path, file: BlockedFile) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, type of the entries and the byte where they begin.

    Raises:
        ValueError: it is no array, or its size is another one.
    """
    head = np.empty(min(_HEADER, file.size), np.uint8)
    file.read(0, head)
    stream = io.BytesIO(head.tobytes())
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(stream)
    if in_columns or file.size != stream.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise ValueError(f"{path} has {file.size} bytes, its header says {shape} of {dtype}")
    return shape, dtype, stream.tell()
