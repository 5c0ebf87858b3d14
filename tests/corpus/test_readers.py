from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.readers import Row, count_rows, iterate_rows
from everytoken.corpus.renderers import DocumentRenderer, NamedRenderer
from everytoken.corpus.upstreams import UpstreamFile
from tests.corpus.test_upstreams import TEXT_ROWS, path_source
from tests.shared_assets import shared_folder

TEXT = DocumentRenderer.model_validate(TEXT_ROWS)
CHAT = NamedRenderer(kind="chat")
# breaks for str.splitlines, not for JSON Lines
LINES = st.text(st.sampled_from("ab\u2028\u2029\x85\x0b\x0c\x1c\r\n é😀"), max_size=8)


def file_at(path: Path) -> UpstreamFile:
    return UpstreamFile("s", path.name, path, None)


def write(path: Path, records: list[dict[str, Any]]) -> UpstreamFile:
    """Write records in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return file_at(path)


def read(file: UpstreamFile, first: int = 0, rows: int | None = None, records: str | None = None) -> list[Row]:
    return list(iterate_rows(file, records, TEXT, first, rows))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "parquet"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(LINES, min_size=1, max_size=9), data=st.data())
def test_any_range_of_any_format_gives_the_rows_of_the_file(
    tmp_path: Path, suffix: str, texts: list[str], data: st.DataObject
) -> None:
    records = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    file = write(tmp_path / f"x.{suffix}", records)
    first = data.draw(st.integers(0, len(texts)))
    rows = data.draw(st.integers(0, len(texts) - first))
    expected = [Row(number, None, record) for number, record in enumerate(records)]
    assert read(file, first, rows) == expected[first : first + rows]
    assert read(file, first) == expected[first:]
    assert count_rows(file, path_source(tmp_path)) == len(texts)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "parquet"])
def test_a_member_is_read_inside_its_wheel(tmp_path: Path, suffix: str) -> None:
    records = [{"id": str(number), "text": "t"} for number in range(5)]
    plain = write(tmp_path / f"x.{suffix}", records)
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain.location, f"data/x.{suffix}")
    member = UpstreamFile("s", f"data/x.{suffix}", tmp_path / "w.whl", f"data/x.{suffix}")
    assert read(member, 1, 3) == read(plain, 1, 3)
    assert member.sha256() == plain.sha256()


def test_the_last_line_needs_no_newline_and_members_of_gzip_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n') + gzip.compress(b'{"text": "b"}'))
    assert [row.record["text"] for row in read(file_at(path))] == ["a", "b"]
    assert count_rows(file_at(path), path_source(tmp_path)) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "blank"),
        (b"  \r", "blank"),
        (b'{"text": "a"', "not valid JSON"),
        (b'{"text": "a"} {}', "not valid JSON"),
        (b'{"text": NaN}', "NaN is not valid JSON"),
        (b'{"text": "a", "text": "b"}', "name 'text' more than once"),
        (b'{"text": "\xff"}', "not valid UTF-8 .* at byte 10"),
        (b'\xef\xbb\xbf{"text": "a"}', "BOM"),
        (b'["a"]', "list, expected a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n')
    with pytest.raises(RowError, match=f"source 's', file x.jsonl, row 1: .*{reason}"):
        read(file_at(path))
    assert [row.number for row in read(file_at(path), 2)] == [2]  # its neighbours can be read


def test_an_object_of_records_gives_keys_and_a_key_given_twice_loses_nothing_silently(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"problems": {"p": {"text": "a"}, "q": {"text": "b"}}, "other": 1}')
    rows = read(file_at(path), records="problems")
    assert rows == [Row(0, "p", {"text": "a"}), Row(1, "q", {"text": "b"})]
    with pytest.raises(RowError, match=r"no key 'answers' at the top, found the keys \['other', 'problems'\]"):
        read(file_at(path), records="answers")
    path.write_text('{"p": {"text": "a"}, "p": {"text": "b"}}')
    with pytest.raises(RowError, match="name 'p' more than once"):
        read(file_at(path))


def test_a_truncated_archive_names_the_byte(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl.gz", [{"text": str(number) * 50} for number in range(200)])
    file.location.write_bytes(file.location.read_bytes()[:-20])
    with pytest.raises(RowError, match=r"truncated or corrupt near byte \d+ .*EOFError"):
        read(file)
    file.location.write_bytes(b"not gzip")
    with pytest.raises(RowError, match=r"corrupt .*BadGzipFile"):
        read(file)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(RowError, match=r"file x.parquet: truncated or corrupt"):
        read(file_at(tmp_path / "x.parquet"))


def test_a_flipped_bit_of_a_parquet_file_is_named_wherever_it_is(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.parquet")
    records = pa.table({"id": [str(number) for number in range(50)], "text": [f"{number} tea" for number in range(50)]})
    pq.write_table(records, file.location, write_page_checksum=True, compression="zstd")
    intact, expected = file.location.read_bytes(), read(file)
    refused = 0
    for position in range(0, len(intact), 3):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << (position % 8)
        file.location.write_bytes(damaged)
        try:
            read(file)
            count_rows(file, path_source(tmp_path))
        except RowError as error:
            assert "source 's', file x.parquet" in str(error)
            refused += 1
    assert refused > len(intact) // 6
    plain = tmp_path / "plain.parquet"
    pq.write_table(records, plain, write_page_checksum=True, compression="none", use_dictionary=False)
    plain.write_bytes(plain.read_bytes().replace(b"7 tea", b"7 tee", 1))
    with pytest.raises(RowError, match=r"file plain.parquet: truncated or corrupt .*Fetch the file again"):
        read(file_at(plain))
    assert len(expected) == 50


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(RowError, match=r"file x.parquet: there is more than one column of the name 'text'"):
        read(file_at(tmp_path / "x.parquet"))
    with pytest.raises(RowError, match="'text'"):
        count_rows(file_at(tmp_path / "x.parquet"), path_source(tmp_path))


def test_parquet_without_the_text_column_names_the_columns_there_are(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", [{"id": "1", "content": "a", "lang": "en"}])
    with pytest.raises(RowError, match=r"no column 'text', found the columns \['content', 'id', 'lang'\]"):
        read(file)


def test_a_gz_file_without_bytes_is_no_archive_and_one_of_nothing_is_empty(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.jsonl.gz")
    file.location.write_bytes(gzip.compress(b""))
    assert (read(file), count_rows(file, path_source(tmp_path))) == ([], 0)
    file.location.write_bytes(b"")
    with pytest.raises(RowError, match=r"file x.jsonl.gz: truncated or corrupt .*no bytes"):
        read(file)
    with pytest.raises(RowError, match="no bytes"):
        count_rows(file, path_source(tmp_path))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_records_for_a_format_without_them_is_refused(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"x.{suffix}", [{"text": "a"}])
    with pytest.raises(UpstreamError, match=f"records is 'problems', but file x.{suffix} is .{suffix}"):
        read(file, records="problems")
    with pytest.raises(UpstreamError, match="Set records to null"):
        count_rows(file, path_source(tmp_path).model_copy(update={"records": "problems"}))


def test_parquet_with_a_string_that_is_not_utf8_names_the_row(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"b", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": raw}), tmp_path / "x.parquet")
    with pytest.raises(RowError, match=r"row 2: not valid UTF-8"):
        read(file_at(tmp_path / "x.parquet"))


def test_parquet_row_groups_of_unequal_size_keep_their_rows(tmp_path: Path) -> None:
    records = [{"text": str(number)} for number in range(7)]  # row groups of 3, 3 and 1
    file = write(tmp_path / "x.parquet", records)
    assert [row.record["text"] for row in read(file, 4)] == ["4", "5", "6"]


def test_parquet_reads_only_the_columns_that_are_used(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", [{"text": "a", "heavy": "b" * 100}])
    assert read(file) == [Row(0, None, {"text": "a"})]


def test_a_file_that_lost_rows_since_the_plan_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"text": "a"}] * 3)
    with pytest.raises(RowError, match="has 3 rows, expected at least 4"):
        read(file, 2, 2)


def test_real_jsonl_files_read_row_by_row() -> None:
    folder = shared_folder("samples/dolma-fixtures")
    plain = read(file_at(folder / "multiple_files__cc_en_head-0091.jsonl"))
    assert plain == read(file_at(folder / "multiple_files__cc_en_head-0091.jsonl.gz"))
    assert len(plain) > 0
    assert all({"id", "text"} <= row.record.keys() for row in plain)
