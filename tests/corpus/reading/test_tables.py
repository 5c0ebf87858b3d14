"""Tables that claim what they do not hold, hold more than they weigh, or have columns that nobody asked for."""

from __future__ import annotations

import decimal
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.corpus.errors import RowError
from everytoken.corpus.reading.lines import UnreadableRow
from everytoken.corpus.reading.readers import count_rows
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.reading.tables import _parquet_batches
from everytoken.corpus.rendering.renderers import JoinedRenderer, NamedRenderer
from everytoken.corpus.upstreams.file import UpstreamFile
from tests.corpus.reading.read_rows import LIMITS, file_at, kept, read, reading, set_aside, write_arrow
from tests.corpus.reading.test_bad_input import peak_megabytes
from tests.corpus.rendering.test_chats import renderer

ALL_COLUMNS = NamedRenderer(kind="chat")
JOINED = JoinedRenderer(kind="joined", text_columns=("a", "b"), separator=" ", id_columns=(), stratum_column=None)
SMALL = ReadingLimits(max_row_bytes=1_000, zstd_window_log_max=27)
FORMATS = ["parquet", "arrow"]
TURN = pa.struct([("role", pa.string()), ("content", pa.string())])


def table_file(path: Path, columns: dict[str, Any]) -> UpstreamFile:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        write_arrow(path, table, stream=True)
    return file_at(path)


def list_of(kind: pa.DataType, numbers: list[list[int]], values: pa.Array, length: int) -> pa.Array:
    """Return lists with these offsets (and sizes), whatever they are."""
    code = "<i8" if "large" in str(kind) else "<i4"
    buffers = [pa.py_buffer(np.array(some, code).tobytes()) for some in numbers]
    return pa.Array.from_buffers(kind, length, [None, *buffers], children=[values])


def strings_of(kind: pa.DataType, offsets: list[int], data: bytes) -> pa.Array:
    code = "<i8" if "large" in str(kind) else "<i4"
    buffers = [None, pa.py_buffer(np.array(offsets, code).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


ONE = pa.array([7], pa.int64())
WRAPPING = [0, 2**30, -(2**31), -(2**30), 0, 1]  # each is 2**30 after the one before, in 32 bits
LONG_VIEW = struct.pack("<i4sii", 2**30, b"abcd", 0, 0)
CORRUPT = {
    "list offsets that wrap": list_of(pa.list_(pa.int64()), [WRAPPING], ONE, 5),
    "list offsets beyond the values": list_of(pa.list_(pa.int64()), [[0, 2**20, 2**20, 2**20, 2**20, 1]], ONE, 5),
    "large list offsets": list_of(pa.large_list(pa.int64()), [[0, 2**62, -(2**63), -(2**62), 0, 1]], ONE, 5),
    "list view offsets": list_of(pa.list_view(pa.int64()), [[0, 2**30, 0, 0, 0], [1] * 5], ONE, 5),
    "list view sizes": list_of(pa.list_view(pa.int64()), [[0] * 5, [1, 2**31 - 1, -1, 0, 0]], ONE, 5),
    "lists in lists": list_of(
        pa.list_(pa.list_(pa.int64())), [[0, 1, 2, 3, 4, 5]], list_of(pa.list_(pa.int64()), [WRAPPING], ONE, 5), 5
    ),
    "map offsets": pa.Array.from_buffers(
        pa.map_(pa.string(), pa.int64()),
        5,
        [None, pa.py_buffer(np.array(WRAPPING, "<i4").tobytes())],
        children=[pa.StructArray.from_arrays([pa.array(["k"]), ONE], ["key", "value"])],
    ),
    "string offsets": strings_of(pa.string(), WRAPPING, b"a"),
    "large string offsets": strings_of(pa.large_string(), [0, 2**40, 0, 0, 0, 1], b"a"),
    "strings in structs": pa.StructArray.from_arrays([strings_of(pa.string(), WRAPPING, b"a")], ["content"]),
    "string views": pa.Array.from_buffers(
        pa.string_view(), 5, [None, pa.py_buffer(LONG_VIEW * 5), pa.py_buffer(b"abcdefghijklmnop")]
    ),
    "dictionary indices": pa.DictionaryArray.from_arrays(
        pa.array([0, 2**30, -(2**31), 0, 0], pa.int32()), pa.array(["a"]), safe=False
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_offsets_of_any_level_are_damage_and_never_read_other_memory(
    tmp_path: Path, name: str, stream: bool
) -> None:
    batch = pa.record_batch({"text": ["a"] * 5, "id": CORRUPT[name]})
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(tmp_path / "x.arrow", batch.schema) as sink:
        sink.write_batch(batch)
    with pytest.raises(RowError, match=r"file x\.arrow: truncated or corrupt: column 'id' of the batch that begins"):
        read(file_at(tmp_path / "x.arrow"))


def test_arrow_types_that_are_not_read_are_refused_by_name(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    file = table_file(tmp_path / "x.arrow", {"text": ["a", "b"], "id": runs})
    with pytest.raises(RowError, match=r"column 'id' is of type run_end_encoded.*, which is not read"):
        read(file)


def test_batches_of_short_rows_are_gathered_up_to_1024_rows(tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    pq.write_table(pa.table({"text": [f"text {number}" for number in range(5_000)]}), path)
    limits = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)
    with pq.ParquetFile(path) as parquet:
        rows = [batch.num_rows for batch in _parquet_batches(file_at(path), parquet, 0, ["text"], limits)]
    assert sum(rows) == 5_000 and max(rows) <= 1_024 < 2 * max(rows)


_SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("dictionary", "delta", "after small rows")]


@pytest.mark.parametrize("how", ["typed", *_SLOW])
def test_parquet_of_texts_that_are_stored_once_is_read_in_bounded_memory(tmp_path: Path, how: str) -> None:
    rows, text = 500 if how == "delta" else 1_000, "x" * (2 << 20)
    path = tmp_path / "x.parquet"
    if how == "typed":
        pq.write_table(
            pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])}), path
        )
    else:
        delta = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
        options = delta if how == "delta" else {"dictionary_pagesize_limit": 8 << 20}
        small = [pa.table({"text": ["y"] * 2_000})] if how == "after small rows" else []
        with pq.ParquetWriter(path, pa.schema([("text", pa.string())]), **options) as sink:
            sink.write_table(pa.concat_tables([*small, *[pa.table({"text": [text] * 100})] * (rows // 100)]))
    assert path.stat().st_size < 1 << 20
    work = """
    print(sum(len(row.record["text"]) for row in iterate_rows(file, reading(), limits)) >> 20)
    """
    total, peak = peak_megabytes(path, work)
    assert int(total) == 2 * rows
    assert int(peak) < 300


def nested(text: str) -> dict[str, pa.Array]:
    """Return columns of two rows: one with twice 600 bytes in it, and one without."""
    pair = [text * 600, text * 600]
    plain = pa.array([pair, [text]])
    coded = pa.array([*pair, text]).dictionary_encode()
    return {
        "list": plain,
        "large list": plain.cast(pa.large_list(pa.large_string())),
        "list of dictionary": pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), coded),
        "struct": pa.array([dict(zip("ab", pair, strict=True)), {"a": text, "b": None}]),
        "map": pa.array([[(text * 600, text * 600)], [(text, text)]], pa.map_(pa.string(), pa.string())),
        "messages": pa.array([[{"role": text, "content": one} for one in some] for some in (pair, [text])]),
        "lists in lists": pa.array([[[one] for one in pair], []]),
        "dictionary": pa.array([text * 1_200, text]).dictionary_encode(),
        "text": pa.array([text * 1_200, text]),
        "bytes": pa.array([b"x" * 1_200, b"x"]),
        "many nulls": pa.array([[None] * 126, [None]], pa.list_(pa.null())),
        "many numbers": pa.array([[1] * 126, [1]]),
    }


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", nested("x"))
def test_a_row_is_measured_in_columns_of_any_type(tmp_path: Path, name: str, suffix: str) -> None:
    column = nested("x")[name]
    file = table_file(tmp_path / f"x.{suffix}", {"text": ["a", "b"], "id": column})
    large, small = read(file, limits=SMALL)
    assert isinstance(large, UnreadableRow)
    assert large.reason == "row_too_large"
    assert re.fullmatch(r"the row has 1,\d+ bytes, over max_row_bytes 1,000; .* of column 'id'", large.detail)
    assert kept([small]) == [{"text": "b", "id": column[1].as_py()}]
    assert kept(read(file)) == [
        {"text": text, "id": value} for text, value in zip("ab", column.to_pylist(), strict=True)
    ]
    assert set_aside(read(file, 1, limits=SMALL)) == []


@pytest.mark.parametrize("kind", [pa.string_view(), pa.list_view(pa.string()), pa.list_(pa.string(), 2)])
def test_a_row_is_measured_in_types_that_only_arrow_has(tmp_path: Path, kind: pa.DataType) -> None:
    values = ["x" * 1_200, None, "y"] if pa.types.is_string_view(kind) else [["x" * 600] * 2, None, ["y", None]]
    file = table_file(tmp_path / "x.arrow", {"text": list("abc"), "id": pa.array(values, kind)})
    assert set_aside(read(file, limits=SMALL)) == [(0, None, "row_too_large")]
    assert [record["id"] for record in kept(read(file, limits=SMALL))] == values[1:]
    assert len(kept(read(file, 1, limits=SMALL))) == 2


def test_the_strings_of_a_row_are_measured_together(tmp_path: Path) -> None:
    file = table_file(tmp_path / "x.parquet", {"a": ["x" * 600, "x" * 400], "b": ["y" * 601, "y" * 600]})
    rows = read(file, renderer=JOINED, limits=SMALL)
    assert set_aside(rows) == [(0, None, "row_too_large")]
    assert [row.detail for row in rows if isinstance(row, UnreadableRow)] == [
        "the row has 1,201 bytes, over max_row_bytes 1,000; 601 of them are of column 'b'"
    ]
    assert len(kept(rows)) == 1


OTHERS = {
    "image": pa.array([b"x" * 5_000]),
    "time": pa.array([2**53], pa.timestamp("s")),
    "not utf8": pa.array([b"\xff"], pa.binary()).view(pa.string()),
}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", OTHERS)
def test_a_column_that_the_renderer_does_not_read_decides_over_no_row(tmp_path: Path, name: str, suffix: str) -> None:
    messages = pa.array([[{"role": "user", "content": "a"}]], pa.list_(TURN))
    columns = {"messages": messages, "text": ["a"], "a": ["a"], "b": ["b"], "other": OTHERS[name]}
    file = table_file(tmp_path / f"x.{suffix}", columns)
    assert kept(read(file, limits=SMALL)) == [{"text": "a"}]
    assert kept(read(file, limits=SMALL, renderer=JOINED)) == [{"a": "a", "b": "b"}]
    assert kept(read(file, limits=SMALL, renderer=renderer("messages"))) == [{"messages": messages[0].as_py()}]
    (row,) = read(file, limits=SMALL, renderer=renderer("messages", stratum_column="other"))
    assert isinstance(row, UnreadableRow)
    assert row.reason == {"image": "row_too_large", "time": "cannot_render", "not utf8": "not_utf8"}[name]
    assert "column 'other'" in row.detail


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_table_without_the_columns_of_its_renderer_names_those_it_has(tmp_path: Path, suffix: str) -> None:
    file = table_file(tmp_path / f"x.{suffix}", {"a": ["a"]})
    with pytest.raises(RowError, match=r"there is no column 'b', found the columns \['a'\]. .* text_columns"):
        read(file, renderer=JOINED)
    with pytest.raises(RowError, match=r"none of the columns \['messages'\], found the columns \['a'\]. .*shape"):
        read(file, renderer=renderer("messages"))


def test_a_parquet_footer_with_fewer_rows_than_there_are_loses_none_silently(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(1_000)]}), path)
    intact = path.read_bytes()
    begin = len(intact) - 8 - int.from_bytes(intact[-8:-4], "little")
    refused = []
    for found in re.finditer(b"\xd0\x0f", intact[begin:-8]):  # 1000 as a varint; 488 is d0 07
        damaged = bytearray(intact)
        damaged[begin + found.start() + 1] = 0x07
        file = file_at(path, bytes(damaged))
        try:
            assert len(read(file)) == 1_000  # the number of values of a column chunk, or a size
        except RowError as error:
            refused.append(str(error))
            with pytest.raises(RowError, match="the footer tells"):
                count_rows(file, reading(), LIMITS)
    assert [message.split(": ")[2].split(". ")[0] for message in refused] == [
        "the footer tells 488 rows, and 1000 in its 1 row groups",
        "the footer tells 1000 rows, and 488 in its 1 row groups",
    ]


def test_a_decimal_that_python_has_not_names_its_row_and_column(tmp_path: Path) -> None:
    digits = pa.array([1, 2], pa.int64()).cast(pa.decimal128(20, 0)).buffers()
    column = pa.Array.from_buffers(pa.decimal128(20, -(2**30)), 2, digits)
    file = table_file(tmp_path / "x.arrow", {"text": ["a", "b"], "price": column})
    rows = read(file, renderer=ALL_COLUMNS)
    assert set_aside(rows) == [(0, None, "cannot_render"), (1, None, "cannot_render")]
    assert [row.detail.split(" (")[0] for row in rows if isinstance(row, UnreadableRow)] == [
        "column 'price': a value has no form in Python"
    ] * 2
    assert decimal.InvalidOperation.__name__ in str(rows[0])
    beyond = pa.Array.from_buffers(pa.decimal128(3, 0), 1, [None, pa.py_buffer(b"\xff" * 15 + b"\x7f")])
    with pytest.raises(RowError, match=r"column 'price' .* does not fit in precision"):
        read(table_file(tmp_path / "y.arrow", {"text": ["a"], "price": beyond}), renderer=ALL_COLUMNS)


def test_the_same_rows_come_of_a_slice_as_of_the_whole(tmp_path: Path) -> None:
    values = [["x" * (number % 7)] * (number % 3) if number % 5 else None for number in range(40)]
    kinds = [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_view(pa.string())]
    columns = {str(kind): pa.array(values, kind) for kind in kinds}
    texts = pa.array([str(value) for value in values])
    columns |= {"view": texts.cast(pa.string_view()), "code": texts.cast(pa.dictionary(pa.uint64(), pa.string()))}
    table = pa.table(columns)
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as sink:
        sink.write_table(table)
    limits = ReadingLimits(max_row_bytes=50, zstd_window_log_max=27)
    for each in (LIMITS, limits):
        whole = read(file_at(tmp_path / "x.arrow"), renderer=ALL_COLUMNS, limits=each)
        assert [row.number for row in whole] == list(range(40))
        for first in range(41):
            assert read(file_at(tmp_path / "x.arrow"), first, renderer=ALL_COLUMNS, limits=each) == whole[first:]
    assert 0 < len(kept(whole)) < 40


@pytest.mark.parametrize("rows", [0, 1, 3, 2_500])
def test_rows_are_the_same_whatever_batches_they_are_read_in(tmp_path: Path, rows: int) -> None:
    texts = [f"{number} " * (number % 50) for number in range(rows)]
    columns = {
        "text": pa.array(texts, pa.string()),
        "id": pa.array([[text, None] for text in texts], pa.list_(pa.string())),
    }
    for typed in (columns, {**columns, "id": columns["text"].dictionary_encode()}):
        expected = pa.table(typed).to_pylist()
        pq.write_table(pa.table(typed), tmp_path / "x.parquet", row_group_size=700)
        for most in (1 << 20, 4 << 20, 32 << 20):
            found = read(
                file_at(tmp_path / "x.parquet"),
                limits=ReadingLimits(max_row_bytes=most, zstd_window_log_max=27),
            )
            assert kept(found) == expected
            assert [row.number for row in found] == list(range(rows))
        assert kept(read(file_at(tmp_path / "x.parquet"), rows // 2)) == expected[rows // 2 :]


def test_an_arrow_stream_that_lost_its_end_is_no_shorter_stream(tmp_path: Path) -> None:
    """Arrow itself reads a stream without its last batches, or without its marker, as if it ended there."""
    path = tmp_path / "x.arrow"
    table = pa.table({"text": ["a", "b", "c"]})
    with pa.ipc.new_stream(path, table.schema) as sink:
        sink.write_table(table)
        before = path.stat().st_size
        sink.write_table(table)
    whole = path.read_bytes()
    assert len(read(file_at(path))) == 6
    for rest in (whole[:before], whole[:-8], whole[:-1], whole + b"\0", whole + whole[-8:]):
        path.write_bytes(rest)
        with pytest.raises(RowError, match=r"file x\.arrow: truncated or corrupt"):
            read(file_at(path))
