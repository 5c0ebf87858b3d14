"""The table of all scores: what to publish, and what scores the same corpus again without a model.

``classifications_00000.parquet`` ... has one row for each distinct id over all parts, the first in plan order: ``id,
id_type, safety_score, safety_probs``. An id does not tell everything: rows without id, and rows whose id was first seen
with another score (an upstream that gives one id to two texts). These are in ``by_address_00000.parquet`` ... by
``source, shard_index, row``. In a mixture that uses documents more than once an address does not tell everything
either, as a row has the score of the first text of its id in its part: there, if any id has two scores, such rows are
in ``by_use_00000.parquet`` ... by address and ``part``, its number. All together give every row its score back,
exactly. A row that nothing knows a score of is in none of them, or, where its id has one, by address with null
probabilities.

While all scores are at hand, the documents *near the threshold* are counted. The margin of a class is the probability
of the most probable class minus that of the second; the margin of a threshold t is the distance between the most
probable class at or above t and the most probable one below it. A document within eps of changing its class, or its
side of the threshold, is one whose margin is at most eps: a model that computes a little differently may put it
elsewhere.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS, address_columns
from everytoken.arrays import Flags, Integers, SingleFloats
from everytoken.corpus.dedup import between
from everytoken.corpus.documents import DOCUMENTS, N_CLASSES, SCORE_FIELDS, with_fields
from everytoken.outofcore import find_repeats
from everytoken.shards import Built, Shards, versioned

FILE_ROWS = 5_000_000
_GROUP_ROWS = 65_536


SCORES_BY_ID = with_fields(pa.schema([DOCUMENTS.field("id"), DOCUMENTS.field("id_type")]), SCORE_FIELDS)
SCORES_BY_ADDRESS = with_fields(pa.schema([DOCUMENTS.field(name) for name in ADDRESS_COLUMNS]), SCORE_FIELDS)
SCORES_BY_USE = with_fields(
    pa.schema([*SCORES_BY_ADDRESS][:-2]).append(pa.field("part", pa.int32(), False)), SCORE_FIELDS
)


@versioned("collect_classifications", 2, unrecorded=["memory"])
def collect_classifications(folder: Path, *, documents: Shards, near: Sequence[float], memory: int) -> Built:
    """Write the classifications of all documents; see the module docstring for the files.

    Args:
        near: the eps for which documents near a threshold are counted.

    Returns:
        Statistics: ``rows``; ``classifications``, the distinct ids; ``by_address`` and ``by_use``, the rows
        of these tables; ``without_score``;
        ``score_is_not_argmax``, rows whose score is not their most probable class; and of each source under
        ``by_source`` the distinct ids by class (``unique_by_class``) and ``near``, by class and eps the rows
        ``of_class`` and ``of_threshold`` 1 to 5 whose margin is at most eps.
    """
    started = time.perf_counter()
    counts = _Counts(near)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".grouping-") as place:
        repeats = _find(documents, _id_keys, 2, memory, Path(place, "ids"))
        same = _find(documents, _score_keys, 6, memory, Path(place, "scores"))
        several = _differ(repeats, same) and len(_find(documents, _address_keys, 3, memory, Path(place, "addresses")))
        by_id = _Table(folder, "classifications", SCORES_BY_ID)
        by_address = _Table(folder, "by_address", SCORES_BY_ADDRESS)
        by_use = _Table(folder, "by_use", SCORES_BY_USE)
        for position, batch in _batches(documents):
            scored, with_id = _is_valid(batch, "safety_probs"), _is_valid(batch, "id")
            first, other = _first_and_other(repeats, same, position, batch.num_rows)
            other &= with_id
            by_id.write(batch, scored & with_id & first)
            by_address.write(batch, (scored & ~with_id) | (other & (not several)))
            by_use.write(batch, other & bool(several))
            counts.add(batch, scored, scored & with_id & first)
        for table in (by_id, by_address, by_use):
            table.close()
    without_score, not_argmax, by_source = counts.result()
    statistics = ClassificationStatistics(
        rows=documents.rows,
        classifications=by_id.rows,
        by_address=by_address.rows,
        by_use=by_use.rows,
        without_score=without_score,
        score_is_not_argmax=not_argmax,
        by_source=by_source,
    )
    return Built(statistics, {"seconds": time.perf_counter() - started})


class IdScores(TypedDict):
    """Of a source: distinct ids by class, and by eps, margin and class the rows that are near."""

    unique_by_class: dict[str, int]
    near: dict[str, dict[str, dict[str, int]]]


class ClassificationStatistics(TypedDict):
    """Statistics of `collect_classifications`."""

    rows: int
    classifications: int
    by_address: int
    by_use: int
    without_score: int
    score_is_not_argmax: int
    by_source: dict[str, IdScores]


Keys = Iterator[tuple[Integers, Integers]]


def _find(documents: Shards, keys: Callable[[Shards], Keys], words: int, memory: int, place: Path) -> Integers:
    """Return (position, first) of the rows whose key an earlier row has, int64 (n, 2), sorted."""
    place.mkdir()
    return find_repeats(keys(documents), words, memory, place)


def _id_keys(documents: Shards) -> Keys:
    """Yield positions and keys of the rows that have an id: 128 bits of SHA-256 of it."""
    for position, batch in _batches(documents):
        there = np.flatnonzero(_is_valid(batch, "id"))
        yield position + there, _id_words(batch.take(pa.array(there)))


def _score_keys(documents: Shards) -> Keys:
    """Yield positions and keys of the rows that have an id: of it, the score (-1 for none) and the probabilities."""
    for position, batch in _batches(documents):
        there = np.flatnonzero(_is_valid(batch, "id"))
        some = batch.take(pa.array(there))
        scored = _is_valid(some, "safety_probs")
        probabilities = np.zeros((len(there), N_CLASSES), np.float32)
        probabilities[scored] = _probabilities(some)
        scores = np.where(scored, some.column("safety_score").to_numpy(), -1).astype(np.int64)
        yield position + there, np.concatenate([_id_words(some), scores[:, None], probabilities.view(np.int64)], axis=1)


def _address_keys(documents: Shards) -> Keys:
    """Yield positions and addresses, the source by a number."""
    numbers: dict[str, int] = {}
    for position, batch in _batches(documents):
        names, source, *rest = address_columns(batch)
        named = np.array([numbers.setdefault(name, len(numbers)) for name in names.to_pylist()], np.int64)
        columns = (named[source], *rest)
        yield position + np.arange(batch.num_rows), np.stack([column.astype(np.int64) for column in columns], axis=1)


def _id_words(batch: pa.RecordBatch) -> Integers:
    ids = zip(batch.column("id_type").to_pylist(), batch.column("id").to_pylist(), strict=True)
    digests = (hashlib.sha256(f"{kind}\0{identifier}".encode()).digest()[:16] for kind, identifier in ids)
    return np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)


def _is_valid(batch: pa.RecordBatch, column: str) -> Flags:
    return np.asarray(batch.column(column).is_valid().to_numpy(zero_copy_only=False))


def _differ(repeats: Integers, same: Integers) -> bool:
    """Return whether a row has another score than the first row of its id."""
    slices = (repeats[start : start + _GROUP_ROWS] for start in range(0, len(repeats), _GROUP_ROWS))
    return any(_has_other_score(some, same).any() for some in slices)


def _has_other_score(repeats: Integers, same: Integers) -> Flags:
    """Return which of some rows of ``repeats`` are not in ``same`` with the same first row, bool (n,)."""
    if not len(repeats):
        return np.empty(0, np.bool_)
    of_score = between(same, int(repeats[0, 0]), int(repeats[-1, 0]) + 1)
    found = np.append(of_score, [[-1, -1]], axis=0)[np.searchsorted(of_score[:, 0], repeats[:, 0])]
    return np.asarray((found != repeats).any(axis=1))


_COLUMNS = ["id", "id_type", *ADDRESS_COLUMNS, "safety_score", "safety_probs"]


def _batches(documents: Shards) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield positions and rows in batches of about `_GROUP_ROWS`, however small the parts are."""
    start = rows = 0
    gathered: list[pa.RecordBatch] = []
    for part in documents:
        for batch in part.batches(_COLUMNS):
            gathered.append(
                batch.append_column(
                    SCORES_BY_USE.field("part"), pa.array(np.full(batch.num_rows, part.index, np.int32))
                )
            )
            rows += batch.num_rows
            if rows >= _GROUP_ROWS:
                yield start, pa.concat_batches(gathered)
                start, rows, gathered = start + rows, 0, []
    if gathered:
        yield start, pa.concat_batches(gathered)


def _first_and_other(repeats: Integers, same: Integers, start: int, rows: int) -> tuple[Flags, Flags]:
    """Return which of the rows from ``start`` are the first of their id, and which have another score than that one."""
    first, other = np.ones(rows, np.bool_), np.zeros(rows, np.bool_)
    of_id = between(repeats, start, start + rows)
    first[of_id[:, 0] - start] = False
    other[of_id[:, 0] - start] = _has_other_score(of_id, same)
    return first, other


def _probabilities(batch: pa.RecordBatch) -> SingleFloats:
    """Return the probabilities of rows that have some, float32 (n, 6)."""
    flat = batch.column("safety_probs").drop_null().flatten().to_numpy()
    return np.asarray(flat, np.float32).reshape(-1, N_CLASSES)


class _Counts:
    """What is counted on the way, by source."""

    def __init__(self, near: Sequence[float]) -> None:
        self._near = near
        self._without_score = self._not_argmax = 0
        self._unique: dict[str, npt.NDArray[np.int64]] = {}
        self._within: dict[str, npt.NDArray[np.int64]] = {}  # (eps, class margin and 5 thresholds, class)

    def add(self, batch: pa.RecordBatch, scored: Flags, unique: Flags) -> None:
        self._without_score += int(np.count_nonzero(~scored))
        probabilities = _probabilities(batch)
        scores = batch.column("safety_score").to_numpy()
        of_scored = scores[scored]
        self._not_argmax += int(np.count_nonzero(probabilities.argmax(axis=1) != of_scored))
        margins = score_margins(probabilities)
        sources = batch.column("source").dictionary_encode()
        numbers = sources.indices.to_numpy()
        for number, source in enumerate(sources.dictionary.to_pylist()):
            here = numbers == number
            counted = np.bincount(scores[here & unique], minlength=N_CLASSES)
            self._unique[source] = self._unique.get(source, 0) + counted
            of_source = here[scored]
            within = [
                [np.bincount(of_scored[of_source & (margin <= eps)], minlength=N_CLASSES) for margin in margins.T]
                for eps in self._near
            ]
            self._within[source] = self._within.get(source, 0) + np.array(within)

    def result(self) -> tuple[int, int, dict[str, IdScores]]:
        """Return the rows without a score, those whose score is not their most probable class, and the sources."""
        by_source = {source: self._of_source(source) for source in sorted(self._unique)}
        return self._without_score, self._not_argmax, by_source

    def _of_source(self, source: str) -> IdScores:
        names = ["of_class", *(f"of_threshold_{t}" for t in range(1, N_CLASSES))]
        near = {
            str(eps): {
                name: {str(k): int(n) for k, n in enumerate(of_margin)}
                for name, of_margin in zip(names, of_eps, strict=True)
            }
            for eps, of_eps in zip(self._near, self._within[source], strict=True)
        }
        return {"unique_by_class": {str(k): int(n) for k, n in enumerate(self._unique[source])}, "near": near}


def score_margins(probabilities: SingleFloats) -> npt.NDArray[np.float32]:
    """Return the margins of rows (n, 6), float32 (n, 6): of the class, then of the thresholds 1 to 5."""
    ordered = np.sort(probabilities, axis=1)
    margins = [ordered[:, -1] - ordered[:, -2]]
    for threshold in range(1, N_CLASSES):
        above, below = probabilities[:, threshold:].max(axis=1), probabilities[:, :threshold].max(axis=1)
        margins.append(np.abs(above - below))
    return np.stack(margins, axis=1)


class _Table:
    """Rows in parquet files of `FILE_ROWS` rows; there is always a first one, if only with the columns."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self.schema, self.rows = schema, 0
        self._folder, self._name = folder, name
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._in_file = self._files = 0
        self._writer = self._open()

    def _open(self) -> pq.ParquetWriter:
        path = self._folder / f"{self._name}_{self._files:05d}.parquet"
        self._files, self._in_file = self._files + 1, 0
        return pq.ParquetWriter(path, self.schema, compression="zstd", write_page_checksum=True)

    def write(self, batch: pa.RecordBatch, chosen: Flags) -> None:
        batch = batch.select(self.schema.names).filter(pa.array(chosen)).cast(self.schema)
        self.rows += batch.num_rows
        while batch.num_rows:
            if self._in_file == FILE_ROWS:
                self._writer.close()
                self._writer = self._open()
            some = batch.slice(0, min(_GROUP_ROWS - self._pending_rows, FILE_ROWS - self._in_file - self._pending_rows))
            batch = batch.slice(some.num_rows)
            self._pending.append(some)
            self._pending_rows += some.num_rows
            if self._pending_rows == _GROUP_ROWS or self._in_file + self._pending_rows == FILE_ROWS:
                self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._pending, self.schema), row_group_size=_GROUP_ROWS)
        self._in_file += self._pending_rows
        self._pending, self._pending_rows = [], 0

    def close(self) -> None:
        if self._pending_rows:
            self._flush()
        self._writer.close()
