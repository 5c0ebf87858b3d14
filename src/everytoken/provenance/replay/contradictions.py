"""Rows of a manifest that contradict themselves, their file, the threshold or each other.

A manifest says the same thing twice: the split of a row is the folder that it is in and ``has_annotation``; ``is_bad``
is a score at or above the threshold. One that disagrees with itself was edited, or made by other rules than it says.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS, address_fields, address_rows
from everytoken.arrays import Flags, Integers
from everytoken.corpus import N_CLASSES
from everytoken.corpus.dedup import between
from everytoken.outofcore import find_repeats
from everytoken.progress import CountedWork, working
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.replay.manifest_files import ManifestPart, read_released_manifest
from everytoken.shards import Artifact, Built, Rows, versioned, write_rows

CONTRADICTORY = "contradictory"
CONTRADICTIONS_FILE = "contradictions.parquet"

CONTRADICTIONS = pa.schema(
    [
        pa.field("rule", pa.string(), nullable=False),  # the columns that disagree
        pa.field("split", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),  # of the document in its split
        pa.field("id", pa.large_string()),
        *address_fields(nullable=True),
        pa.field("safety_score", pa.int8()),
        pa.field("is_bad", pa.bool_()),
        pa.field("has_annotation", pa.bool_()),
        pa.field("token_length", pa.int32()),
    ]
)

_SHOWN = 5


class ContradictionStatistics(TypedDict):
    """Statistics of `find_contradictions`: ``rows`` of the manifest; ``rules``, how many rows contradict each."""

    rows: int
    rules: dict[str, int]


ContradictionsReport = TypedDict(
    "ContradictionsReport", {"rows": int, "rules": dict[str, int], "in": str, "first": list[dict[str, Any]]}
)
"""How many rows contradict which rule, the file that lists all, and the first of them."""


@versioned("find_contradictions", 1, unrecorded=["values", "memory"])
def find_contradictions(
    folder: Path,
    *,
    values: Sequence[ManifestPart],
    digests: Sequence[str],
    threshold: int | None,
    is_used_once: bool,
    memory: int,
) -> Built:
    """Find the rows of a manifest that contradict themselves or each other; all are in ``contradictions.parquet``.

    Args:
        folder: of the artifact; also holds what does not fit into the memory.
        threshold: least score of a bad document; None where nothing was scored.
        is_used_once: whether no document is used twice, so that an address is in one row at most.
        memory: bytes for grouping addresses; changes time, never a byte.

    Raises:
        ProvenanceError: a file is not the one that was listed, or is no manifest.
    """
    total, addressed = _counted(values)
    passes = 2 if is_used_once and addressed else 1
    with (
        working("", passes * total, "row") as work,
        tempfile.TemporaryDirectory(dir=folder, prefix=".addresses-") as scratch,
    ):
        repeats = _repeats(values, memory, Path(scratch), work) if is_used_once and addressed else None
        rows = Rows(CONTRADICTIONS, _found(values, threshold, repeats, work))
        written = write_rows(rows, folder / CONTRADICTIONS_FILE)
    return Built(ContradictionStatistics(rows=total, rules=dict(written.statistics)))


def _counted(values: Sequence[ManifestPart]) -> tuple[int, int]:
    """Return how many rows there are, counted and not as somebody says, and how many of them have an address."""
    rows = addressed = 0
    with working("", None, "row") as work:
        for _, _, _, batch in _numbered(values):
            rows += batch.num_rows
            addressed += batch.num_rows - batch.column("source").null_count
            work.add(batch.num_rows)
    return rows, addressed


def _repeats(values: Sequence[ManifestPart], memory: int, folder: Path, work: CountedWork) -> Integers:
    """Return (position, first) of the rows whose address an earlier row has."""
    return find_repeats(_addresses(values, work), 2, memory, folder)


def _addresses(values: Sequence[ManifestPart], work: CountedWork) -> Iterator[tuple[Integers, Integers]]:
    for start, _, _, batch in _numbered(values):
        there = np.flatnonzero(batch.column("source").is_valid().to_numpy(zero_copy_only=False))
        some = batch.select(ADDRESS_COLUMNS).take(pa.array(there))
        words = b"".join(_key(*address) for address in address_rows(some))
        yield start + there, np.frombuffer(words, np.int64).reshape(-1, 2)
        work.add(batch.num_rows)


def _key(source: str, shard_index: int | None, row: int | None) -> bytes:
    return hashlib.sha256(f"{source}\0{shard_index}\0{row}".encode()).digest()[:16]


def _numbered(values: Sequence[ManifestPart]) -> Iterator[tuple[int, str, int, pa.RecordBatch]]:
    """Yield position over all rows, split, number in it, and rows."""
    start = 0
    for value in values:
        for split, number, batch in read_released_manifest(value):
            yield start, split, number, batch
            start += batch.num_rows


def _found(
    values: Sequence[ManifestPart], threshold: int | None, repeats: Integers | None, work: CountedWork
) -> Generator[pa.RecordBatch, None, dict[str, int]]:
    counts: Counter[str] = Counter()
    for start, split, number, batch in _numbered(values):
        wrong = _contradicting(batch, split, threshold)
        if repeats is not None:
            repeated = np.zeros(batch.num_rows, np.bool_)
            repeated[between(repeats, start, start + batch.num_rows)[:, 0] - start] = True
            wrong["its address is that of an earlier row"] = repeated
        for rule, flags in wrong.items():
            if flags.any():
                counts[rule] += int(np.count_nonzero(flags))
                yield _rows(batch, split, number, rule, np.flatnonzero(flags))
        work.add(batch.num_rows)
    return dict(sorted(counts.items()))


def _contradicting(batch: pa.RecordBatch, split: str, threshold: int | None) -> dict[str, Flags]:
    score = batch.column("safety_score").to_numpy()
    is_bad, annotated = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.bool_) for name in ("is_bad", "has_annotation")
    )
    length = pc.fill_null(batch.column("token_length"), 0).to_numpy(zero_copy_only=False)
    is_split = split == "annotated"
    least = N_CLASSES if threshold is None else threshold
    return {
        f"has_annotation is {not is_split} in the split {split}": annotated != is_split,
        f"is_bad is not whether safety_score is at least {threshold}": is_bad != (score >= least),
        f"safety_score is none of 0 to {N_CLASSES - 1}": (score < 0) | (score >= N_CLASSES),
        "token_length is negative": length < 0,
    }


def _rows(batch: pa.RecordBatch, split: str, number: int, rule: str, rows: Integers) -> pa.RecordBatch:
    some = batch.take(pa.array(rows))
    known = {
        "rule": pa.array([rule] * len(rows)),
        "split": pa.array([split] * len(rows)),
        "number": pa.array(number + rows),
    }
    columns = [known.get(field.name) for field in CONTRADICTIONS]
    return pa.RecordBatch.from_arrays(
        [
            (some.column(field.name) if column is None else column).cast(field.type)
            for field, column in zip(CONTRADICTIONS, columns, strict=True)
        ],
        schema=CONTRADICTIONS,
    )


def contradictions_report(found: Artifact) -> ContradictionsReport:
    """Return what a report says of the rows of `find_contradictions`."""
    with pq.ParquetFile(found.path(CONTRADICTIONS_FILE)) as file:
        first = next(file.iter_batches(_SHOWN)).to_pylist() if file.metadata.num_rows else []
        rows = file.metadata.num_rows
    return {
        "rows": rows,
        "rules": found.statistics_as(ContradictionStatistics)["rules"],
        "in": f"{found.folder}/{CONTRADICTIONS_FILE}",
        "first": first,
    }


def require_no_contradictions(found: Artifact, allowed: Collection[str], how_to_allow: str) -> None:
    """Check that no row contradicts itself, its file or another row, unless that is allowed.

    Args:
        how_to_allow: what allows it, for the message.

    Raises:
        ProvenanceError: some do, and that is not allowed; with counts, the first rows, and what to do.
    """
    told = contradictions_report(found)
    if not told["rows"] or CONTRADICTORY in allowed:
        return
    counts = "; ".join(f"{count:,} rows: {rule}" for rule, count in told["rules"].items())
    first = "; ".join(
        f"{row['split']} document {row['number']:,}"
        + (f", id {str(row['id'])[:60]!r}" if row["id"] is not None else "")
        + f" (safety_score {row['safety_score']}, is_bad {row['is_bad']}, has_annotation {row['has_annotation']})"
        for row in told["first"]
    )
    raise ProvenanceError(
        f"{CONTRADICTORY}: the manifest contradicts itself: {counts}. First: {first}. All are in {told['in']}. Get the "
        f"manifest again from where it was published. Or take each row for one of the split whose file it is in, its "
        f"other columns as they are: {how_to_allow}"
    )
