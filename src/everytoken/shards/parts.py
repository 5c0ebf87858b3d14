"""Parts: what a part function gets (a `Part`) and what it returns (`Rows`, or the part it got: `Unchanged`).

Reading a stored part needs one row group at a time, so memory is bounded however large the part is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.shards.digests import file_sha256, plain_json
from everytoken.shards.errors import DamagedStore, ShardsError
from everytoken.shards.recipe import Recipe
from everytoken.system_errors import raise_trouble

BATCH_ROWS = 8_192

_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # what pyarrow raises over bytes that are no parquet

Statistics = Mapping[str, Any]


@dataclass(frozen=True)
class SetAside:
    """A batch of rows that do not become rows of the part, with their reasons; see `Rows`."""

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Rows:
    """What a part function returns: a schema, and a generator of batches whose return value is a dict of statistics.

    The statistics (counts by reason, histograms; plain JSON, deterministic) stay in the ledger beside the part.

    A function that leaves rows out gives the schema ``set_aside`` and yields them as `SetAside` batches; they are kept
    in a file beside the part. Its statistics then have ``rows_in``, which must be the rows of both: none is lost.
    """

    schema: pa.Schema
    batches: Generator[pa.RecordBatch | SetAside, None, Statistics]
    set_aside: pa.Schema | None = None


@dataclass(frozen=True)
class Unchanged:
    """What a part function returns that leaves its stored part as it is: the part, and statistics.

    The file is linked, so a step that has nothing to do costs no disk and no time.
    """

    part: Part
    statistics: Statistics


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

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from ``first_row`` on in order, in batches of bounded size; may be called again."""

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
        if isinstance(error, Exception):
            raise_trouble(error)
        return DamagedStore(
            f"{self.path} cannot be read ({error}). It is not the file that was written; "
            "run the pipeline that makes it again: damaged parts are found by their SHA-256 and rebuilt."
        )

    @property
    def schema(self) -> pa.Schema:
        with self._open() as file:
            try:
                return file.schema_arrow
            except _UNREADABLE as error:
                raise self._damaged(error) from error

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        found = 0
        with self._open() as file:
            try:
                names = file.schema_arrow.names
                if unknown := sorted(set(columns or ()) - set(names)):  # pyarrow would leave them out without a word
                    raise ShardsError(f"{self.path} has no columns {unknown}, only {names}")
                for group in range(file.num_row_groups):  # a batch over several groups would have no bound in bytes
                    rows = file.metadata.row_group(group).num_rows
                    if found + rows <= first_row:
                        found += rows
                        continue
                    for batch in file.iter_batches(BATCH_ROWS, [group], None if columns is None else list(columns)):
                        skipped = min(max(0, first_row - found), batch.num_rows)
                        found += batch.num_rows
                        if skipped < batch.num_rows:
                            yield batch.slice(skipped)
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

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
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
            raise ShardsError(f"{self.recipe.place} returned a {type(made).__name__} for {self.name}, not Rows")
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

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        found = 0
        for batch in self._rows().batches:
            if isinstance(batch, SetAside):
                continue
            skipped = min(max(0, first_row - found), batch.num_rows)
            found += batch.num_rows
            if skipped < batch.num_rows or not batch.num_rows:
                yield (batch if columns is None else batch.select(list(columns))).slice(skipped)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        table = pa.Table.from_batches(list(self.batches()), self.schema)
        return table if columns is None else table.select(list(columns))
