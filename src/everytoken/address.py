"""The address of a document: its source, the number of its file there, and the number of its row in that file.

Files are numbered in the order of their paths and rows before any filter, both from 0. An address never changes, and
no two rows of an upstream share one. Users read and write it as ``SOURCE/FILE/ROW``, for example ``wikipedia/0/8544``.
The name of a source may contain slashes: the last two members are the numbers.

Tables have a column for each member (`ADDRESS_COLUMNS`). `Address` is for single documents. What passes over all
documents works on the columns (`address_columns`) or on plain tuples (`address_rows`), which are equal to addresses and
cost no object of ours a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # Arrow is loaded where tables are; a command that only spells an address does without
    import numpy as np
    import pyarrow as pa

_SPELLED = re.compile(r"(.+)[/\t ]([0-9]+)[/\t ]([0-9]+)", re.DOTALL)


class Address(NamedTuple):
    """Where a document came from; equal to the plain tuple of its members."""

    source: str
    shard_index: int
    row: int

    def __str__(self) -> str:
        return f"{self.source}/{self.shard_index}/{self.row}"

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Return the address that a text spells; None if it spells none. Tabs and spaces may replace the slashes."""
        found = _SPELLED.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Address:
        """Return the address of a record: values by column, as of a row of a table or of an object of a JSON file."""
        return cls(*(record[name] for name in ADDRESS_COLUMNS))


ADDRESS_COLUMNS = Address._fields
SHARD_INDEX = ADDRESS_COLUMNS[1]


@dataclass(frozen=True)
class Addressed:
    """A record whose first fields are the address of its document."""

    source: str
    shard_index: int
    row: int

    @property
    def address(self) -> Address:
        """Where the document came from."""
        return Address(self.source, self.shard_index, self.row)


def file_of(record: Mapping[str, Any]) -> tuple[str, int]:
    """Return source and number of the file of a shard of the plan, or of any record with an address."""
    return record[ADDRESS_COLUMNS[0]], record[SHARD_INDEX]


def address_fields(*, nullable: bool) -> list[pa.Field]:
    """Return the fields of the columns of an address, for the schema of a table."""
    import pyarrow as pa

    types = (pa.string(), pa.int32(), pa.int64())
    return [pa.field(name, kind, nullable) for name, kind in zip(ADDRESS_COLUMNS, types, strict=True)]


def address_at(rows: pa.RecordBatch | pa.Table, row: int) -> Address:
    """Return the address of one row."""
    return Address(*(rows.column(name)[row].as_py() for name in ADDRESS_COLUMNS))


def address_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield the addresses of all rows in order, as plain tuples."""
    return zip(*(rows.column(name).to_pylist() for name in ADDRESS_COLUMNS), strict=True)


class AddressColumns(NamedTuple):
    """The addresses of a batch; arrays of shape (rows,), where ``source`` numbers the names in ``sources``."""

    sources: pa.Array
    source: np.ndarray
    shard_index: np.ndarray
    row: np.ndarray


def address_columns(batch: pa.RecordBatch) -> AddressColumns:
    """Return the addresses of a batch by column.

    Raises:
        pyarrow.ArrowInvalid: a row has no address.
    """
    source, *numbers = (batch.column(name) for name in ADDRESS_COLUMNS)
    coded = source.dictionary_encode()
    return AddressColumns(coded.dictionary, coded.indices.to_numpy(), *(column.to_numpy() for column in numbers))
