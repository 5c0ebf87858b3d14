"""Grouping on disk: which rows share a key with an earlier row, in bounded memory however many rows there are.

Rows ``(key, position)`` are sorted by `everytoken.outofcore.external_sort`, so that rows of one key follow each other
and the first is the earliest. The pairs ``(position, first)`` that are found are sorted in the same way. One text that
comes ten million times fills no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Integers
from everytoken.outofcore.external_sort import ExternalSort


def begins(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a run of equal values begins, bool (n,); of values (n,) or rows (n, columns)."""
    result = np.ones(len(values), np.bool_)
    differ = values[1:] != values[:-1]
    result[1:] = differ if differ.ndim == 1 else differ.any(axis=1)
    return result


def find_repeats(keys: Iterable[tuple[Integers, Integers]], words: int, memory: int, folder: Path) -> Integers:
    """Return (position, first), int64 (n, 2), sorted: rows of which an earlier one has a key, and the first of those.

    Args:
        keys: batches of positions, int64 (n,), and keys, int64 (n, words). A position may have several keys.
        memory: bound on it, in bytes.
        folder: an empty one, for the files.

    Returns:
        An array that is mapped from a file in ``folder``.
    """
    rows = (np.concatenate([of_positions, positions[:, None]], axis=1) for positions, of_positions in keys)
    pairs = _repeats(_sorted(rows, words + 1, memory // 2, folder))
    return _written(_first_rows(_sorted(pairs, 2, memory // 2, folder)), 2, folder / "sorted")


def distinct(batches: Iterable[Integers], memory: int, folder: Path) -> Integers:
    """Return the distinct positions of all batches, int64 (n,), sorted; arguments as those of `find_repeats`."""
    rows = (batch[:, None] for batch in batches)
    return _written(_first_rows(_sorted(rows, 1, memory, folder)), 1, folder / "distinct")[:, 0]


def _sorted(rows: Iterable[Integers], columns: int, memory: int, folder: Path) -> Iterator[Integers]:
    """Yield rows, int64 (n, columns), in the order of their columns, each taken as uint64."""
    dtype = np.dtype([(str(column), np.uint64) for column in range(columns)])
    sort = ExternalSort(dtype, memory, folder, columns)
    for some in rows:
        sort.add(np.ascontiguousarray(some).view(dtype)[:, 0])
    for records in sort.sorted():
        yield records.view(np.int64).reshape(-1, columns)


def _repeats(batches: Iterable[Integers]) -> Iterator[Integers]:
    """Yield (position, first) of the rows whose key an earlier row has; rows are a key and a position, sorted."""
    last = None  # a row of the key that was last, with its first position
    for rows in batches:
        together = rows if last is None else np.concatenate([last, rows])
        is_first = begins(together[:, :-1])
        firsts = together[np.maximum.accumulate(np.where(is_first, np.arange(len(together)), 0))]
        yield np.stack([together[~is_first, -1], firsts[~is_first, -1]], axis=1)
        last = firsts[-1:]


def _first_rows(batches: Iterable[Integers]) -> Iterator[Integers]:
    """Yield the first row of each value of the first column; rows are sorted."""
    last = None
    for rows in batches:
        first = begins(rows[:, 0])
        first[0] &= rows[0, 0] != last
        yield rows[first]
        last = rows[-1, 0]


def _written(batches: Iterable[Integers], columns: int, path: Path) -> Integers:
    """Write rows to a file; return them mapped into memory."""
    with path.open("wb") as file:
        for rows in batches:
            file.write(rows.tobytes())
    if not path.stat().st_size:
        return np.empty((0, columns), np.int64)
    return np.memmap(path, np.int64, mode="r").reshape(-1, columns)
