"""Files as people have them: names in any case, CSV, one object a file, other compressions and encodings."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.reading.formats import format_by_name
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.reading.readers import count_rows
from everytoken.corpus.reading.rows import ReadingLimits
from tests.corpus.reading.read_rows import LIMITS, file_at, jsonl, kept, read, reading, set_aside
from tests.shared_assets import shared_folder

A, B = {"id": "1", "text": 'é, "quoted"'}, {"id": "2", "text": "two\nlines"}


@pytest.mark.parametrize("name", ["x.JSONL", "x.ndjson", "x.jsonlines", "x.JsonL.GZ", "x.ndjson.bz2", "x.jsonl.XZ"])
def test_lines_have_several_names(tmp_path: Path, name: str) -> None:
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.get(name.lower().rpartition(".")[2])
    data = jsonl(A, B)
    assert kept(read(file_at(tmp_path / name, compress(data) if compress else data))) == [A, B]


@pytest.mark.parametrize("name", ["chat_weight.jsonl", "rows.csv", "rows.ndjson", "dolma.json.gz", "one_document.txt"])
def test_the_samples_are_read_by_their_names(name: str) -> None:
    rows = read(file_at(shared_folder("samples") / "chats_and_files" / name))
    assert rows
    assert kept(rows) == [row.record for row in rows if isinstance(row, Row)]
    assert set_aside(rows) == []


@pytest.mark.parametrize(("compress", "suffix"), [(bz2.compress, "bz2"), (lzma.compress, "xz")], ids=["bz2", "xz"])
def test_bzip2_and_xz_are_read_to_their_end(tmp_path: Path, compress: type, suffix: str) -> None:
    lines = jsonl(*({"text": str(number) * 50} for number in range(9_000)))
    cut = lines.index(b"\n", len(lines) // 2) + 1
    both = compress(lines[:cut]) + compress(lines[cut:])  # streams that follow each other
    assert len(kept(read(file_at(tmp_path / f"x.jsonl.{suffix}", both)))) == 9_000
    for damaged in (both[:-5], both[:-1], both + b"more", both[: len(both) // 2] + b"\0\0\0" + both[len(both) // 2 :]):
        with pytest.raises(RowError, match="truncated or corrupt"):
            read(file_at(tmp_path / f"y.jsonl.{suffix}", damaged))


def test_xz_is_bounded_in_memory(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.jsonl.xz", lzma.compress(jsonl(A), preset=9))
    with pytest.raises(RowError, match="Raise zstd_window_log_max"):
        read(file, limits=ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=20))
    assert kept(read(file, limits=ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=26))) == [A]


def test_objects_may_follow_each_other_on_any_lines(tmp_path: Path) -> None:
    pretty = "\n".join(json.dumps(one, indent=2) for one in (A, B)).encode()
    file = file_at(tmp_path / "x.json", pretty)
    with pytest.raises(RowError, match="objects"):
        read(file)
    assert kept(read(file, format="objects")) == [A, B]
    assert read(file, 1, format="objects") == read(file, format="objects")[1:]
    assert count_rows(file, reading(format="objects"), LIMITS) == 2
    one = file_at(tmp_path / "one.json", json.dumps(A).encode())
    assert {row.detail for row in read(one) if not isinstance(row, Row)} == {
        "the record is a string, expected a JSON object; for a file that is one record set format to objects"
    }
    assert kept(read(one, format="objects")) == [A]
    bad = file_at(tmp_path / "bad.json", b'{"a": 1, "a": 2} {"text": "' + b"x" * 90 + b'"}')
    limits = ReadingLimits(max_row_bytes=80, zstd_window_log_max=27)
    assert set_aside(read(bad, format="objects", limits=limits)) == [(0, 0, "duplicate_key"), (1, 17, "row_too_large")]
    with pytest.raises(RowError, match=r"expected a JSON object.*set format to json"):
        read(file_at(tmp_path / "a.json", b"[{}]"), format="objects")


def test_a_compressed_json_file_has_lines_or_an_array(tmp_path: Path) -> None:
    array = b" \n" + json.dumps([A, B]).encode()
    for data in (array, jsonl(A, B)):
        file = file_at(tmp_path / "x.json.gz", gzip.compress(data))
        assert kept(read(file)) == [A, B]
        assert count_rows(file, reading(), LIMITS) == 2
    assert set_aside(read(file_at(tmp_path / "x.json.gz", gzip.compress(array)), format="jsonl")) == [
        (0, 0, "blank_line"),
        (1, 2, "not_an_object"),
    ]


def test_csv_rows_are_records_by_the_header(tmp_path: Path) -> None:
    text = '\ufeffid,text\n1,"é, ""quoted"""\n2,"two\nlines"\n'
    file = file_at(tmp_path / "x.CSV", text.encode())
    assert kept(read(file)) == [A, B]
    assert read(file, 1) == [Row(1, text.encode().index(b"2,"), None, B)]
    assert read(file, 0, 1) == read(file)[:1]
    assert count_rows(file, reading(), LIMITS) == 2
    assert kept(read(file_at(tmp_path / "x.tsv.gz", gzip.compress(b"id\ttext\r\n1\ta, b\r\n")))) == [
        {"id": "1", "text": "a, b"}
    ]
    assert read(file_at(tmp_path / "empty.csv", b"")) == read(file_at(tmp_path / "head.csv", b"id,text\n")) == []


def test_a_bad_row_of_csv_is_set_aside_alone(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.csv", b"id,text\n1,a,b\n\n2,\xff\n3,\xc3\xa9\n4\n")
    rows = read(file)
    assert kept(rows) == [{"id": "3", "text": "é"}]
    assert set_aside(rows) == [
        (0, 8, "wrong_columns"),
        (1, 14, "blank_line"),
        (2, 15, "not_utf8"),
        (4, 24, "wrong_columns"),
    ]
    assert [row.raw for row in rows if not isinstance(row, Row)] == [b"1,a,b\n", b"\n", b"2,\xff\n", b"4\n"]
    assert count_rows(file, reading(), LIMITS) == 5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'id,text\n1,"a\n2,b\n', "row 0, which begins at byte 8.*unexpected end of data"),
        (b'id,text\n1,"a"b\n', "row 0, which begins at byte 8"),
        (b"id,id\n1,2\n", "more than one column of the name 'id'"),
        (b"id,\xff\n1,2\n", "the header is not UTF-8"),
        (b'id,text\n1,"' + b"a\n" * 60 + b'"\n', "byte 8 has over max_row_bytes 100"),
        (b"id,text\n1," + b"a" * 200 + b"\n", "byte 8 has over max_row_bytes 100"),
    ],
    ids=["open quote", "after a quote", "a name twice", "header", "large", "large line"],
)
def test_a_broken_table_is_an_error(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read(file_at(tmp_path / "x.csv", data), limits=ReadingLimits(max_row_bytes=100, zstd_window_log_max=27))


def test_a_field_may_be_as_large_as_a_row(tmp_path: Path) -> None:
    (row,) = read(file_at(tmp_path / "x.csv", b"text\n" + b"a" * 500_000 + b"\n"))
    assert isinstance(row, Row)
    assert len(row.record["text"]) == 500_000


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_a_source_names_its_encoding(tmp_path: Path, encoding: str) -> None:
    text = "née, 12 £\n" * 40_000  # over several blocks
    text = text[: 1 << 17] if encoding == "utf-32" else text
    rows = read(file_at(tmp_path / "x.md", text.encode(encoding)), encoding=encoding)
    assert [record["text"] for record in kept(rows)] == [text]
    table = file_at(tmp_path / "x.csv", "id,text\n1,é\n".encode(encoding))
    assert kept(read(table, encoding=encoding)) == [{"id": "1", "text": "é"}]


def test_an_encoding_is_strict_and_known(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="byte 200,003 is no text in the source's encoding cp1252"):
        read(file_at(tmp_path / "x.txt", b"a" * 200_000 + b"ok \x81"), encoding="cp1252")
    with pytest.raises(RowError, match="byte 2 is no text in the source's encoding utf-16"):
        read(file_at(tmp_path / "x.txt", b"\xff\xfea"), encoding="utf-16")
    for name in ("utf-99", "base64"):
        with pytest.raises(ValidationError, match="no encoding of text"):
            reading(encoding=name)
    assert "encoding" not in reading().model_dump(mode="json")  # nothing that exists is rebuilt
    with pytest.raises(UpstreamError, match="strings of parquet are UTF-8"):
        read(file_at(tmp_path / "x.parquet", b""), encoding="cp1252")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("x.warc.gz", "warcio"),
        ("x.WET", "warcio"),
        ("x.html", "trafilatura"),
        ("x.pdf", "pdftotext"),
        ("x.epub", "pandoc"),
        ("x.zip", "python -m zipfile -e"),
    ],
)
def test_what_is_not_read_names_what_to_run_first(tmp_path: Path, name: str, first: str) -> None:
    assert format_by_name(name) is None
    with pytest.raises(UpstreamError, match=first):
        read(file_at(tmp_path / name, b""))
