"""Rows of two sides in pairs: the k-th window and the k-th published row of one key.

All of it is sorting on disk (`everytoken.outofcore.ExternalSort`), so a key that a million rows share fills no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Integers
from everytoken.outofcore import ExternalSort, begins
from everytoken.reflections.published.keys import KEYED, PUBLISHED_SIDE, WINDOW_SIDE, row_numbers, sides

LEFT = np.dtype([("id", np.uint64), ("place", np.uint64), ("ambiguous", np.uint64)])
"""A row without a partner; ``ambiguous``: other rows of its key have one."""

_COUNTED = np.dtype(
    [("key", np.uint64), ("rest", np.uint64), ("occurrence", np.uint64), ("place", np.uint64), ("id", np.uint64)]
)
_CHUNK = 1 << 18
_CHANGED, _AMBIGUOUS, _GONE, _NOT_PUBLISHED = 0, 1, 2, -1  # the first three are places in PUBLISHED_FAULTS


def pair_rows(
    rows: Iterable[npt.NDArray[Any]], memory: int, scratch: Path
) -> Iterator[tuple[Integers, Integers, npt.NDArray[Any]]]:
    """Yield published rows and their windows, int64 (n,) each, and rows without a partner, `LEFT` (m,).

    Args:
        rows: of both sides in any order, `KEYED`.
    """
    sort = ExternalSort(KEYED, memory // 2, scratch, 3)
    for records in rows:
        sort.add(records)
    counted = ExternalSort(_COUNTED, memory // 2, scratch, 3)
    for records in _with_occurrences(sort.sorted()):
        counted.add(records)
    yield from _paired(counted.sorted())


def classified(rows: Iterable[npt.NDArray[Any]], scratch: Path) -> Iterator[tuple[npt.NDArray[np.uint64], Integers]]:
    """Yield places and what their faults are, numbers in ``PUBLISHED_FAULTS``; -1: a window that was not published.

    Args:
        rows: without a partner, `LEFT`, sorted by id and place.
    """
    names = (scratch / "left_ids", scratch / "left_places", scratch / "left_ambiguous")
    with ExitStack() as files:
        opened = [files.enter_context(name.open("wb")) for name in names]
        for records in rows:
            for column, file in zip(LEFT.names or (), opened, strict=True):
                file.write(np.ascontiguousarray(records[column]).tobytes())
    if not names[0].stat().st_size:
        return
    ids, places, ambiguous = (np.memmap(name, np.uint64, mode="r") for name in names)
    for start in range(0, len(ids), _CHUNK):
        here = slice(start, start + _CHUNK)
        first, last = np.searchsorted(ids, ids[here], "left"), np.searchsorted(ids, ids[here], "right") - 1
        on_both_sides = (
            (ids[here] > 0) & (sides(places[first]) == WINDOW_SIDE) & (sides(places[last]) == PUBLISHED_SIDE)
        )
        is_published = sides(places[here]) == PUBLISHED_SIDE
        found = np.select(
            [ambiguous[here] > 0, on_both_sides, is_published], [_AMBIGUOUS, _CHANGED, _GONE], _NOT_PUBLISHED
        )
        yield np.asarray(places[here]), found


def _with_occurrences(batches: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """Yield `_COUNTED` records of `KEYED` ones in order: which of the rows of its key on its side each is."""
    last, count = None, 0  # the key and side that came last, and how many rows of it
    for records in batches:
        groups = np.stack([records["key"], records["rest"], sides(records["place"])], axis=1)
        starts = np.flatnonzero(begins(groups))
        sizes = np.diff(np.append(starts, len(records)))
        occurrence = np.arange(len(records)) - np.repeat(starts, sizes)
        is_more = last == tuple(groups[0].tolist())
        if is_more:
            occurrence[: sizes[0]] += count
        count = int(sizes[-1]) + (count if is_more and len(starts) == 1 else 0)
        last = tuple(groups[-1].tolist())
        counted = np.empty(len(records), _COUNTED)
        for name in KEYED.names or ():
            counted[name] = records[name]
        counted["occurrence"] = (occurrence.astype(np.uint64) << np.uint64(1)) | sides(records["place"])
        yield counted


def _paired(batches: Iterable[npt.NDArray[Any]]) -> Iterator[tuple[Integers, Integers, npt.NDArray[Any]]]:
    held = np.empty(0, _COUNTED)  # a row whose partner may come first in the next batch
    last, last_has_pairs = None, False  # the key that came last, and whether its rows have pairs
    for batch in chain(batches, [None]):
        rows = held if batch is None else np.concatenate([held, batch])
        if not len(rows):
            continue
        leads = np.zeros(len(rows), bool)
        leads[:-1] = ~begins(np.stack([rows["key"], rows["rest"], rows["occurrence"] >> np.uint64(1)], axis=1))[1:]
        follows = np.append(False, leads[:-1])
        done = len(rows) - (batch is not None and not follows[-1])
        held, rows, leads, follows = rows[done:], rows[:done], leads[:done], follows[:done]
        if not done:
            continue
        keys = np.stack([rows["key"], rows["rest"]], axis=1)
        starts = np.flatnonzero(begins(keys))
        has_pairs = leads[starts]  # the first occurrence has a partner, or no row of the key has
        has_pairs[0] = last_has_pairs if last == tuple(keys[0].tolist()) else has_pairs[0]
        last, last_has_pairs = tuple(keys[-1].tolist()), bool(has_pairs[-1])
        alone = ~(leads | follows)
        left = np.empty(int(np.count_nonzero(alone)), LEFT)
        left["id"], left["place"] = rows["id"][alone], rows["place"][alone]
        left["ambiguous"] = np.repeat(has_pairs, np.diff(np.append(starts, done)))[alone]
        yield row_numbers(rows["place"][follows]), row_numbers(rows["place"][leads]), left
