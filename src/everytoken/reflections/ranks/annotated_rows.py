"""The rows of an annotated split, as a generator is asked about them: read one batch of a row group at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.prompts import SidecarRow
from everytoken.shards import BATCH_ROWS

_COLUMNS = ("doc_id", "text", "token_length", "is_bad", "safety_score")


def sidecar_facts(path: Path) -> dict[str, object]:
    """Return what tells a sidecar from another one without reading its rows: rows, row groups, schema."""
    with pq.ParquetFile(path) as file:
        schema = ", ".join(f"{field.name} {field.type}" for field in file.schema_arrow)
        return {"rows": file.metadata.num_rows, "row_groups": file.num_row_groups, "schema": schema}


def row_groups(file: pq.ParquetFile, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, first row and end of the row groups with rows in [first, end)."""
    start = 0
    for group in range(file.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        if start < end and stop > first:
            yield group, start, stop
        start = stop


def sidecar_batches(path: Path, first: int, end: int, columns: Collection[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of its first row, and a batch, of the rows [first, end).

    Raises:
        ReflectionError: a column is missing.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        if missing := sorted(set(columns) - set(file.schema_arrow.names)):
            raise ReflectionError(f"{path} is no sidecar of an annotated stream: it has no columns {missing}")
        for group, start, _ in row_groups(file, first, end):
            at = start
            for batch in file.iter_batches(BATCH_ROWS, [group], list(columns)):
                low, high = max(first - at, 0), min(end - at, batch.num_rows)
                if low < high:
                    yield at + low, batch.slice(low, high - low)
                at += batch.num_rows


def sidecar_rows(path: Path, first: int, end: int, done: Collection[int] = ()) -> Iterator[SidecarRow]:
    """Yield the rows [first, end) that are not done."""
    for start, batch in sidecar_batches(path, first, end, (*_COLUMNS, *ADDRESS_COLUMNS)):
        wanted = [row for row in range(batch.num_rows) if start + row not in done]
        if not wanted:
            continue
        for row, record in zip(wanted, batch.take(pa.array(wanted, pa.int32())).to_pylist(), strict=True):
            yield SidecarRow(
                number=start + row,
                doc_id=record["doc_id"],
                address=Address.of(record),
                text=record["text"] or "",
                token_length=record["token_length"],
                is_bad=bool(record["is_bad"]),
                safety_score=record["safety_score"],
            )
