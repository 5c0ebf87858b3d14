"""A content digest says which values in which rows, and nothing about how they are stored."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.shards import RecipeError, ShardsError, canonical_json, file_sha256, table_digest
from everytoken.shards.digests import plain_json
from everytoken.shards.table_digests import type_name

quick = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

# Few different values, so that generated tables are often nearly the same: that is where digests could collide.
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-1, 2),
    pa.uint8(): st.integers(0, 255),
    pa.float32(): st.sampled_from([0.0, -0.0, 0.5, float("inf")]),
    pa.bool_(): st.booleans(),
    pa.string(): st.text("aé\U0001f600", max_size=2),
    pa.binary(): st.binary(max_size=2),
    pa.list_(pa.int16()): st.lists(st.none() | st.integers(0, 1), max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | st.text("ab", max_size=2), max_size=3),
    pa.list_(pa.list_(pa.int8())): st.lists(st.none() | st.lists(st.integers(0, 1), max_size=2), max_size=2),
    pa.struct([("a", pa.int8()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 1), "b": st.none() | st.text("ab", max_size=1)}
    ),
    pa.list_(pa.struct([("a", pa.int8())])): st.lists(
        st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1)}), max_size=2
    ),
}


@st.composite
def columns(draw: st.DrawFn, count: int = 1) -> tuple[pa.DataType, list[list[Any]]]:
    kind = draw(st.sampled_from(list(TYPES)))
    lists = st.lists(st.none() | TYPES[kind], max_size=8)
    return kind, [draw(lists) for _ in range(count)]


def digest(values: list[Any], kind: pa.DataType | None = None, name: str = "c") -> str:
    return digest_of(pa.table({name: pa.array(values, kind)}))


def digest_of(table: pa.Table) -> str:
    return table_digest(table.schema, table.to_batches())


def widened(kind: pa.DataType) -> pa.DataType:
    """Return the type with large offsets everywhere."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(widened(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, widened(field.type)) for field in kind])
    return kind


@quick
@given(columns(), st.lists(st.integers(1, 3), min_size=8, max_size=8))
def test_digest_does_not_depend_on_batch_boundaries(column: Any, sizes: list[int]) -> None:
    kind, (values,) = column
    schema = pa.schema([("c", kind)])
    batches, start = [], 0
    for size in sizes:
        batches += [pa.record_batch([pa.array(values[start : start + size], kind)], schema)]
        start += size
    assert table_digest(schema, batches) == digest(values, kind)


@quick
@given(columns())
def test_digest_does_not_depend_on_offset_width(column: Any) -> None:
    kind, (values,) = column
    assert digest(values, widened(kind)) == digest(values, kind)


@quick
@given(columns(count=3), st.booleans())
def test_digest_does_not_depend_on_slicing_offsets(column: Any, wide: bool) -> None:
    kind, (before, values, after) = column
    kind = widened(kind) if wide else kind
    whole = pa.array(before + values + after, kind)
    schema = pa.schema([("c", kind)])
    cut = pa.record_batch([whole.slice(len(before), len(values))], schema)
    assert table_digest(schema, [cut]) == digest(values, kind)


@quick
@given(st.lists(st.none() | st.text("ab", max_size=2), max_size=8), st.integers(0, 8))
def test_digest_does_not_depend_on_dictionary_encoding(values: list[str | None], cut: int) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("c", kind)])
    halves = [pa.array(half, pa.string()).dictionary_encode().cast(kind) for half in (values[:cut], values[cut:])]
    assert table_digest(schema, [pa.record_batch([half], schema) for half in halves]) == digest(values, pa.string())


@quick
@given(columns(), st.sampled_from(["none", "zstd", "snappy"]), st.integers(1, 9), st.booleans())
def test_digest_does_not_depend_on_parquet_compression_or_row_groups(
    column: Any, compression: str, group: int, dictionary: bool
) -> None:
    kind, (values,) = column
    file = io.BytesIO()
    table = pa.table({"c": pa.array(values, kind)})
    pq.write_table(table, file, compression=compression, row_group_size=group, use_dictionary=dictionary)
    assert digest_of(pq.read_table(file)) == digest(values, kind)


@settings(quick, max_examples=400)
@given(columns(count=2))
def test_digests_agree_exactly_when_the_values_do(column: Any) -> None:
    kind, (left, right) = column
    assert (digest(left, kind) == digest(right, kind)) == (repr(left) == repr(right))  # repr tells -0.0 from 0.0


def test_digest_changes_with_anything_that_is_content() -> None:
    nested = pa.list_(pa.list_(pa.int64()))
    tables = {
        "as it is": pa.table({"a": [1, 2], "b": ["x", ""]}),
        "a value": pa.table({"a": [1, 3], "b": ["x", ""]}),
        "null for a number": pa.table({"a": [1, None], "b": ["x", ""]}),
        "null for empty text": pa.table({"a": [1, 2], "b": ["x", None]}),
        "order of rows": pa.table({"a": [2, 1], "b": ["", "x"]}),
        "order of columns": pa.table({"b": ["x", ""], "a": [1, 2]}),
        "name of a column": pa.table({"A": [1, 2], "b": ["x", ""]}),
        "names swapped": pa.table({"b": [1, 2], "a": ["x", ""]}),
        "type of a column": pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", ""]}),
        "sign of a type": pa.table({"a": pa.array([1, 2], pa.uint64()), "b": ["x", ""]}),
        "bytes for text": pa.table({"a": [1, 2], "b": [b"x", b""]}),
        "one row more": pa.table({"a": [1, 2, 3], "b": ["x", "", ""]}),
        "one row less": pa.table({"a": [1], "b": ["x"]}),
        "no row": pa.table({"a": [1], "b": ["x"]}).slice(0, 0),
        "no columns": pa.table({}),
        "boundary of texts": pa.table({"a": [1, 2], "b": ["", "x"]}),
        "lists": pa.table({"a": [[1], [2]]}),
        "boundary of lists": pa.table({"a": [[1, 2], []]}),
        "null for an empty list": pa.table({"a": [[1, 2], None]}),
        "deep boundary": pa.table({"a": pa.array([[[1], [2]]], nested)}),
        "other deep boundary": pa.table({"a": pa.array([[[1, 2], []]], nested)}),
        "all null": pa.table({"a": pa.nulls(2), "b": ["x", ""]}),
        "all null, typed": pa.table({"a": pa.nulls(2, pa.int64()), "b": ["x", ""]}),
        "struct": pa.table({"a": [{"x": 1, "y": 2}]}),
        "struct, fields renamed": pa.table({"a": [{"x": 1, "z": 2}]}),
        "struct of nulls": pa.table({"a": pa.array([{"x": None}, {"x": None}], pa.struct([("x", pa.int8())]))}),
        "null for a struct": pa.table({"a": pa.array([{"x": None}, None], pa.struct([("x", pa.int8())]))}),
    }
    digests = {name: digest_of(table) for name, table in tables.items()}
    assert len(set(digests.values())) == len(tables), digests


def test_names_that_look_like_types_do_not_collide() -> None:
    left = pa.struct([("a", pa.int8()), ("b:int8,c", pa.int8())])
    right = pa.struct([("a:int8,b", pa.int8()), ("c", pa.int8())])
    assert type_name(left) != type_name(right)


def test_hidden_bytes_below_nulls_are_no_content() -> None:
    numbers = pa.array([1, 999, 3])
    hidden = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(bytes([0b101])), numbers.buffers()[1]])
    assert hidden.to_pylist() == [1, None, 3]
    assert digest_of(pa.table({"c": hidden})) == digest([1, None, 3])
    lists = pa.array([[1, 2], [3, 4, 5], [6]])
    masked = pa.Array.from_buffers(
        lists.type, 3, [pa.py_buffer(bytes([0b101])), lists.buffers()[1]], children=[lists.values]
    )
    assert digest_of(pa.table({"c": masked})) == digest([[1, 2], None, [6]])


def test_digest_is_the_documented_construction() -> None:
    """Worked out by hand, so that no version of a library or of this package may change it unseen."""

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    nulls = sha((1).to_bytes(8, "little"))
    lengths = sha((2).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    tree = [3, nulls, lengths, sha(b"abc"), []]
    expected = {"schema": [["c", "utf8"]], "rows": 3, "columns": [tree]}
    assert digest(["ab", None, "c"]) == sha(json.dumps(expected, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize("kind", [pa.decimal128(5), pa.timestamp("s"), pa.date32(), pa.map_(pa.string(), pa.int8())])
def test_types_without_a_canonical_form_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(RecipeError, match="no canonical form"):
        table_digest(pa.schema([("c", kind)]), [])


def test_file_digest_is_sha256(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "f").write_bytes(data)
    assert file_sha256(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_canonical_json_ignores_key_order_and_refuses_nan() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'
    assert canonical_json(1) != canonical_json(1.0)
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
)


@quick
@given(json_values)
def test_plain_json_is_what_is_read_back(value: Any) -> None:
    assert repr(plain_json(value, "it")) == repr(value) == repr(json.loads(json.dumps(value)))


def test_plain_json_takes_tuples_and_numpy_scalars() -> None:
    given = {"pair": (np.int64(1), np.float32(0.5)), "flag": np.bool_(True)}
    assert repr(plain_json(given, "it")) == repr({"pair": [1, 0.5], "flag": True})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, float("nan")]}, r"it\['a'\]\[1\] is nan"),
        ({"a": np.float32("inf")}, r"it\['a'\] is inf"),
        ({"a": {1: 2}}, r"it\['a'\] has the key 1"),
        ({"a": {1, 2}}, r"it\['a'\] is a set"),
        (np.arange(3), "it is a ndarray"),
    ],
)
def test_plain_json_names_the_place_of_what_json_does_not_know(value: Any, message: str) -> None:
    with pytest.raises(ShardsError, match=message):
        plain_json(value, "it")
