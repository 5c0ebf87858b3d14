"""Parts: what a part function gets (a `Part`) and what it returns (`Rows`, or the part it got: `Unchanged`).

Reading a stored part needs one row group at a time, so memory is bounded however large the part is.

A stored part that *extends* another has two files, its own columns and a link to the file of the other, and reads as
one. Where its rows are only some of the other's, its file has their numbers in the column `EXTENDED_ROW`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.arrays import Integers
from everytoken.shards.digests import file_sha256
from everytoken.shards.errors import DamagedStore, ShardsError
from everytoken.shards.ledger import HeldFile
from everytoken.shards.part_progress import count_rows_read
from everytoken.shards.table_digests import stored_content, table_digest
from everytoken.system_errors import raise_trouble

BATCH_ROWS = 8_192
EXTENDED_ROW = "extended_row"

_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # what pyarrow raises over bytes that are no parquet

Statistics = Mapping[str, Any]


@dataclass(frozen=True)
class SetAside:
    """A batch of rows that do not become rows of the part, with their reasons; see `Rows`."""

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Rows:
    """What a part function returns: a schema, and a generator of batches whose return value is a dict of statistics.

    The statistics (counts by reason, histograms; plain JSON, deterministic) stay in the ledger.

    A function that leaves rows out gives the schema ``set_aside`` and yields them as `SetAside` batches; they are kept
    in a file next to the part. Its statistics then have ``rows_in``, which must be the rows of both: none is lost.

    A function that adds columns to rows of a part makes them with `extending`, which sets ``extends`` and ``chosen``.
    """

    schema: pa.Schema
    batches: Generator[pa.RecordBatch | SetAside, None, Statistics]
    set_aside: pa.Schema | None = None
    extends: Part | None = None
    chosen: Integers | None = None

    @staticmethod
    def extending(
        part: Part,
        fields: Sequence[pa.Field],
        own: Generator[pa.RecordBatch, None, Statistics],
        chosen: Integers | None = None,
    ) -> Rows:
        """Return rows of ``part`` with columns after its own. A store writes these alone, and links the file of the
        part; but the columns of a planned part, which is no file, are written.

        Args:
            fields: the columns.
            own: their values, in batches of any size; its return value is the statistics.
            chosen: numbers of the rows, ascending, int64 (rows,); None: all rows.
        """
        schema = pa.schema([*part.schema, *fields])
        theirs = part.batches() if chosen is None else chosen_rows(part.batches(), chosen)
        return Rows(schema, side_by_side(theirs, own, schema), extends=part, chosen=chosen)

    def copied(self) -> Rows:
        """Return the same rows, of which a store writes all columns."""
        return replace(self, extends=None, chosen=None)


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


def extended_path(path: Path) -> Path:
    """Return where the file is linked of the part that the one at ``path`` extends."""
    return path.with_suffix(".extended.parquet")


@dataclass(frozen=True)
class StoredPart:
    """A part in a parquet file.

    Attributes:
        path: of the file; of one that is kept elsewhere that of its copy, see `at_hand`.
        extended: the part whose columns come before those of the file.
        held: the file, where it is kept elsewhere.
    """

    name: str
    index: int
    path: Path
    rows: int
    digest: str
    sha256: str
    extended: StoredPart | None = None
    held: HeldFile | None = None

    @staticmethod
    def at(path: Path, index: int = 0) -> StoredPart:
        """Return the part in a file of a complete store by its files alone: its digests are not known.

        Raises:
            DamagedStore: a file is not there, or cannot be read.
        """
        extended = extended_path(path)
        part = StoredPart(
            path.stem, index, path, 0, "", "", StoredPart.at(extended, index) if extended.is_file() else None
        )
        with part._open() as file:
            return replace(part, rows=file.metadata.num_rows)

    @property
    def value(self) -> Any:
        raise ShardsError(f"{self.name} holds rows, not a value; read its batches()")

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """Give the path of the file, which stays there while the block runs."""
        if self.held is None:
            yield self.path
            return
        with self.held.at_hand() as path:
            yield path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size if self.held is None else self.held.size

    def verify(self) -> None:
        """Check that the file is the one that was written, by its SHA-256.

        What is made from a part is recorded as made from its digest, so its content is checked where it is used.

        Raises:
            DamagedStore: it is not.
        """
        if self.held is not None:
            self.held.verify()
        else:
            try:
                found = file_sha256(self.path)
            except OSError as error:
                raise self._damaged(error) from error
            if found != self.sha256:
                raise self._damaged(f"its SHA-256 is {found}, expected {self.sha256}")
        if self.extended is not None:
            self.extended.verify()

    def content(self) -> tuple[int, str]:
        """Return rows and content digest as they are found, read a batch at a time.

        Raises:
            DamagedStore: a file cannot be read.
        """
        try:
            if self.extended is None:
                with self.at_hand() as path:
                    return stored_content(path)
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        return self.rows, table_digest(self.schema, self.batches())

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        with self.at_hand() as path:
            try:
                opened = pq.ParquetFile(path, page_checksum_verification=True)
            except _UNREADABLE as error:
                raise self._damaged(error) from error
            with opened as file:
                yield file

    def _damaged(self, error: Exception | str) -> DamagedStore:
        if isinstance(error, Exception):
            raise_trouble(error)
        where = self.path if self.held is None else self.held.shown
        return DamagedStore(
            f"{where} cannot be read ({error}). It is not the file that was written; "
            "run the pipeline that makes it again: damaged parts are found by their SHA-256 and rebuilt."
        )

    @property
    def schema(self) -> pa.Schema:
        if self.extended is None:
            return self._own_schema
        own = [field for field in self._own_schema if field.name != EXTENDED_ROW]
        return pa.schema([*self.extended.schema, *own])

    @property
    def selects(self) -> bool:
        """Whether its rows are only some of those of the part that it extends."""
        return self.extended is not None and EXTENDED_ROW in self._own_schema.names

    @cached_property
    def _own_schema(self) -> pa.Schema:
        with self._open() as file:
            try:
                return file.schema_arrow
            except _UNREADABLE as error:
                raise self._damaged(error) from error

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        if self.extended is None:
            return self._own_batches(columns, first_row)
        names = self.schema.names if columns is None else columns
        self._require(names, self.schema.names)
        of_extended = set(self.extended.schema.names)
        theirs = [name for name in names if name in of_extended]
        own = [name for name in names if name not in of_extended]
        if not theirs:
            return self._own_batches(own, first_row)
        found = self._extended_batches(self.extended, theirs, first_row)
        if not own:
            return found
        both = side_by_side(found, self._own_batches(own, first_row))
        return (batch.select(list(names)) for batch in both)

    def _require(self, columns: Sequence[str], names: list[str]) -> None:
        if unknown := sorted(set(columns) - set(names)):  # pyarrow would leave them out without a word
            raise ShardsError(f"{self.path} has no columns {unknown}, only {names}")

    def _extended_batches(self, extended: StoredPart, columns: list[str], first_row: int) -> Iterator[pa.RecordBatch]:
        if not self.selects:
            return extended.batches(columns, first_row)
        numbers = self.numbers(first_row)
        first = int(numbers[0]) if len(numbers) else extended.rows
        return chosen_rows(extended.batches(columns, first), numbers - first)

    def numbers(self, first_row: int = 0) -> Integers:
        """Return which rows of the part that it extends it selects, int64 (rows,)."""
        columns = [batch.column(0) for batch in self._own_batches([EXTENDED_ROW], first_row)]
        found = [np.frombuffer(one.buffers()[1], np.int64, len(one), one.offset * 8) for one in columns]
        return np.concatenate([np.empty(0, np.int64), *found])  # `to_numpy` would load pandas, for a trace of one token

    def _own_batches(self, columns: Sequence[str] | None, first_row: int) -> Iterator[pa.RecordBatch]:
        found = 0
        with self._open() as file:
            try:
                self._require(columns or (), file.schema_arrow.names)
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
                        count_rows_read(batch.num_rows)
            except _UNREADABLE as error:
                raise self._damaged(error) from error
        if found != self.rows:  # checksums cover pages, but not the page headers and footer that count them
            raise self._damaged(f"{found} rows found, {self.rows} written")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        batches, schema = list(self.batches(columns)), self.schema
        return pa.Table.from_batches(batches, schema if columns is None else pa.schema(map(schema.field, columns)))


def chosen_rows(batches: Iterator[pa.RecordBatch], chosen: Integers) -> Iterator[pa.RecordBatch]:
    """Yield rows of consecutive batches by their numbers, which ascend, int64 (rows,)."""
    start = 0
    for batch in batches:
        low, high = np.searchsorted(chosen, (start, start + batch.num_rows))
        if low < high:
            here = pa.py_buffer(chosen[low:high] - start)  # `pa.array` would load pandas
            taken = pa.Array.from_buffers(pa.int64(), int(high - low), [None, here])
            yield batch if len(taken) == batch.num_rows else batch.take(taken)
        start += batch.num_rows


def side_by_side(
    first: Iterator[pa.RecordBatch], second: Iterator[pa.RecordBatch], schema: pa.Schema | None = None
) -> Generator[pa.RecordBatch, None, Any]:
    """Yield batches with the columns of both, cut where a batch of either ends; return what ``second`` returns.

    Raises:
        ShardsError: they have different numbers of rows.
    """
    returned: list[Any] = []

    def until_it_returns() -> Iterator[pa.RecordBatch]:
        returned.append((yield from cast(Generator[pa.RecordBatch, None, Any], second)))

    lefts, rights = (filter(len, batches) for batches in (first, until_it_returns()))
    left = right = pa.record_batch([], pa.schema([]))
    while True:
        left = left if len(left) else next(lefts, left)
        right = right if len(right) else next(rights, right)
        rows = min(len(left), len(right))
        if not rows:
            break
        schema = schema or pa.schema([*left.schema, *right.schema])
        columns = [*left.slice(0, rows).columns, *right.slice(0, rows).columns]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        left, right = left.slice(rows), right.slice(rows)
    if more := len(left) + len(right) + sum(map(len, chain(lefts, rights))):
        raise ShardsError(f"the columns of a part and those added to it differ in length, by {more:,} rows")
    return returned[0]


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
