"""The table of all scores: what to publish, and what scores the same corpus again without a model.

``classifications_00000.parquet`` ... has one row for each distinct id over all parts, the first in plan order: ``id,
id_type, safety_score, safety_probs``. An id does not tell everything: rows without id, and rows whose id was first seen
with another score (an upstream that gives one id to two texts). These are in ``by_address_00000.parquet`` ... by
``source, shard_index, row``. Both together give every row its score back, exactly. Rows that nothing knows a score of
are in neither.

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
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.corpus.documents import DOCUMENTS, N_CLASSES
from everytoken.corpus.scoring.distinct import Floats, Integers
from everytoken.corpus.scoring.score_tables import ADDRESS
from everytoken.corpus.selection.duplicates import between
from everytoken.corpus.selection.grouping import find_repeats
from everytoken.shards import Built, Shards, versioned

FILE_ROWS = 5_000_000
_GROUP_ROWS = 65_536

_SCORES = [pa.field("safety_score", pa.int8(), False), pa.field("safety_probs", pa.list_(pa.float32()), False)]
BY_ID = pa.schema([DOCUMENTS.field("id"), DOCUMENTS.field("id_type"), *_SCORES])
BY_ADDRESS = pa.schema([*(DOCUMENTS.field(name) for name in ADDRESS), *_SCORES])

_COLUMNS = ["id", "id_type", *ADDRESS, "safety_score", "safety_probs"]


@versioned(1, unrecorded=["memory"])
def collect_classifications(folder: Path, *, documents: Shards, near: Sequence[float], memory: int) -> Built:
    """Write the classifications of all documents; see the module docstring for the files.

    Args:
        folder: of the artifact.
        documents: scored ones.
        near: the eps for which documents near a threshold are counted.
        memory: bound for the grouping of ids, in bytes; the process itself needs about 200 MB more.

    Returns:
        Statistics: ``rows``; ``classifications``, the distinct ids; ``by_address``; ``without_score``;
        ``score_is_not_argmax``, rows whose score is not their most probable class; and of each source under
        ``by_source`` the distinct ids by class (``unique_by_class``) and ``near``, by class and eps the rows
        ``of_class`` and ``of_threshold`` 1 to 5 whose margin is at most eps.
    """
    started = time.perf_counter()
    counts = _Counts(near)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".grouping-") as place:
        repeats, same = _repeats(documents, memory, Path(place))
        tables = [_Table(folder, "classifications", BY_ID), _Table(folder, "by_address", BY_ADDRESS)]
        for position, batch in _batches(documents, _COLUMNS):
            scored = batch.column("safety_probs").is_valid().to_numpy(zero_copy_only=False)
            with_id = batch.column("id").is_valid().to_numpy(zero_copy_only=False)
            first, other = _first_and_other(repeats, same, position, batch.num_rows)
            by_id, by_address = scored & with_id & first, scored & (other | ~with_id)
            for table, chosen in zip(tables, (by_id, by_address), strict=True):
                table.write(batch.select(table.schema.names).filter(pa.array(chosen)))
            counts.add(batch, scored, by_id)
        for table in tables:
            table.close()
    written = {"classifications": tables[0].rows, "by_address": tables[1].rows}
    return Built({"rows": documents.rows, **written, **counts.statistics()}, {"seconds": time.perf_counter() - started})


def _repeats(documents: Shards, memory: int, place: Path) -> tuple[Integers, Integers]:
    """Return (position, first) of the rows that repeat an id, and of those that repeat an id with its score."""
    found = []
    for name, words in (("ids", 2), ("scores", 6)):
        (place / name).mkdir()
        keys = _keys(documents, words)
        found.append(find_repeats(keys, words, documents.rows, documents.rows, memory, place / name))
    return found[0], found[1]


def _keys(documents: Shards, words: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield positions and keys of the scored rows that have an id: 128 bits of SHA-256 of it, and with 6 words the
    score and the probabilities, bit by bit.
    """
    for position, batch in _batches(documents, ["id", "id_type", "safety_score", "safety_probs"]):
        there = pc.and_(batch.column("id").is_valid(), batch.column("safety_probs").is_valid())
        some = batch.filter(there)
        ids = zip(some.column("id_type").to_pylist(), some.column("id").to_pylist(), strict=True)
        digests = (hashlib.sha256(f"{kind}\0{identifier}".encode()).digest()[:16] for kind, identifier in ids)
        key = np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)
        if words > 2:
            scores = some.column("safety_score").to_numpy().astype(np.int64)[:, None]
            bits = np.ascontiguousarray(_probabilities(some)).view(np.int64)  # (n, 3)
            key = np.concatenate([key, scores, bits], axis=1)
        yield position + np.flatnonzero(there.to_numpy(zero_copy_only=False)), key


def _batches(documents: Shards, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield positions and rows in batches of about `_GROUP_ROWS`, however small the parts are."""
    start = rows = 0
    gathered: list[pa.RecordBatch] = []
    for batch in chain.from_iterable(part.batches(columns) for part in documents):
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield start, pa.concat_batches(gathered)
            start, rows, gathered = start + rows, 0, []
    if gathered:
        yield start, pa.concat_batches(gathered)


def _first_and_other(
    repeats: Integers, same: Integers, start: int, rows: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which of the rows from ``start`` are the first of their id, and which have another score than that one."""
    first, other = np.ones(rows, np.bool_), np.zeros(rows, np.bool_)
    of_id, of_score = between(repeats, start, start + rows), between(same, start, start + rows)
    first[of_id[:, 0] - start] = False
    first_with_score = np.full(rows, -1, np.int64)
    first_with_score[of_score[:, 0] - start] = of_score[:, 1]
    other[of_id[:, 0] - start] = first_with_score[of_id[:, 0] - start] != of_id[:, 1]
    return first, other


def _probabilities(batch: pa.RecordBatch) -> Floats:
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

    def add(self, batch: pa.RecordBatch, scored: npt.NDArray[np.bool_], unique: npt.NDArray[np.bool_]) -> None:
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

    def statistics(self) -> dict[str, Any]:
        by_source = {source: self._of_source(source) for source in sorted(self._unique)}
        return {
            "without_score": self._without_score,
            "score_is_not_argmax": self._not_argmax,
            "by_source": by_source,
        }

    def _of_source(self, source: str) -> dict[str, Any]:
        names = ["of_class", *(f"of_threshold_{t}" for t in range(1, N_CLASSES))]
        near = {
            str(eps): {
                name: {str(k): int(n) for k, n in enumerate(of_margin)}
                for name, of_margin in zip(names, of_eps, strict=True)
            }
            for eps, of_eps in zip(self._near, self._within[source], strict=True)
        }
        return {"unique_by_class": {str(k): int(n) for k, n in enumerate(self._unique[source])}, "near": near}


def score_margins(probabilities: Floats) -> npt.NDArray[np.float32]:
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

    def write(self, batch: pa.RecordBatch) -> None:
        batch = batch.cast(self.schema)
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
