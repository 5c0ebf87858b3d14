"""A file of text is one row, whole and as it is; one that cannot be read is set aside with its reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from backports import zstd

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.reading.readers import count_rows
from everytoken.corpus.reading.rows import ReadingLimits
from tests.corpus.reading.read_rows import CHECKED, LIMITS, file_at, read, reading, set_aside

TEXT = 'Title\r\n\n  A line, é and 😀.\u2028{"not": "JSON"\n'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", TEXT.encode()),
        ("a.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("a.txt.zst", zstd.compress(TEXT.encode(), options=CHECKED)),
    ],
    ids=["plain", "gzip", "zstd"],
)
def test_the_text_of_a_file_is_one_row_and_nothing_of_it_changes(tmp_path: Path, name: str, data: bytes) -> None:
    file = file_at(tmp_path / name, data)
    assert read(file) == read(file, 0, 1) == [Row(0, 0, None, {"id": name, "text": TEXT})]
    assert read(file, 1) == read(file, 1, 0) == []
    assert count_rows(file, reading(), LIMITS) == 1


def test_a_mark_at_the_start_is_no_part_of_the_text_and_an_empty_file_is_an_empty_row(tmp_path: Path) -> None:
    assert read(file_at(tmp_path / "a.txt", b"\xef\xbb\xbfhere")) == [Row(0, 3, None, {"id": "a.txt", "text": "here"})]
    assert read(file_at(tmp_path / "b.txt", b"")) == [Row(0, 0, None, {"id": "b.txt", "text": ""})]
    assert read(file_at(tmp_path / "README", b"here"), format="txt") == [
        Row(0, 0, None, {"id": "README", "text": "here"})
    ]


def test_a_text_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    (row,) = read(file_at(tmp_path / "a.txt", b"caf\xe9 and more"))
    assert not isinstance(row, Row)
    assert (row.reason, row.raw) == ("not_utf8", b"caf\xe9 and more")
    assert "at byte 3" in row.detail
    limits = ReadingLimits(max_row_bytes=100_000, zstd_window_log_max=27)
    assert len(read(file_at(tmp_path / "b.txt", b"x" * 100_000), limits=limits)) == 1
    for size in (100_001, 1_000_000):
        file = file_at(tmp_path / "b.txt", b"x" * size)
        assert set_aside(read(file, limits=limits)) == [(0, 0, "row_too_large")]
        (row,) = read(file, limits=limits)
        assert not isinstance(row, Row)
        assert (row.raw, f"{size:,} bytes" in row.detail) == (b"x" * 4096, True)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", "here".encode("utf-16"), "the text is UTF-16"),
        ("a.txt", gzip.compress(b"here", mtime=0), "it holds gzip .*expected text"),
        ("a.txt.gz", gzip.compress(b"here" * 99, mtime=0)[:-3], "truncated|cut|ends"),
    ],
    ids=["UTF-16", "another format", "truncated"],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read(file_at(tmp_path / name, data))


def test_a_text_has_no_records(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="records is 'r', but the file is read as txt"):
        read(file_at(tmp_path / "a.txt", b"here"), records="r")
