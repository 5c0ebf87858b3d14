"""The columns of runs in the sidecar itself: the single file of the published form.

A new file takes the place of the old one when it is whole. It has the same row groups in the same order, and keeps all
columns that earlier exports wrote; those of a run that is written again are replaced in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.registry import GenerationRun
from everytoken.shards import Shards, atomic_file

_PLACEHOLDERS = {"reflection": "reflection", "refusal_reflection": "reflection", "preflection": "preflection"}
"""Empty columns of a sidecar that nothing was merged into, by the kind of prompt whose merge takes them away."""


def export_sidecar(base: Path, columns: Mapping[str, tuple[GenerationRun, Shards]], target: Path) -> int:
    """Write a sidecar with the columns of runs; return its rows.

    Rows that no run asked about keep what the base has in a column, and get what a row without a reply has where the
    column is new.

    Args:
        base: sidecar of the annotated stream, or one that was exported before.
        columns: run and dataset of its columns, by the name of the run.
        target: may be the base.

    Raises:
        ReflectionError: a row of the columns is not in the base, or is of another document; or a placeholder column
            that would go has texts.
    """
    with pq.ParquetFile(base, page_checksum_verification=True) as file:
        dropped = _dropped(file, [run for run, _ in columns.values()])
        merged = [_RunColumns(run, shards, base) for run, shards in columns.values()]
        schema = _schema(file.schema_arrow, dropped, merged)
        with atomic_file(target) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            start = 0
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).drop_columns(dropped)
                for one in merged:
                    table = one.added_to(table, start)
                writer.write_table(table.select(schema.names).cast(schema), row_group_size=max(1, table.num_rows))
                start += table.num_rows
            for one in merged:
                one.require_read(start)
    return start


class _RunColumns:
    """Columns of a run, read in step with the row groups of the sidecar."""

    def __init__(self, run: GenerationRun, shards: Shards, base: Path) -> None:
        self.run, self._base = run, base
        names = ["row", "doc_id", *run.schema().names]
        self._batches = (batch for part in shards for batch in part.batches(names))
        self._left: pa.RecordBatch | None = None

    def added_to(self, table: pa.Table, start: int) -> pa.Table:
        """Return the rows [start, start + rows) of the sidecar with the columns of the run."""
        pieces: list[pa.Table] = []
        at = start
        for batch in self._until(start + table.num_rows):
            first = batch.column("row")[0].as_py()
            if first < at:
                raise ReflectionError(f"row {first:,} of the columns of {self.run.name} comes twice, or out of order")
            pieces += [self._kept(table.slice(at - start, first - at))] if first > at else []
            at = first + batch.num_rows
            self._require_same(batch, table.slice(first - start, batch.num_rows))
            pieces.append(pa.Table.from_batches([batch.select(self.run.schema().names)]))
        pieces.append(self._kept(table.slice(at - start)))
        own = pa.concat_tables(pieces)
        for field in self.run.schema():
            column = own.column(field.name)
            place = table.schema.get_field_index(field.name)
            table = table.append_column(field, column) if place < 0 else table.set_column(place, field, column)
        return table

    def _until(self, end: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of consecutive rows below ``end``."""
        while (batch := self._left if self._left is not None else next(self._batches, None)) is not None:
            self._left = None
            if not batch.num_rows:
                continue
            first = batch.column("row")[0].as_py()
            if first >= end:
                self._left = batch
                return
            inside = min(batch.num_rows, end - first)
            if inside < batch.num_rows:
                self._left = batch.slice(inside)
            yield batch.slice(0, inside)

    def _kept(self, table: pa.Table) -> pa.Table:
        """Return rows that the run did not ask about: as they are, or with the values of a row without a reply."""
        defaults, schema = self.run.defaults(), self.run.schema()
        arrays = [
            table.column(field.name).cast(field.type)
            if field.name in table.schema.names
            else pa.chunked_array([pa.array([defaults[field.name]] * table.num_rows, field.type)], field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _require_same(self, batch: pa.RecordBatch, table: pa.Table) -> None:
        """Compare the documents of rows of the columns with those of the sidecar."""
        wanted, found = (one.column("doc_id").cast(pa.large_string()) for one in (batch, table))
        if table.num_rows == batch.num_rows and pa.chunked_array([wanted]).equals(found):
            return
        first = batch.column("row")[0].as_py()
        raise ReflectionError(
            f"{self._base}: rows from {first:,} on are of other documents than the columns of {self.run.name}, or are "
            "not there. Export into the sidecar of the stream that was asked about"
        )

    def require_read(self, rows: int) -> None:
        """Check that no row is behind the end of the sidecar."""
        if self._left is not None or next(self._batches, None) is not None:
            raise ReflectionError(
                f"{self._base} has {rows:,} rows, and the columns of {self.run.name} have rows behind them. Export "
                "into the sidecar of the stream that was asked about"
            )


def _dropped(file: pq.ParquetFile, runs: list[GenerationRun]) -> list[str]:
    """Return the placeholder columns that go."""
    names = {_PLACEHOLDERS[run.prompt] for run in runs if run.prompt in _PLACEHOLDERS}
    found = [name for name in file.schema_arrow.names if name in names]
    for name in found:
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, [name]).column(name)
            if pc.any(pc.not_equal(pc.fill_null(column.cast(pa.large_string()), ""), "")).as_py():
                raise ReflectionError(
                    f"the column {name} of the sidecar is a placeholder that this export takes away, and it has texts. "
                    "Rename it to keep it"
                )
    return found


def _schema(base: pa.Schema, dropped: list[str], merged: list[_RunColumns]) -> pa.Schema:
    """Return the columns of the base, those of the runs in their place, and then the new ones."""
    own = {field.name: field for one in merged for field in one.run.schema()}
    kept = [own.pop(field.name, field) for field in base if field.name not in dropped]
    return pa.schema([*kept, *own.values()])
