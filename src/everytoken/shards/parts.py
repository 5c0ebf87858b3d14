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
from everytoken.shards.digests import TableDigest
from everytoken.shards.errors import DamagedStore, ShardsError
from everytoken.shards.recipe import Recipe

ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 65_536
BATCH_ROWS = 8_192

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


class _RowsOnly:
    """The half of a part that holds rows and no value."""

    name: str

    @property
    def value(self) -> Any:
        raise ShardsError(f"{self.name} holds rows, not a value; read its batches()")


@dataclass(frozen=True)
class StoredPart(_RowsOnly):
    """A part in a parquet file."""

    name: str
    index: int
    path: Path
    rows: int
    digest: str

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DamagedStore:
        return DamagedStore(
            f"{self.path} cannot be read ({error}). It is not the file that was written; "
            "run the pipeline that makes it again: damaged parts are found by their SHA-256 and made anew."
        )

    @property
    def schema(self) -> pa.Schema:
        with self._open() as file:
            return file.schema_arrow

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            try:
                yield from file.iter_batches(BATCH_ROWS, columns=None if columns is None else list(columns))
            except (OSError, pa.ArrowException) as error:
                raise self._damaged(error) from error

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(list(self.batches(columns)), schema)


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
class PlannedPart(_RowsOnly):
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


def _row_bytes(array: pa.Array) -> np.ndarray:
    """Return the size of each value in bytes, int64 (rows,): a function of the value alone."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _row_bytes(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(lengths)
        children = np.concatenate([[0], np.cumsum(_row_bytes(array.flatten()))])
        sizes: np.ndarray = children[ends] - children[ends - lengths]
        return sizes
    return np.full(len(array), 8, dtype=np.int64)


@dataclass(frozen=True)
class Written:
    """What was written: rows, bytes, SHA-256 of the file, content digest of the rows, statistics."""

    rows: int
    bytes: int
    sha256: str
    content_digest: str
    statistics: Statistics


def write_rows(rows: Rows, path: Path) -> Written:
    """Write ``rows`` as parquet (zstd, page checksums) to ``path``, atomically, in bounded memory.

    Raises:
        ShardsError: a batch does not have the declared schema.
    """
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
                    statistics = dict(stop.value or {})
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
            writer.close()
            sink.close()
    return Written(count, sink.bytes, sink.sha256.hexdigest(), digest.hexdigest(), statistics)
