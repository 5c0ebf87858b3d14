"""Reading texts from lines: every line once, and the first bad one named."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from everytoken.text_to_stream.errors import FileError
from everytoken.text_to_stream.texts import TextRange, read_texts
from tests.memory import traced_peak
from tests.text_to_stream.files import lines_of, packed, texts, whole

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def read(given: TextRange) -> list[str]:
    return [text for batch in read_texts(given) for text in batch.texts]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_all_texts_in_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    documents = ["", "\n \u2028\x85\r\n", "\U0001f600" * 1000, "x" * 3_000_000, *texts(5000)]
    path.write_bytes(packed(lines_of(documents), path.name))
    assert read(whole(path)) == documents


def test_batches_are_bounded_and_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    documents = ["x" * (1 + i * 7919 % 30_000) for i in range(360)] + ["y" * 5_000_000, "z"]
    path.write_bytes(lines_of(documents))
    batches = list(read_texts(whole(path)))
    assert [batch.row for batch in batches] == [sum(len(b.texts) for b in batches[:i]) for i in range(len(batches))]
    assert all(len(batch.texts) == 1 or sum(map(len, batch.texts)) <= 1 << 20 for batch in batches)
    assert len(batches) > 5


@pytest.mark.parametrize("data", [b"", b"\n", b'{"text": "a"}', b'{"text": "a"}\r\n'])
def test_short_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    if data == b"\n":
        with pytest.raises(FileError, match="line 1: the line is blank"):
            read(whole(path))
    else:
        assert read(whole(path)) == (["a"] if data else [])


def test_two_frames_and_members(tmp_path: Path) -> None:
    one, two = lines_of(["a", "b"])[:-7], lines_of(["a", "b"])[-7:]
    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(one) + zstd.compress(two))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(one) + gzip.compress(two))
    assert read(whole(tmp_path / "a.jsonl.zst")) == read(whole(tmp_path / "a.jsonl.gz")) == ["a", "b"]


@given(
    documents=st.lists(st.text(max_size=40), max_size=12),
    step=st.integers(1, 200),
    newline_at_end=st.booleans(),
    crlf=st.booleans(),
)
def test_ranges_have_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], step: int, newline_at_end: bool, crlf: bool
) -> None:
    path = tmp_path_factory.mktemp("ranges") / "a.jsonl"
    data = lines_of(documents)
    data = data.replace(b"\n", b"\r\n") if crlf else data
    path.write_bytes(data if newline_at_end else data.removesuffix(b"\n"))
    size = path.stat().st_size
    found = [read(whole(path, begin, min(size, begin + step))) for begin in range(0, size, step)]
    assert [text for of_range in found for text in of_range] == documents


GOOD = b'{"text": "good"}'
BAD = {
    "blank": (b" ", "the line is blank"),
    "not_json": (b'{"text": "a"', "not valid JSON"),
    "two_values": (b'{"text": "a"} {}', "not valid JSON"),
    "not_an_object": (b'["a"]', "an array, expected a JSON object"),
    "no_field": (b'{"content": "a", "id": 1}', "there is no field 'text'; there is 'content', 'id'"),
    "empty_name": (b'{"": "a"}', "there is no field 'text'; there is ''"),
    "empty_object": (b"{}", "there is none"),
    "null": (b'{"text": null}', "the field 'text' is null, expected a string"),
    "number": (b'{"text": 1}', "the field 'text' is a number"),
    "utf8": (b'{"text": "a\xff"}', "not valid UTF-8 .invalid start byte at byte 11"),
    "truncated_utf8": (b'{"text": "\xe6\x97"}', "not valid UTF-8"),
    "encoded_surrogate": (b'{"text": "\xed\xa0\x80"}', "not valid UTF-8"),
    "lone_surrogate": (b'{"text": "ab\\ud800c"}', r"half of a surrogate pair .\\ud800 at character 2"),
    "low_surrogate": (b'{"text": "\\udc00"}', "half of a surrogate pair"),
    "twice": (b'{"text": "a", "text": "b"}', "has the name 'text' more than once"),
    "nan": (b'{"text": "a", "x": NaN}', "NaN is not valid JSON"),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", BAD)
def test_the_first_bad_line_is_named(tmp_path: Path, name: str, suffix: str) -> None:
    line, message = BAD[name]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(packed(b"\n".join([GOOD] * 700 + [line, b"{", GOOD]), path.name))
    with pytest.raises(FileError, match=rf"^a{suffix}, line 701: .*{message}"):
        read(whole(path))


def test_a_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\ud83d\\ude00"}')
    assert read(whole(path)) == ["\U0001f600"]


@pytest.mark.parametrize("begin", [1, 17, 18, 40, 11_899])
def test_lines_are_numbered_in_the_file_not_in_the_range(tmp_path: Path, begin: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes((GOOD + b"\n") * 700 + b"{\n" + GOOD)
    with pytest.raises(FileError, match="line 701: not valid JSON"):
        read(whole(path, begin))


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_a_cut_archive_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    data = packed(lines_of(texts(2000)), path.name)
    for kept in (0, 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(FileError, match=f"^a{suffix}: truncated or corrupt.*([Ff]etch) (the file|it) again"):
            read(whole(path))
    path.write_bytes(data + b"junk")
    with pytest.raises(FileError, match=f"^a{suffix}: truncated or corrupt"):
        read(whole(path))


def test_other_bytes_than_the_name_says(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(zstd.compress(GOOD))
    with pytest.raises(FileError, match="it holds Zstandard"):
        read(whole(path))
    path.write_bytes(GOOD.decode().encode("utf-16"))
    with pytest.raises(FileError, match="the text is UTF-16"):
        read(whole(path))


def test_a_line_over_the_limit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(lines_of(["a", "b" * 300_000, "c"])))
    assert len(read(whole(path, max_line_bytes=300_020))) == 3
    with pytest.raises(FileError, match=r"line 2: the line has 300,018 bytes, over 300,000. Raise max_line_bytes"):
        read(whole(path, max_line_bytes=300_000))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    with zstd.open(path, "wb") as file:
        for _ in range(60):
            file.write(lines_of(["some text " * 100] * 1000))  # 60 MB
    count, peak = traced_peak(lambda: sum(len(batch.texts) for batch in read_texts(whole(path))))
    assert count == 60_000
    assert peak < 12 << 20


DOCUMENTS = ["", "na\u00efve \u65e5\u672c", "line one\nline two", *texts(3000)]


def _table(path: Path, values: list[str | None]) -> None:
    table = pa.table({"text": pa.array(values, pa.string()), "n": pa.array(range(len(values)))})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=700)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, 700)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    _table(path, list(DOCUMENTS))
    assert read(whole(path)) == DOCUMENTS
    _table(path, [*DOCUMENTS, None])
    with pytest.raises(FileError, match=rf"^{name}, row 3,003: the field 'text' is null, expected a string"):
        read(whole(path))
    with pytest.raises(
        FileError, match=rf"^{name}: there is no column 'body', found the columns .'n', 'text'.. Set --text-field"
    ):
        read(whole(path)._replace(text_field="body"))


@pytest.mark.parametrize("keyed", [False, True])
def test_arrays_and_objects_of_records(tmp_path: Path, keyed: bool) -> None:
    path = tmp_path / "a.json"
    records = [{"text": text} for text in DOCUMENTS]
    path.write_bytes(orjson.dumps({str(i): record for i, record in enumerate(records)} if keyed else records))
    assert read(whole(path)) == DOCUMENTS
    path.write_bytes(orjson.dumps([{"text": "a"}, {"text": 1}]))
    with pytest.raises(FileError, match=r"^a.json, row 1: the field 'text' is a number, expected a string"):
        read(whole(path))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst"])
def test_a_text_is_one_document(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(packed("\n".join(DOCUMENTS).encode(), name))
    assert read(whole(path)) == ["\n".join(DOCUMENTS)]


@pytest.mark.parametrize("name", ["a.json.gz", "a.json.zst"])
def test_compressed_json_is_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(packed(lines_of(DOCUMENTS), name))
    assert read(whole(path)) == DOCUMENTS
