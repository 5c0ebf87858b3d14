"""Grouping on disk: which rows share a key with an earlier row, in bounded memory however many rows there are.

Keys are digests, so they are spread evenly over hash buckets. Rows ``(position, key)`` go to a file of their bucket;
then each bucket is sorted by itself, a chunk at a time, with only the first row of every key carried on from chunk to
chunk (one text that comes ten million times fills no memory). The pairs ``(position, first)`` that are found go to
files by range of positions, and each range is sorted. Every file is read once; a step holds at most ``memory`` bytes of
them, and takes as much again while it sorts and copies.
DuckDB's own spilling did not hold such a bound: 80 million keys ran out of 200 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Integers

_BLOCK_SHARE = 8  # a block of rows is this part of the memory; sorting and copying it needs a few times its size
_LEAST_BLOCK = 1 << 16
_SLICE = 1 << 15


def begins(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a run of equal values begins, bool (n,); of values (n,) or rows (n, columns)."""
    result = np.ones(len(values), np.bool_)
    differ = values[1:] != values[:-1]
    result[1:] = differ if differ.ndim == 1 else differ.any(axis=1)
    return result


def block_rows(columns: int, memory: int) -> int:
    """Return how many rows of 64-bit columns are held at once."""
    return max(_LEAST_BLOCK, memory // _BLOCK_SHARE) // (8 * columns)


class Scatter:
    """Rows of 64-bit columns, gathered in a block and appended to one file for each bucket."""

    def __init__(
        self, folder: Path, columns: int, memory: int, buckets: int, bucket_of: Callable[[Integers], npt.NDArray[Any]]
    ) -> None:
        folder.mkdir()
        self._folder, self._columns, self._bucket_of = folder, columns, bucket_of
        self._bucket_type = np.min_scalar_type(buckets)  # up to 65,535, sorted by radix
        self._block = np.empty((block_rows(columns, memory), columns), np.int64)
        self._filled = 0

    def add(self, rows: Integers) -> None:
        """Add rows, int64 (n, columns)."""
        while len(rows):
            some = rows[: len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(some)] = some
            self._filled += len(some)
            rows = rows[len(some) :]
            if self._filled == len(self._block):
                self.flush()

    def flush(self) -> None:
        """Append what is gathered to the files."""
        if not self._filled:
            return
        rows = self._block[: self._filled]
        buckets = self._bucket_of(rows).astype(self._bucket_type)
        order = np.argsort(buckets, kind="stable")  # rows of a bucket stay in the order in which they came
        rows, buckets = rows[order], buckets[order]
        starts = np.flatnonzero(begins(buckets))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
            with self._path(int(buckets[start])).open("ab") as file:
                file.write(rows[start:stop].data)
        self._filled = 0

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:06d}"

    def chunks(self, bucket: int, rows: int) -> Iterator[Integers]:
        """Yield the rows of a bucket in the order in which they came, at most so many at once; then delete its file."""
        path = self._path(bucket)
        if not path.exists():
            return
        with path.open("rb") as file:
            while data := file.read(rows * 8 * self._columns):
                yield np.frombuffer(data, np.int64).reshape(-1, self._columns)
        path.unlink()

    def release(self) -> None:
        """Append what is gathered, and let go of the block."""
        self.flush()
        self._block = self._block[:0]


def find_repeats(
    keys: Iterable[tuple[Integers, Integers]], words: int, count: int, rows: int, memory: int, folder: Path
) -> Integers:
    """Return (position, first), int64 (n, 2), sorted: rows of which an earlier one has a key, and the first of those.

    Args:
        keys: batches of positions, int64 (n,), in increasing order, and keys, int64 (n, words). A position may have
            several keys.
        words: of a key.
        count: keys of all batches, at most.
        rows: number of positions.
        memory: bound on it, in bytes.
        folder: an empty one, for the files.

    Returns:
        An array that is mapped from a file in ``folder``.
    """
    pairs = _Ranges(folder / "pairs", 2, rows, count, memory)
    columns = 1 + words
    at_once = block_rows(columns, memory)
    buckets = math.ceil(count / at_once)
    scatter = Scatter(folder / "keys", columns, memory, buckets, lambda block: block[:, 1].view(np.uint64) % buckets)
    for positions, of_positions in keys:
        scatter.add(np.concatenate([positions[:, None], of_positions], axis=1))
    scatter.release()
    for bucket in range(buckets):
        for found in _repeats(scatter.chunks(bucket, at_once)):
            pairs.add(found)
    return pairs.sorted(folder / "sorted")


def _repeats(chunks: Iterable[Integers]) -> Iterator[Integers]:
    """Yield (position, first) of the rows of a bucket whose key an earlier row has; chunks come in order."""
    firsts: Integers | None = None
    for chunk in chunks:
        together = chunk if firsts is None else np.concatenate([firsts, chunk])
        order = np.argsort(together[:, 1], kind="stable")
        starts = begins(together[order, 1])
        alone = starts & np.append(starts[1:], True)  # by the first word of the key already
        shared = together[order[~alone]]
        shared = shared[np.lexsort(tuple(shared.T))]  # by key from its last word, then by position
        is_first = begins(shared[:, 1:])
        first = shared[np.maximum.accumulate(np.where(is_first, np.arange(len(shared)), 0)), 0]
        yield np.stack([shared[~is_first, 0], first[~is_first]], axis=1)
        firsts = np.concatenate([together[order[alone]], shared[is_first]])


class _Ranges:
    """Rows whose first column is a position, sorted by range of positions; the least row of each position is kept."""

    def __init__(self, folder: Path, columns: int, rows: int, count: int, memory: int) -> None:
        self._at_once = block_rows(columns, memory)
        width = max(1, self._at_once * rows // max(1, count))  # so that a range fits a block
        self._ranges = math.ceil(rows / width)
        self._columns = columns
        self._scatter = Scatter(folder, columns, memory, self._ranges, lambda found: found[:, 0] // width)
        self.add = self._scatter.add

    def sorted(self, path: Path) -> Integers:
        """Write the rows in order to ``path``; return them mapped into memory."""
        self._scatter.release()
        count = 0
        with path.open("wb") as file:
            for number in range(self._ranges):
                rows = np.concatenate(
                    [np.empty((0, self._columns), np.int64), *self._scatter.chunks(number, self._at_once)]
                )
                rows = rows[np.lexsort(tuple(rows.T[::-1]))]
                kept = rows[begins(rows[:, 0])]
                file.write(kept.data)
                count += len(kept)
        if not count:
            return np.empty((0, self._columns), np.int64)
        return np.memmap(path, np.int64, mode="r", shape=(count, self._columns))


def distinct(batches: Iterable[Integers], rows: int, count: int, memory: int, folder: Path) -> Integers:
    """Return the distinct positions of all batches, int64 (n,), sorted; arguments as those of `find_repeats`."""
    ranges = _Ranges(folder / "positions", 1, rows, count, memory)
    for batch in batches:
        ranges.add(batch[:, None])
    return ranges.sorted(folder / "distinct")[:, 0]


def slices(count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover 0 to ``count``, of bounded size."""
    return ((start, min(start + _SLICE, count)) for start in range(0, count, _SLICE))
