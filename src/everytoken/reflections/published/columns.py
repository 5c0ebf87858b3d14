"""The columns of a generation run, from published reflections: what a merge of results gives, without a generator."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.published.match import MATCHED_FILE, PUBLISHED_FAULTS, MatchedStatistics
from everytoken.reflections.registry import find_run
from everytoken.shards import Artifact, Part, Rows, Shards, value_digest, versioned

_BATCH_ROWS = 8_192


def require_no_fault(matched: Artifact, allowed: Sequence[str]) -> None:
    """Check that published rows and windows belong together.

    Args:
        allowed: kinds of faults that may be.

    Raises:
        ReflectionError: there are faults of another kind.
    """
    counts = matched.statistics_as(MatchedStatistics)["faults"]
    if fatal := {name: counts[name] for name in PUBLISHED_FAULTS if name in counts and name not in allowed}:
        found = ", ".join(f"{count:,} {name}" for name, count in fatal.items())
        raise ReflectionError(
            f"of the published reflections, {found}. faults.parquet in the folder of the match lists each row. Check "
            "that stream and reflections are of one corpus, or name the kinds in reflection.published.allow"
        )


def row_ranges(rows: tuple[int, int], rows_per_task: int) -> Shards:
    """Return one value part for each rank: its first row, and the row behind its last."""
    first, end = rows
    values = [[start, min(start + rows_per_task, end)] for start in range(first, end, rows_per_task)]
    return Shards.from_values(values, [value_digest(value) for value in values])


class PublishedColumnCounts(TypedDict):
    """Statistics of `published_columns`: rows of the range, with a reflection, and without."""

    rows: int
    ok: int
    not_published: int


@versioned("published_columns", 1)
def published_columns(part: Part, *, matched: Artifact) -> Rows:
    """Return the reflected rows of a range: row, doc_id, status ``ok``, the columns of the run.

    Columns that are not published have the value of a row without a reply.

    Args:
        part: its value is a range, of `row_ranges`.
        matched: of `match_published_reflections`.
    """
    run, _ = find_run(matched.statistics_as(MatchedStatistics)["run"])
    fields = [pa.field("row", pa.int64()), pa.field("doc_id", pa.large_string()), pa.field("status", pa.string())]
    seen = [pa.field(name, pa.bool_()) for name in ("canary_in_1p", "canary_in_3p")]
    schema = pa.schema([*fields, *run.schema(), *seen])
    first, end = part.value
    return Rows(schema, _rows(matched.path(MATCHED_FILE), schema, run.defaults(), first, end))


def _rows(
    path: Path, schema: pa.Schema, defaults: dict[str, object], first: int, end: int
) -> Generator[pa.RecordBatch, None, PublishedColumnCounts]:
    found = 0
    for batch in _in_range(path, first, end):
        found += batch.num_rows
        columns = []
        for field in schema:
            if field.name in batch.schema.names:
                columns.append(batch.column(field.name))
            else:
                value = "ok" if field.name == "status" else defaults.get(field.name)
                columns.append(pa.array([value] * batch.num_rows, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    return PublishedColumnCounts(rows=end - first, ok=found, not_published=end - first - found)


def _in_range(path: Path, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, sorted by ``row``, that are in [first, end)."""
    with pq.ParquetFile(path) as parquet:
        for group in range(parquet.num_row_groups):
            column = parquet.metadata.row_group(group).column(0).statistics
            if column is not None and (column.max < first or column.min >= end):
                continue
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                rows = batch.column(0).to_numpy()
                low, high = np.searchsorted(rows, [first, end]).tolist()
                if low < high:
                    yield batch.slice(low, high - low)
