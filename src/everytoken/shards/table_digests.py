"""Digests of tables: SHA-256 over a canonical form, the same on every machine and library version.

The *content digest* of a table is over its column names, canonical types and values in row order. It does not change
with compression, row groups, batch boundaries, offset width (``string`` and ``large_string`` are one type here) or
library versions, so two people can compare a table without comparing files.

Each column is a tree of streams that can be hashed batch by batch: positions of nulls (int64), lengths of
variable-size values (int64), bytes of the non-null values (little-endian). The digest of a column is SHA-256 of the
canonical JSON of the digests of its streams and children; that of a table, of its schema, row count and columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.shards.digests import value_digest
from everytoken.shards.errors import RecipeError


def type_name(kind: pa.DataType) -> str:
    """Return the canonical name of an Arrow type (pyarrow's own names change between versions).

    Raises:
        RecipeError: the type has no canonical form here.
    """
    if pa.types.is_dictionary(kind):
        return type_name(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "utf8"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{json.dumps(field.name)}:{type_name(field.type)}" for field in kind) + ">"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()).name)
    if pa.types.is_null(kind):
        return "null"
    raise RecipeError(f"column type {kind} has no canonical form; use text, numbers, booleans, lists or structs")


class _Column:
    """The streams of one column."""

    def __init__(self, kind: pa.DataType) -> None:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        self._name = type_name(kind)
        self._rows = 0
        self._nulls, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._children: list[_Column] = []
        if self._name.startswith("list<"):
            self._children = [_Column(kind.value_type)]
        elif self._name.startswith("struct<"):
            self._children = [_Column(field.type) for field in kind]

    def update(self, array: pa.Array) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        rows = len(array)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + self._rows
            self._nulls.update(nulls.astype("<i8").tobytes())
            array = array.drop_null()
        self._rows += rows
        if not len(array):
            return
        if self._name in ("utf8", "binary"):
            wide = array.cast(pa.large_string() if self._name == "utf8" else pa.large_binary())
            _, offset_buffer, data = wide.buffers()
            offsets = np.frombuffer(offset_buffer, "<i8")[wide.offset : wide.offset + len(wide) + 1]
            self._lengths.update(np.diff(offsets).tobytes())
            if data is not None:
                self._values.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        elif self._name.startswith("list<"):
            if pa.types.is_fixed_size_list(array.type):
                lengths = np.full(len(array), array.type.list_size)
            else:
                lengths = array.value_lengths().to_numpy(zero_copy_only=False)
            self._lengths.update(lengths.astype("<i8").tobytes())
            self._children[0].update(array.flatten())
        elif self._name.startswith("struct<"):
            for child, values in zip(self._children, array.flatten(), strict=True):
                child.update(values)
        else:
            values = array.cast(pa.uint8()) if self._name == "bool" else array
            numbers = values.to_numpy(zero_copy_only=False)
            self._values.update(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes())

    def tree(self) -> list[Any]:
        streams = [self._rows, self._nulls.hexdigest(), self._lengths.hexdigest(), self._values.hexdigest()]
        return [*streams, [child.tree() for child in self._children]]


class TableDigest:
    """Content digest of a table given batch by batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = [[field.name, type_name(field.type)] for field in schema]
        self._columns = [_Column(field.type) for field in schema]
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of ``batch`` (columns in the order of the schema)."""
        self._rows += batch.num_rows
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.update(array)

    def hexdigest(self) -> str:
        """Return the digest of the rows so far."""
        return value_digest(
            {"schema": self._schema, "rows": self._rows, "columns": [column.tree() for column in self._columns]}
        )


def table_digest(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
    """Return the content digest of the rows of ``batches``."""
    digest = TableDigest(schema)
    for batch in batches:
        digest.update(batch)
    return digest.hexdigest()


def stored_content(path: Path) -> tuple[int, str]:
    """Return rows and content digest of the table in a parquet file, read a batch at a time."""
    with pq.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        batches = (one for i in groups for one in file.iter_batches(row_groups=[i]))
        return file.metadata.num_rows, table_digest(file.schema_arrow, batches)
