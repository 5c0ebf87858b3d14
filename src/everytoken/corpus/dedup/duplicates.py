"""Duplicates: documents whose text another document has, first in plan order wins, over all sources.

Documents are numbered by *position*: 0, 1, ... over the rows of all parts in plan order. Equal SHA-256 of the UTF-8
text means equal text, so no text is read. The grouping is done on disk, in the artifact's own temporary folder and
within a bound on memory, see `everytoken.outofcore.grouping`; whatever the bound, the same positions come out,
sorted.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from everytoken.address import ADDRESS_COLUMNS, Address, address_columns
from everytoken.arrays import Integers
from everytoken.corpus.dedup.near_duplicates import BUCKET_BYTES, NearRules
from everytoken.corpus.errors import SelectionError
from everytoken.outofcore import distinct, find_repeats
from everytoken.shards import Artifact, Built, Shards, canonical_json, versioned, write_text

DUPLICATES, NEAR_DUPLICATES, FIRSTS, _SOURCES = "duplicates.npy", "near_duplicates.npy", "firsts.npy", "sources.json"

_ROWS = 65_536


class DedupRules(BaseModel):
    """Which documents are duplicates.

    Attributes:
        exact: whether documents of equal text are.
        near: rules of near duplicates, or null for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    exact: bool
    near: NearRules | None = None


class DuplicateStatistics(TypedDict):
    """Statistics of `find_duplicates`."""

    rows: int
    duplicates: int
    near_duplicates: int
    by_source: dict[str, dict[str, int]]


@versioned("find_duplicates", 1, unrecorded=["memory"])
def find_duplicates(
    folder: Path, *, documents: Shards, buckets: Shards | None, rules: DedupRules, memory: int
) -> Built:
    """Find the exact and near duplicates among all documents.

    Files: ``duplicates.npy`` int64 (n, 2), (position, position of the first document with this text);
    ``near_duplicates.npy`` the same for near duplicates that are no exact ones, with the earliest document that shares
    a bucket; both sorted by position. ``firsts.npy`` int64 (4, m) has the address of each document that is named as
    first: position, number of the source in ``sources.json``, shard_index, row. All can be mapped into memory.

    Args:
        documents: with columns text_sha256, source, shard_index, row.
        buckets: `near_duplicates.find_buckets` of these documents by the same rules; None without near rules.
        memory: bound for the grouping, in bytes; the process itself needs about 200 MB more.

    Returns:
        Statistics: rows, duplicates and near duplicates, in all and ``by_source``.

    Raises:
        SelectionError: the buckets are not of these documents.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".grouping-") as place:
        exact = near = np.empty((0, 2), np.int64)
        if rules.exact:
            exact = find_repeats(_digests(documents), 4, memory, _new(place, "exact"))
        if rules.near is not None:
            keys = _bucket_keys(_of_same_rows(buckets, documents))
            near = find_repeats(keys, BUCKET_BYTES // 8, memory, _new(place, "near"))
        exact = _write_table(folder / DUPLICATES, len(exact), _slices(exact))
        only_near = sum(map(len, _besides(near, exact)))
        near = _write_table(folder / NEAR_DUPLICATES, only_near, _besides(near, exact))
        firsts = (some[:, 1] for pairs in (exact, near) for some in _slices(pairs))
        named = distinct(firsts, memory, _new(place, "firsts"))
        sources, by_source = _write_firsts(folder / FIRSTS, documents, named, exact, near)
    write_text(folder / _SOURCES, canonical_json(sources) + "\n")
    statistics = DuplicateStatistics(
        rows=documents.rows, duplicates=len(exact), near_duplicates=len(near), by_source=by_source
    )
    return Built(statistics, {"seconds": time.perf_counter() - started})


class Duplicates:
    """The found duplicates, mapped into memory: a look-up reads a few pages of the files."""

    def __init__(self, artifact: Artifact) -> None:
        self.exact = load_mapped(artifact.path(DUPLICATES))
        self.near = load_mapped(artifact.path(NEAR_DUPLICATES))
        self._firsts = load_mapped(artifact.path(FIRSTS))
        self._sources: list[str] = json.loads(artifact.path(_SOURCES).read_text(encoding="utf-8"))

    def addresses(self, positions: Integers) -> list[Address]:
        """Return the addresses of documents that are named as the first of a duplicate."""
        _, sources, shards, rows = self._firsts[:, np.searchsorted(self._firsts[0], positions)].tolist()
        names = [self._sources[number] for number in sources]
        return [Address(*address) for address in zip(names, shards, rows, strict=True)]


def load_mapped(path: Path) -> npt.NDArray[Any]:
    """Return an array whose file is mapped into memory, to be read only."""
    return cast(npt.NDArray[Any], np.load(path, mmap_mode="r"))


def between(table: Integers, start: int, stop: int) -> Integers:
    """Return the rows of a table, sorted by its first column, where that is in [start, stop)."""
    return table[_first_from(table, start) : _first_from(table, stop)]


def _first_from(table: Integers, position: int) -> int:
    low, high = 0, len(table)
    while low < high:  # np.searchsorted would copy the column of a mapped file
        middle = (low + high) // 2
        if table[middle, 0] < position:
            low = middle + 1
        else:
            high = middle
    return low


def _of_same_rows(buckets: Shards | None, documents: Shards) -> Shards:
    expected = [(part.name, part.rows) for part in documents]
    found = [] if buckets is None else [(part.name, part.rows) for part in buckets]
    if buckets is None or found != expected:
        raise SelectionError(
            f"the buckets are of {len(found)} parts with {sum(rows for _, rows in found):,} rows, the documents of "
            f"{len(expected)} with {sum(rows for _, rows in expected):,}; each document must have a row of buckets. "
            f"Make the buckets again with the near rules of this run."
        )
    return buckets


def _digests(documents: Shards) -> Iterator[tuple[Integers, Integers]]:
    """Yield positions and SHA-256 of the texts, int64 (n,) and (n, 4)."""
    position = 0
    for part in documents:
        for batch in part.batches(["text_sha256"]):
            yield np.arange(position, position + batch.num_rows), _words(batch.column(0), 32)
            position += batch.num_rows


def _bucket_keys(buckets: Shards) -> Iterator[tuple[Integers, Integers]]:
    """Yield positions and buckets, int64 (n,) and (n, 2): several of each document."""
    position = 0
    for part in buckets:
        for batch in part.batches(["buckets"]):
            column = batch.column(0)
            rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False).astype(np.int64)
            yield position + rows, _words(pc.list_flatten(column), BUCKET_BYTES)
            position += batch.num_rows


def _words(digests: pa.Array, width: int) -> Integers:
    """Return digests of ``width`` bytes as int64 (n, width / 8)."""
    fixed = digests.cast(pa.binary(width))  # refuses any other width
    words = width // 8
    flat = np.frombuffer(fixed.buffers()[1] or b"", np.int64, len(fixed) * words, fixed.offset * width)
    return flat.reshape(-1, words)


def _new(place: str, name: str) -> Path:
    folder = Path(place, name)
    folder.mkdir()
    return folder


def _slices(table: Integers) -> Iterator[Integers]:
    return (table[start : start + _ROWS] for start in range(0, len(table), _ROWS))


def _besides(pairs: Integers, others: Integers) -> Iterator[Integers]:
    """Yield the rows of a table whose position is not in another one."""
    for some in _slices(pairs):
        there = between(others, int(some[0, 0]), int(some[-1, 0]) + 1)[:, 0]
        yield some[~np.isin(some[:, 0], there)]


def _write_table(path: Path, count: int, slices: Iterator[Integers]) -> Integers:
    """Write the rows of ``slices``, ``count`` in all; return them mapped into memory."""
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(count, 2))
    filled = 0
    for some in slices:
        table[filled : filled + len(some)] = some
        filled += len(some)
    table.flush()
    return table


def _write_firsts(
    path: Path, documents: Shards, named: Integers, exact: Integers, near: Integers
) -> tuple[list[str], dict[str, dict[str, int]]]:
    """Write the addresses of the positions in ``named``; return the sources by number, and the counts of each."""
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(4, len(named)))
    sources: dict[str, int] = {}
    counts: dict[str, dict[str, int]] = {}
    start = filled = 0
    for part in documents:
        for batch in part.batches(ADDRESS_COLUMNS):
            stop = start + batch.num_rows
            columns = address_columns(batch)
            names = columns.sources.to_pylist()
            numbers = np.array([sources.setdefault(name, len(sources)) for name in names])
            of_row = numbers[columns.source]
            low, high = np.searchsorted(named, (start, stop))
            here = named[low:high] - start
            addresses = (here + start, of_row[here], columns.shard_index[here], columns.row[here])
            table[:, filled : filled + len(here)] = addresses
            filled += len(here)
            dropped = [between(pairs, start, stop)[:, 0] - start for pairs in (exact, near)]
            for name, number in zip(names, numbers, strict=True):
                entry = counts.setdefault(name, dict.fromkeys(("rows", "duplicates", "near_duplicates"), 0))
                for key, positions in zip(entry, (slice(None), *dropped), strict=True):
                    entry[key] += int(np.count_nonzero(of_row[positions] == number))
            start = stop
    table.flush()
    return list(sources), dict(sorted(counts.items()))
