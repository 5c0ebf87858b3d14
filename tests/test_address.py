"""Addresses of documents: as text, as records, as tuples and as columns of tables."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.address import (
    ADDRESS_COLUMNS,
    Address,
    Addressed,
    address_at,
    address_columns,
    address_fields,
    address_rows,
    file_of,
)

ADDRESSES = st.builds(Address, st.text(min_size=1), st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 62))


def table_of(addresses: list[Address]) -> pa.RecordBatch:
    columns = zip(*addresses, strict=True) if addresses else ([], [], [])
    fields = address_fields(nullable=False)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@given(ADDRESSES)
def test_an_address_is_taken_as_it_is_shown(address: Address) -> None:
    source, file, row = address
    assert Address.parse(str(address)) == address
    assert Address.parse(f"{address}") == address
    assert Address.parse(f"{source}\t{file}\t{row}") == address
    assert Address.parse(f"{source}/{file}") != address


@pytest.mark.parametrize("text", ["", "web", "web/0", "/0/1", "web/0/-1", "web/0/1.5", "web/0/1/", "web/0/", "web/a/1"])
def test_a_text_that_spells_no_address_is_none(text: str) -> None:
    assert Address.parse(text) is None


@given(ADDRESSES)
def test_an_address_is_the_plain_tuple_of_its_members(address: Address) -> None:
    plain = (address.source, address.shard_index, address.row)
    assert address == plain and hash(address) == hash(plain)
    assert {plain: "found"}[address] == "found" and {address: "found"}[plain] == "found"
    copy = pickle.loads(pickle.dumps(address))
    assert copy == address and type(copy) is Address


@given(ADDRESSES)
def test_records_have_addresses(address: Address) -> None:
    record = {"id": "7", **address._asdict(), "text": "x"}
    assert Address.of(record) == address
    assert file_of(record) == address[:2]
    assert Addressed(*address).address == address
    assert vars(Addressed(*address)) == address._asdict()


def test_the_columns_are_those_that_files_have() -> None:
    assert ADDRESS_COLUMNS == ("source", "shard_index", "row")
    types = [pa.string(), pa.int32(), pa.int64()]
    for nullable in (False, True):
        fields = address_fields(nullable=nullable)
        assert [field.name for field in fields] == list(ADDRESS_COLUMNS)
        assert [field.type for field in fields] == types
        assert {field.nullable for field in fields} == {nullable}


@given(st.lists(ADDRESSES, max_size=20))
def test_all_ways_to_read_a_table_give_the_same_addresses(addresses: list[Address]) -> None:
    batch = table_of(addresses)
    assert list(address_rows(batch)) == addresses
    assert [address_at(batch, row) for row in range(len(addresses))] == addresses
    assert [Address.of(row) for row in batch.to_pylist()] == addresses
    columns = address_columns(batch)
    names = np.array(columns.sources.to_pylist(), object)[columns.source]
    assert list(zip(names, columns.shard_index.tolist(), columns.row.tolist(), strict=True)) == addresses


def test_a_file_and_a_slice_of_a_batch_are_read_alike(tmp_path: Path) -> None:
    """Other columns between those of the address, in another order, and rows before the first one that is read."""
    addresses = [Address("web" if row % 3 else "code", row // 4, row) for row in range(12)]
    batch = table_of(addresses).select(["row", "source", "shard_index"])
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "documents.parquet")
    table = pq.read_table(tmp_path / "documents.parquet")
    assert list(address_rows(table)) == addresses and address_at(table, 5) == addresses[5]
    columns = address_columns(batch.slice(7))
    names = [columns.sources[number].as_py() for number in columns.source.tolist()]
    assert [Address(*one) for one in zip(names, columns.shard_index, columns.row, strict=True)] == addresses[7:]


def test_a_row_without_address_is_no_column_of_addresses() -> None:
    """It must not become the address 0 of a source."""
    batch = pa.RecordBatch.from_pylist(
        [{"source": "web", "shard_index": None, "row": 1}], pa.schema(address_fields(nullable=True))
    )
    with pytest.raises(pa.ArrowInvalid):
        address_columns(batch)
