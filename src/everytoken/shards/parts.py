"""Parts: what a part function gets (a `Part`), what it returns (`Rows`), and the parquet file in which rows are kept.
 Rows are written in row groups that end where the accumulated size of the rows reaches a limit. The cut depends on
the rows alone, never on the batches in which they came, so the same rows give the same file; and reading needs one
row group at a time, so the memory of a reader and a writer is bounded however large the part is (by the limit, or by
a single row that is larger).
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.shards.atomic import atomic_file
from everytoken.shards.digests import TableDigest, file_sha256, plain_json
from everytoken.shards.errors import DamagedStore, ShardsError
from everytoken.shards.recipe import Recipe

ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 65_536
BATCH_ROWS = 8_192

_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # what pyarrow raises over bytes that are no parquet

Statistics = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """What a part function returns: a schema, and a generator of batches whose return value is a dict of statistics.

    The statistics (counts by reason, histograms; plain JSON, deterministic) stay in the ledger beside the part.
    """

    schema: pa.Schema
    batches: Generator[pa.RecordBatch, None, Statistics]


@runtime_checkable
class Part(Protocol):
    """One part of a dataset, as a part function sees it."""

    @property
    def name(self) -> str:
        """Name in the plan: ``part_00000``."""

    @property
    def index(self) -> int:
        """Plan position: 0 for ``part_00000``."""

    @property
    def digest(self) -> str:
        """What the content is, for recipes."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""

    @property
    def value(self) -> Any:
        """The JSON value of a value part."""

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches of bounded size; may be called again."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows at once: for columns that are small."""


@dataclass(frozen=True)
class StoredPart:
    """A part in a parquet file."""

    name: str
    index: int
    path: Path
    rows: int
    digest: str
    sha256: str

    @property
    def value(self) -> Any:
        raise ShardsError(f"{self.name} holds rows, not a value; read its batches()")

    def verify(self) -> None:
        """Check that the file is the one that was written, by its SHA-256.

        What is made from a part is recorded as made from its digest, so its content is checked where it is used.

        Raises:
            DamagedStore: it is not.
        """
        try:
            found = file_sha256(self.path)
        except OSError as error:
            raise self._damaged(error) from error
        if found != self.sha256:
            raise self._damaged(f"its SHA-256 is {found}, expected {self.sha256}")

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, page_checksum_verification=True)
        except _UNREADABLE as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception | str) -> DamagedStore:
        return DamagedStore(
            f"{self.path} cannot be read ({error}). It is not the file that was written; "
            "run the pipeline that makes it again: damaged parts are found by their SHA-256 and made anew."
        )

    @property
    def schema(self) -> pa.Schema:
        with self._open() as file:
            try:
                return file.schema_arrow
            except _UNREADABLE as error:
                raise self._damaged(error) from error

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        found = 0
        with self._open() as file:
            try:
                names = file.schema_arrow.names
                if unknown := sorted(set(columns or ()) - set(names)):  # pyarrow would leave them out without a word
                    raise ShardsError(f"{self.path} has no columns {unknown}, only {names}")
                for group in range(file.num_row_groups):  # a batch over several groups would have no bound in bytes
                    for batch in file.iter_batches(BATCH_ROWS, [group], None if columns is None else list(columns)):
                        found += batch.num_rows
                        yield batch
            except _UNREADABLE as error:
                raise self._damaged(error) from error
        if found != self.rows:  # checksums cover pages, but not the page headers and footer that count them
            raise self._damaged(f"{found} rows found, {self.rows} written")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        batches, schema = list(self.batches(columns)), self.schema
        return pa.Table.from_batches(batches, schema if columns is None else pa.schema(map(schema.field, columns)))


@dataclass(frozen=True)
class ValuePart:
    """A part that is one JSON value: a shard of an upstream, or the result of a reduction."""

    name: str
    index: int
    value: Any
    digest: str

    @property
    def rows(self) -> int:
        raise self._no_rows()

    @property
    def schema(self) -> pa.Schema:
        raise self._no_rows()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        raise self._no_rows()

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        raise self._no_rows()

    def _no_rows(self) -> ShardsError:
        return ShardsError(f"{self.name} holds a value, not rows; read its .value")


@dataclass(frozen=True)
class PlannedPart:
    """A part that is made when it is read: a recipe over input parts. Reading it twice makes it twice."""

    name: str
    index: int
    recipe: Recipe
    inputs: tuple[Part, ...]

    @property
    def digest(self) -> str:
        return self.recipe.fingerprint([part.digest for part in self.inputs])

    def make(self) -> Any:
        """Run the recipe: `Rows`, or the JSON value of a reduction."""
        return self.recipe(*self.inputs)

    def _rows(self) -> Rows:
        made = self.make()
        if not isinstance(made, Rows):
            raise ShardsError(f"{self.recipe.name} returned a {type(made).__name__} for {self.name}, not Rows")
        return made

    @property
    def value(self) -> Any:
        made = self.make()
        if isinstance(made, Rows):
            raise ShardsError(f"{self.name} holds rows, not a value; read its batches()")
        return plain_json(made, f"the value of {self.name}")

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches())

    @property
    def schema(self) -> pa.Schema:
        return self._rows().schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in self._rows().batches:
            yield batch if columns is None else batch.select(list(columns))

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        table = pa.Table.from_batches(list(self.batches()), self.schema)
        return table if columns is None else table.select(list(columns))


class _HashedFile(RawIOBase):
    """A file that hashes what is written to it (parquet is written front to back)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        written = self._file.write(data)
        self.bytes += written
        return written

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()


_VARIABLE = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _row_bytes(array: pa.Array) -> np.ndarray:
    """Return the size of each value in bytes, int64 (rows,): a function of the value alone."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _row_bytes(array.dictionary_decode())
    if any(test(kind) for test in _VARIABLE):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(lengths)
        children = np.concatenate([[0], np.cumsum(_row_bytes(array.flatten()))])
        return np.asarray(children[ends] - children[ends - lengths])
    if pa.types.is_struct(kind):
        fields = [_row_bytes(field) for field in array.flatten()]
        return np.asarray(np.sum([np.full(len(array), 8), *fields], axis=0, dtype=np.int64))
    return np.full(len(array), 8, dtype=np.int64)


@dataclass(frozen=True)
class Written:
    """What was written: rows, bytes, SHA-256 of the file, content digest of the rows, statistics."""

    rows: int
    bytes: int
    sha256: str
    content_digest: str
    statistics: Statistics


def _check_schema(schema: pa.Schema, name: str) -> None:
    if len(schema) == 0 or len(set(schema.names)) < len(schema):
        raise ShardsError(f"{name}: the columns are {schema.names}; give at least one, and each its own name")
    for field in schema:
        if "fixed_size_list" in str(field.type):
            raise ShardsError(f"{name}: column {field.name} is a {field.type}; parquet loses its nulls: use pa.list_()")


def write_rows(rows: Rows, path: Path) -> Written:
    """Write ``rows`` as parquet (zstd, page checksums) to ``path``, atomically, in bounded memory.

    Raises:
        ShardsError: a schema that parquet would not give back, a batch of another schema, statistics that are no JSON.
    """
    _check_schema(rows.schema, path.stem)
    digest, count = TableDigest(rows.schema), 0
    pending: list[pa.RecordBatch] = []
    pending_bytes = pending_rows = 0
    with atomic_file(path) as temporary:
        sink = _HashedFile(temporary)
        writer = pq.ParquetWriter(
            sink, rows.schema, compression="zstd", use_dictionary=False, write_page_checksum=True, version="2.6"
        )

        def flush() -> None:
            nonlocal pending_bytes, pending_rows
            table = pa.Table.from_batches(pending, rows.schema).combine_chunks()
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            pending.clear()
            pending_bytes = pending_rows = 0

        try:
            while True:
                try:
                    batch = next(rows.batches)
                except StopIteration as stop:
                    statistics = plain_json(dict(stop.value or {}), f"{path.stem}: statistics")
                    break
                if not batch.schema.equals(rows.schema):
                    raise ShardsError(f"{path.name}: a batch has columns {batch.schema}, declared are {rows.schema}")
                digest.update(batch)
                count += batch.num_rows
                sizes = np.sum([_row_bytes(column) for column in batch.columns], axis=0, dtype=np.int64)
                ends = np.cumsum(sizes) if batch.num_rows else np.empty(0, np.int64)
                start = 0
                while start < batch.num_rows:
                    before = int(ends[start - 1]) if start else 0
                    full = int(np.searchsorted(ends, before + ROW_GROUP_BYTES - pending_bytes)) + 1
                    stop_row = min(full, start + ROW_GROUP_ROWS - pending_rows, batch.num_rows)
                    pending.append(batch.slice(start, stop_row - start))
                    pending_bytes += int(ends[stop_row - 1]) - before
                    pending_rows += stop_row - start
                    start = stop_row
                    if pending_bytes >= ROW_GROUP_BYTES or pending_rows >= ROW_GROUP_ROWS:
                        flush()
            if pending:
                flush()
        finally:
            try:
                writer.close()
            finally:
                sink.close()
    return Written(count, sink.bytes, sink.sha256.hexdigest(), digest.hexdigest(), statistics)
