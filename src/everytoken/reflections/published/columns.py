"""The columns of a generation run, from published reflections: what a merge of results gives, without a generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.merging import MergedStatistics, columns_schema
from everytoken.reflections.published.match import MATCH_FAULTS_FILE, MATCHED_FILE, PUBLISHED_FAULTS, MatchedStatistics
from everytoken.reflections.ranks import COUNTED_TOKENS, sidecar_batches
from everytoken.reflections.registry import GenerationRun, find_generation_run
from everytoken.shards import Artifact, Part, Rows, Shards, value_digest, versioned
from everytoken.tokens.streams import SIDECAR_FILE

WITHOUT_REFLECTION = "not_published"


def require_no_fault(matched: Artifact, allowed: Sequence[str]) -> None:
    """Check that published rows and windows belong together; a row may be gone for each window that was taken down.

    Args:
        allowed: kinds of faults that may be.

    Raises:
        ReflectionError: there are faults of another kind.
    """
    said = matched.statistics_as(MatchedStatistics)
    counts = {name: said["faults"].get(name, 0) for name in PUBLISHED_FAULTS if name not in allowed}
    if counts.get("gone", 0) <= said["taken_down"]:
        counts["gone"] = 0
    if fatal := {name: count for name, count in counts.items() if count}:
        found = ", ".join(f"{count:,} {name}" for name, count in fatal.items())
        raise ReflectionError(
            f"of the published reflections, {found}. {matched.path(MATCH_FAULTS_FILE)} lists each row. Check "
            "that stream and reflections are of one corpus, or name the kinds in reflection.published.allow"
        )


def row_ranges(rows: tuple[int, int], rows_per_task: int) -> Shards:
    """Return one value part for each rank: its first row, and the row behind its last."""
    first, end = rows
    values = [[start, min(start + rows_per_task, end)] for start in range(first, end, rows_per_task)]
    return Shards.from_values(values, [value_digest(value) for value in values])


@versioned("published_columns", 1)
def published_columns(part: Part, *, matched: Artifact, stream: Artifact) -> Rows:
    """Return the columns of a range, as a merge of results gives them.

    A row without a published reflection has the status ``not_published``, or ``excluded`` if its document was taken
    down. Columns that are not published have the value
    of a row without a reply, and tokens are not counted.

    Args:
        part: its value is a range, of `row_ranges`.
        matched: of `match_published_reflections`.
        stream: the annotated stream; only the sidecar is read.
    """
    run, _ = find_generation_run(matched.statistics_as(MatchedStatistics)["run"])
    first, end = part.value
    published = _in_range(matched.path(MATCHED_FILE), first, end)
    return Rows(columns_schema(run), _rows(run, published, stream.path(SIDECAR_FILE), first, end))


def _rows(
    run: GenerationRun, published: Iterator[Mapping[str, Any]], sidecar: Path, first: int, end: int
) -> Generator[pa.RecordBatch, None, MergedStatistics]:
    schema, counts, canaries = columns_schema(run), Counter[str](), Counter[str]()
    missing = {**dict.fromkeys(schema.names), **run.defaults()}
    found = next(published, None)
    for start, batch in sidecar_batches(sidecar, first, end, ["doc_id", "token_length"]):
        records = []
        told = (batch.column(name).to_pylist() for name in ("doc_id", "token_length"))
        for row, (doc_id, length) in enumerate(zip(*told, strict=True), start):
            own: Mapping[str, Any] = {"status": WITHOUT_REFLECTION if length else "excluded"}
            counts["excluded"] += not length
            if found is not None and found["row"] == row:
                own, found = {"status": "ok", **found}, next(published, None)
                _count(run, own, counts, canaries)
            records.append({**missing, **own, "row": row, "doc_id": doc_id})
        yield pa.RecordBatch.from_pylist(records, schema=schema)
    missing_rows = end - first - counts["ok"] - counts["excluded"]
    by_status = {"excluded": counts["excluded"], WITHOUT_REFLECTION: missing_rows, "ok": counts["ok"]}
    return MergedStatistics(
        rows=end - first,
        by_status={name: count for name, count in by_status.items() if count},
        with_point=counts["ok"] if run.index_column is not None else 0,
        usable=counts["usable"],
        with_1p=counts["with_1p"],
        surrogates_replaced=0,
        tokens=dict.fromkeys(COUNTED_TOKENS, 0),
        canaries={fact: {"documents": count, "in_1p": 0, "in_3p": 0} for fact, count in sorted(canaries.items())},
        failed={},
    )


def _count(run: GenerationRun, own: Mapping[str, Any], counts: Counter[str], canaries: Counter[str]) -> None:
    fields = {field for name, field in run.text_columns.items() if (own[name] or "").strip()}
    counts.update({"ok": 1, "usable": bool(fields), "with_1p": "reflection_1p" in fields})
    if run.canary_column is not None and own[run.canary_column] is not None:
        canaries[own[run.canary_column]] += 1


def _in_range(path: Path, first: int, end: int) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file, sorted by ``row``, that are in [first, end)."""
    with pq.ParquetFile(path) as parquet:
        for group in range(parquet.num_row_groups):
            column = parquet.metadata.row_group(group).column(0).statistics
            if column is not None and (column.max < first or column.min >= end):
                continue
            for batch in parquet.iter_batches(row_groups=[group], use_threads=False):
                low, high = np.searchsorted(batch.column(0).to_numpy(), [first, end]).tolist()
                yield from batch.slice(low, high - low).to_pylist()
