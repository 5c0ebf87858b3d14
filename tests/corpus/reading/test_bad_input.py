"""What every kind of bad input comes to: which rows are kept, which are set aside where and why, which files fail."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from backports import zstd

from everytoken.corpus.errors import BAD_ROW_REASONS, BadRow, RowError, UpstreamError
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.reading.readers import count_rows, iterate_rows
from everytoken.corpus.reading.rows import Reading, ReadingLimits
from everytoken.corpus.rendering.renderers import RENDERERS, Identifier
from everytoken.corpus.upstreams.file import UpstreamFile
from tests.corpus.reading.read_rows import CHECKED, LIMITS, file_at, jsonl, kept, read, reading, set_aside
from tests.shared_assets import shared_folder

A, B = {"id": "a", "text": "first"}, {"id": "b", "text": "last"}
FIRST, LAST = jsonl(A), jsonl(B)
MIDDLE = len(FIRST)  # offset of a row between the two
BOM = b"\xef\xbb\xbf"
ROWS = [{"id": str(number), "text": f"tea {number * 7919 % 1009} é"} for number in range(400)]
DATA = jsonl(*ROWS)
HALF = DATA.index(b"\xc3\xa9", len(DATA) // 2) + 1  # inside a character


def zst(data: bytes, checksum: int = 1, size: int = 1) -> bytes:
    options = {**CHECKED, zstd.CompressionParameter.checksum_flag: checksum}
    if size:
        return zstd.compress(data, options=options)
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()


def large_window(data: bytes) -> bytes:
    frame = bytearray(zst(data, size=0))
    frame[5] = (28 - 10) << 3  # the header asks for 2**28 bytes
    return bytes(frame)


FRAMES = [zst(DATA[:HALF]), zst(DATA[HALF:])]
BARE = zst(DATA, checksum=0)
MEMBERS = [gzip.compress(DATA[:HALF], mtime=0), gzip.compress(DATA[HALF:], mtime=0)]
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


class Kept(NamedTuple):
    """The outcome of a file that can be read: how many rows are kept, and number, offset and reason of the others."""

    rows: int
    set_aside: list[tuple[int, int, str]]


CASES: dict[str, tuple[str, bytes, Kept | str]] = {
    # archives
    "zst cut by 1 byte": (
        "x.jsonl.zst",
        zst(DATA)[:-1],
        r"begins at byte 0 is not complete when the file ends at byte",
    ),
    "zst cut by 100 bytes": ("x.jsonl.zst", zst(DATA)[:-100], "frame that begins at byte 0 is not complete"),
    "zst cut by half": ("x.jsonl.zst", zst(DATA)[: len(zst(DATA)) // 2], "frame that begins at byte 0 is not complete"),
    "zst without checksum cut by 1 byte": ("x.jsonl.zst", BARE[:-1], "begins at byte 0 is not complete"),
    "zst without checksum cut by 100 bytes": ("x.jsonl.zst", BARE[:-100], "begins at byte 0 is not complete"),
    "zst without checksum cut by half": ("x.jsonl.zst", BARE[: len(BARE) // 2], "begins at byte 0 is not complete"),
    "zst of two frames": ("x.jsonl.zst", b"".join(FRAMES), Kept(400, [])),
    "zst of two frames cut by 1 byte": (
        "x.jsonl.zst",
        b"".join(FRAMES)[:-1],
        rf"begins at byte {len(FRAMES[0])} is not complete when the file ends at byte {len(b''.join(FRAMES)) - 1}\b",
    ),
    "zst of two frames cut by half": ("x.jsonl.zst", FRAMES[0][:-9], "begins at byte 0 is not complete"),
    "zst of frames cut inside a character": ("x.jsonl.zst", zst(DATA[:HALF]) + zst(DATA[HALF:]), Kept(400, [])),
    "zst with skippable and empty frames": (
        "x.jsonl.zst",
        SKIPPABLE + zst(b"") + FRAMES[0] + SKIPPABLE + zst(b"", size=0) + FRAMES[1] + SKIPPABLE,
        Kept(400, []),
    ),
    "zst that ends in half a skippable frame": ("x.jsonl.zst", zst(DATA) + SKIPPABLE[:-1], "is not complete"),
    "zst without content size": ("x.jsonl.zst", zst(DATA, size=0), Kept(400, [])),
    "zst with a window of 2**28": ("x.jsonl.zst", large_window(DATA), r"Set zstd_window_log_max to 28"),
    "zst of nothing": ("x.jsonl.zst", zst(b""), Kept(0, [])),
    "zst with a wrong checksum": ("x.jsonl.zst", zst(DATA)[:-1] + bytes([zst(DATA)[-1] ^ 1]), "checksum"),
    "zst with garbage after it": ("x.jsonl.zst", zst(DATA) + b"garbage", rf"at byte {len(zst(DATA))} is no Zstandard"),
    "gzip bytes named zst": ("x.jsonl.zst", MEMBERS[0], r"at byte 0: its name ends in \.zst, but it holds gzip"),
    "zst bytes named gz": ("x.jsonl.gz", zst(DATA), r"at byte 0: its name ends in \.gz, but it holds Zstandard"),
    "plain text named gz": ("x.jsonl.gz", DATA, r"its name ends in \.gz, but it holds no gzip"),
    "zst bytes named jsonl": ("x.jsonl", zst(DATA), "it holds Zstandard .*expected JSON text"),
    "gzip twice": ("x.jsonl.gz", gzip.compress(MEMBERS[0]), "it holds gzip .*expected JSON text"),
    "gz cut by 1 byte": ("x.jsonl.gz", MEMBERS[0][:-1], "gzip member that begins at byte 0 is not complete"),
    "gz cut by 100 bytes": ("x.jsonl.gz", MEMBERS[0][:-100], "begins at byte 0 is not complete"),
    "gz cut by half": ("x.jsonl.gz", MEMBERS[0][: len(MEMBERS[0]) // 2], "begins at byte 0 is not complete"),
    "gz of two members cut inside a character": ("x.jsonl.gz", b"".join(MEMBERS), Kept(400, [])),
    "gz of two members cut by 1 byte": (
        "x.jsonl.gz",
        b"".join(MEMBERS)[:-1],
        f"begins at byte {len(MEMBERS[0])} is not complete",
    ),
    "gz with zeros after it": ("x.jsonl.gz", gzip.compress(DATA) + bytes(512), Kept(400, [])),
    "gz with garbage after it": ("x.jsonl.gz", gzip.compress(DATA) + b"x", "neither a gzip member nor zero padding"),
    "gz with a wrong CRC": ("x.jsonl.gz", MEMBERS[0][:-8] + bytes(4) + MEMBERS[0][-4:], "Incorrect checksum"),
    "gz of nothing": ("x.jsonl.gz", gzip.compress(b""), Kept(0, [])),
    "gz of no bytes": ("x.jsonl.gz", b"", "the file has no bytes"),
    "zst of no bytes": ("x.jsonl.zst", b"", "the file has no bytes"),
    "json.gz of lines": ("x.json.gz", gzip.compress(DATA), Kept(400, [])),
    # encodings and ends of lines
    "an empty file": ("x.jsonl", b"", Kept(0, [])),
    "an invalid byte in line 2,001 of 4,001": (
        "x.jsonl",
        FIRST * 2_000 + b'{"text": "\xff"}\n' + FIRST * 2_000,
        Kept(4_000, [(2_000, 2_000 * MIDDLE, "not_utf8")]),
    ),
    "half a character at the end of a line": (
        "x.jsonl",
        FIRST + b'{"text": "\xe2\x82"}\n' + LAST,
        Kept(2, [(1, MIDDLE, "not_utf8")]),
    ),
    "an invalid byte in a field that nobody reads": (
        "x.jsonl",
        FIRST + b'{"text": "a", "url": "\xff"}\n' + LAST,
        Kept(2, [(1, MIDDLE, "not_utf8")]),
    ),
    "a lone surrogate in a field that nobody reads": ("x.jsonl", b'{"text": "a", "url": "\\ud800"}\n', Kept(1, [])),
    "a BOM": ("x.jsonl", BOM + FIRST + b"\n" + LAST, Kept(2, [(1, 3 + MIDDLE, "blank_line")])),
    "a BOM in the middle": ("x.jsonl", FIRST + BOM + LAST, Kept(1, [(1, MIDDLE, "not_json")])),
    "CRLF": ("x.jsonl", (FIRST + LAST).replace(b"\n", b"\r\n"), Kept(2, [])),
    "CR alone ends no row": ("x.jsonl", FIRST[:-1] + b"\r" + LAST, Kept(0, [(0, 0, "not_json")])),
    "no final newline": ("x.jsonl", FIRST + LAST[:-1], Kept(2, [])),
    "the breaks of Unicode in a text": (
        "x.jsonl",
        jsonl({"text": "a\u2028b\u2029c\u0085d\u000be\u000cf"}),
        Kept(1, []),
    ),
    "UTF-16": ("x.jsonl", DATA.decode().encode("utf-16"), "the text is UTF-16 .*expected UTF-8. Convert it"),
    "UTF-16 without BOM": ("x.jsonl", DATA.decode().encode("utf-16-be"), "the text is UTF-16"),
    "UTF-32": ("x.jsonl", DATA.decode().encode("utf-32"), "the text is UTF-32"),
    "UTF-16 in an archive": ("x.jsonl.zst", zst(DATA.decode().encode("utf-16")), "the text is UTF-16"),
    # rows
    "a blank line": ("x.jsonl", FIRST + b"\n" + LAST, Kept(2, [(1, MIDDLE, "blank_line")])),
    "a line of spaces": ("x.jsonl", FIRST + b" \t \r\n" + LAST, Kept(2, [(1, MIDDLE, "blank_line")])),
    "blank lines at the end": (
        "x.jsonl",
        FIRST + b"\n\n",
        Kept(1, [(1, MIDDLE, "blank_line"), (2, MIDDLE + 1, "blank_line")]),
    ),
    "NaN": ("x.jsonl", FIRST + b'{"text": "a", "score": NaN}\n', Kept(1, [(1, MIDDLE, "not_finite")])),
    "a duplicate key": ("x.jsonl", FIRST + b'{"text": "a", "text": "b"}\n', Kept(1, [(1, MIDDLE, "duplicate_key")])),
    "a duplicate key deep inside": (
        "x.jsonl",
        FIRST + b'{"text": "a", "meta": [{"n": {"k": 1, "\\u006b": 1}}]}\n',
        Kept(1, [(1, MIDDLE, "duplicate_key")]),
    ),
    "a trailing comma": ("x.jsonl", FIRST + b'{"text": "a",}\n' + LAST, Kept(2, [(1, MIDDLE, "not_json")])),
    "half a row": ("x.jsonl", FIRST + b'{"text": "a\n' + LAST, Kept(2, [(1, MIDDLE, "not_json")])),
    "two rows on a line": ("x.jsonl", FIRST[:-1] + LAST, Kept(0, [(0, 0, "not_json")])),
    "an array as a row": ("x.jsonl", FIRST + b'["a"]\n' + LAST, Kept(2, [(1, MIDDLE, "not_an_object")])),
    "null as a row": ("x.jsonl", FIRST + b"null\n" + LAST, Kept(2, [(1, MIDDLE, "not_an_object")])),
    "a string as a row": ("x.jsonl", FIRST + b'"text"\n' + LAST, Kept(2, [(1, MIDDLE, "not_an_object")])),
    "100,000 brackets": ("x.jsonl", FIRST + b"[" * 100_000 + b"\n" + LAST, Kept(2, [(1, MIDDLE, "not_json")])),
    "NULs for a row": ("x.jsonl", FIRST + bytes(500) + b"\n" + LAST, Kept(2, [(1, MIDDLE, "not_json")])),
    "a row of over max_row_bytes": (
        "x.jsonl",
        FIRST + jsonl({"text": "x" * (2 << 20)}) + LAST,
        Kept(2, [(1, MIDDLE, "row_too_large")]),
    ),
    # texts and ids
    "a text of null": ("x.jsonl", FIRST + b'{"text": null}\n', Kept(1, [(1, MIDDLE, "text_null")])),
    "no text": ("x.jsonl", FIRST + b'{"id": "a"}\n', Kept(1, [(1, MIDDLE, "no_text")])),
    "a number for a text": ("x.jsonl", FIRST + b'{"text": 7}\n', Kept(1, [(1, MIDDLE, "text_not_string")])),
    "a list for a text": ("x.jsonl", FIRST + b'{"text": ["a"]}\n', Kept(1, [(1, MIDDLE, "text_not_string")])),
    "an empty text": ("x.jsonl", FIRST + b'{"text": ""}\n', Kept(2, [])),
    "a NUL in a text": ("x.jsonl", FIRST + b'{"text": "\\u0000"}\n', Kept(2, [])),
    # arrays and objects of records
    "an array": ("x.json", json.dumps([A, B], indent=2).encode(), Kept(2, [])),
    "an array with bad records": (
        "x.json",
        b'[{"text": "a"}, {"text": 01}, null, {"text": "a", "text": "b"}, {"text": "\xff"}, {"text": "b"}]',
        Kept(2, [(1, 16, "not_json"), (2, 30, "not_an_object"), (3, 36, "duplicate_key"), (4, 64, "not_utf8")]),
    ),
    "an array with a comma too many": ("x.json", b'[{"text": "a"},]', "not valid JSON at byte 15: expected a value"),
    "an array without end": ("x.json", b'[{"text": "a"}', r"not valid JSON at byte 14: expected ',' or '\]'"),
    "an array with something after it": ("x.json", b'[{"text": "a"}] 1', "at byte 16: expected the end of the file"),
    "lines named json": ("x.json", FIRST + LAST, r"at byte 7: expected|expected the end of the file.*format to jsonl"),
    "a json file of no bytes": ("x.json", b"", "at byte 0: expected an array or object of records"),
    "an empty array": ("x.json", b" [ ] ", Kept(0, [])),
    # tables
    "a parquet file of no bytes": ("x.parquet", b"", "truncated or corrupt"),
    "text named parquet": ("x.parquet", DATA, "truncated or corrupt"),
    "text named arrow": ("x.arrow", DATA, "truncated or corrupt"),
}


def outcome(file: UpstreamFile, how: Reading) -> Kept:
    """Read and render all rows of a file."""
    rows, aside = 0, []
    for row in iterate_rows(file, how, LIMITS):
        assert row.number == rows + len(aside)
        if isinstance(row, Row):
            try:
                RENDERERS[how.renderer.kind](row.key, row.record, how.renderer)
                rows += 1
            except BadRow as error:
                aside.append((row.number, row.offset, error.reason))
        else:
            assert row.reason in BAD_ROW_REASONS
            aside.append((row.number, row.offset, row.reason))
    return Kept(rows, aside)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_set_aside_by_row_or_fails_by_file(tmp_path: Path, name: str) -> None:
    path, data, expected = CASES[name]
    file = file_at(tmp_path / path, data)
    if isinstance(expected, Kept):
        assert outcome(file, reading()) == expected
        assert count_rows(file, reading(), LIMITS) == expected.rows + len(expected.set_aside)
    else:
        with pytest.raises(RowError, match=rf"(?s)^source 's', file {path}: .*(?:{expected})"):
            outcome(file, reading())


def test_the_window_of_2_to_the_28_works_with_the_parameter(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.jsonl.zst", large_window(DATA))
    limits = LIMITS.model_copy(update={"zstd_window_log_max": 28})
    assert kept(read(file, limits=limits)) == ROWS


def test_json_in_an_archive_may_be_an_array(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.json.gz", gzip.compress(json.dumps([A, B]).encode()))
    assert kept(read(file, format="json")) == [A, B]
    assert kept(read(file)) == [A, B]
    assert set_aside(read(file, format="jsonl")) == [(0, 0, "not_an_object")]


def test_what_is_set_aside_keeps_its_first_bytes_and_a_reason_in_words(tmp_path: Path) -> None:
    row = b'{"text": "' + b"x" * 5_000 + b"\xff" + b'"}'
    (found,) = read(file_at(tmp_path / "x.jsonl", row + b"\n"))
    assert not isinstance(found, Row)
    assert found.raw == row[:4_096]
    assert found.detail == "not valid UTF-8 (invalid start byte at byte 5010 of the row)"
    (found,) = read(file_at(tmp_path / "x.jsonl", jsonl({"text": "x" * (2 << 20)})))
    assert not isinstance(found, Row)
    assert found.detail == "the row has 2,097,164 bytes, over max_row_bytes 1,048,576"


IDS: list[tuple[bytes, Identifier | None]] = [
    (b"{}", None),
    (b'{"id": null}', None),
    (b'{"id": "7"}', Identifier("7", "string")),
    (b'{"id": 7}', Identifier("7", "integer")),
    (b'{"id": 7.0}', Identifier("7.0", "number")),
    (b'{"id": 123456789012345678901234567890}', Identifier("123456789012345678901234567890", "integer")),
    (b'{"id": true}', Identifier("true", "boolean")),
    (b'{"id": "true"}', Identifier("true", "string")),
    (b'{"id": ["a", 1]}', Identifier('["a",1]', "list")),
    (b'{"id": {"b": 1, "a": 2}}', Identifier('{"a":2,"b":1}', "object")),
    (b'{"id": ""}', Identifier("", "string")),
    (b'{"id": "A"}', Identifier("A", "string")),
    (b'{"id": "a"}', Identifier("a", "string")),
    (b'{"id": " a"}', Identifier(" a", "string")),
    (b'{"id": "a "}', Identifier("a ", "string")),
    (b'{"id": "%s"}' % (b"x" * 5_000), Identifier("x" * 5_000, "string")),
    (b'{"id": "a"}', Identifier("a", "string")),  # once more
]


def test_ids_of_any_kind_are_kept_in_their_meaning(tmp_path: Path) -> None:
    lines = b"".join(row.replace(b"{", b'{"text": "t", ', 1).replace(b", }", b"}") + b"\n" for row, _ in IDS)
    how = reading()
    rows = list(iterate_rows(file_at(tmp_path / "x.jsonl", lines), how, LIMITS))
    found = [RENDERERS["document"](row.key, row.record, how.renderer).id for row in rows if isinstance(row, Row)]
    assert found == [identifier for _, identifier in IDS]


# memory: in processes of their own, because a process never gives back the peak of its tests

MEASURE = """
    import io, resource, sys, zlib
    from pathlib import Path
    from backports import zstd
    from everytoken.corpus.reading.readers import count_rows, iterate_rows
    from everytoken.corpus.reading.lines import Row
    from everytoken.corpus.reading.rows import ReadingLimits
    from everytoken.corpus.upstreams.file import UpstreamFile
    from tests.corpus.reading.read_rows import reading
    path = Path(sys.argv[1])
    def write(pieces):
        with zstd.open(path, "wb", level=1) as sink:
            for piece in pieces:
                sink.write(piece)
    limits = ReadingLimits(max_row_bytes=32 << 20, zstd_window_log_max=27)
    file = UpstreamFile("s", path.name, path, None)
    {work}
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # since exec; ru_maxrss is inherited
    print(int(peak) // 1024)
"""


def peak_megabytes(path: Path, work: str) -> list[str]:
    code = textwrap.dedent(MEASURE).replace("{work}", textwrap.dedent(work))
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_row_of_300_megabytes_is_set_aside_in_bounded_memory(tmp_path: Path) -> None:
    work = """
    write([b'{"text": "a"}\\n{"text": "', *[b"x" * (1 << 20)] * 300, b'"}\\n{"text": "b"}\\n'])
    rows = list(iterate_rows(file, reading(), limits))
    print(*(row.record["text"] if isinstance(row, Row) else row.reason for row in rows))
    print(count_rows(file, reading(), limits))
    """
    *found, peak = peak_megabytes(tmp_path / "x.jsonl.zst", work)
    assert found == ["a", "row_too_large", "b", "3"]
    assert int(peak) < 400


@pytest.mark.parametrize("name", ["x.jsonl.zst", "x.json.zst"])
def test_a_part_of_300_megabytes_is_read_in_less_than_400(tmp_path: Path, name: str) -> None:
    work = """
    array = path.name.endswith(".json.zst")
    block = (b'{"id": "a", "text": "' + b"tea and cake " * 300 + b'"}' + b",\\n"[not array:]) * 260
    first, last = (b"[", b"{}]") if array else (b"", b"{}")
    write([first, *[block] * 300, last])
    rows = sum(1 for _ in iterate_rows(file, reading(format="json" if array else None), limits))
    print(rows, path.stat().st_size < 1 << 20)
    """
    rows, small, peak = peak_megabytes(tmp_path / name, work)
    assert (int(rows), small) == (300 * 260 + 1, "True")
    assert int(peak) < 400


def test_a_text_of_5_megabytes_is_a_text_like_any_other(tmp_path: Path) -> None:
    text = "tea é 😀 " * 500_000
    limits = ReadingLimits(max_row_bytes=32 << 20, zstd_window_log_max=27)
    file = file_at(tmp_path / "x.jsonl.zst", zst(FIRST + jsonl({"text": text}) + LAST))
    assert [record["text"] for record in kept(read(file, limits=limits))] == ["first", text, "last"]


# samples of public data: rows that are kept, and those that are no documents by reason

SAMPLES: dict[str, tuple[str, Counter[str]]] = {
    "dolma-fixtures/expected__email-spans.json.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/expected__filter-by-spans.json.gz": ("text", Counter(kept=6)),
    "dolma-fixtures/expected__mixer.json.gz": ("text", Counter(kept=6)),
    "dolma-fixtures/expected__remove-paragraphs.json.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/formats__test.jsonl": ("text", Counter(no_text=1)),
    "dolma-fixtures/formats__test.jsonl.zst": ("text", Counter(no_text=1)),
    "dolma-fixtures/multiple_files__cc_en_head-0091.jsonl": ("text", Counter(kept=10)),
    "dolma-fixtures/multiple_files__cc_en_head-0091.jsonl.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/multiple_files__cc_en_head-0174.jsonl": ("text", Counter(kept=10)),
    "dolma-fixtures/multiple_files__cc_en_head-0174.jsonl.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/provided__attributes__duplicate_paragraphs__000.json.gz": ("text", Counter(no_text=10)),
    "dolma-fixtures/provided__attributes__pii__000.json.gz": ("text", Counter(no_text=10)),
    "dolma-fixtures/provided__attributes__sample__000.json.gz": ("text", Counter(no_text=10)),
    "dolma-fixtures/provided__attributes__toxicity__000.json.gz": ("text", Counter(no_text=10)),
    "dolma-fixtures/provided__deduper__documents__000.json.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/provided__documents__000.json.gz": ("text", Counter(kept=10)),
    "dolma-fixtures/NOTE.md": ("text", Counter(kept=1)),
    "oasst/en_100_tree.jsonl": ("message_tree_id", Counter(kept=100)),
    "gsm8k/test.jsonl": ("question", Counter(kept=1319)),
    "llamafactory/c4_demo.jsonl": ("text", Counter(kept=300)),
    "llamafactory/wiki_demo.txt": ("text", Counter(kept=1)),
}
OF_NO_KNOWN_FORMAT = [
    "dolma-fixtures/warc__sample-0000.warc.gz",
    "dolma-fixtures/warc__sample-0001.warc.gz",
]


@pytest.mark.parametrize("path", SAMPLES)
def test_every_row_of_the_samples_is_kept_or_set_aside_for_a_reason(path: str) -> None:
    column, expected = SAMPLES[path]
    renderer = {"kind": "document", "text_column": column, "id_columns": ("id",), "stratum_column": None}
    rows, aside = outcome(file_at(shared_folder("samples") / path), reading(renderer=renderer))
    assert Counter({"kept": rows}) + Counter(reason for _, _, reason in aside) == expected


def test_files_of_the_samples_that_are_not_read_are_refused_by_name() -> None:
    samples = shared_folder("samples")
    folders = sorted({path.split("/")[0] for path in SAMPLES})
    there = {file.relative_to(samples).as_posix() for name in folders for file in (samples / name).iterdir()}
    assert {path for path in there if not path.endswith("LICENSE")} == {*SAMPLES, *OF_NO_KNOWN_FORMAT}
    for path in OF_NO_KNOWN_FORMAT:
        with pytest.raises(UpstreamError, match="WARC holds web pages: write"):
            read(file_at(samples / path))
