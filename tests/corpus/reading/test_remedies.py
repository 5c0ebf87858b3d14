"""What an error of reading says to do is done here, and then the texts are read."""

from __future__ import annotations

import ast
import gzip
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from pydantic import ValidationError

from everytoken.corpus.errors import CorpusError
from everytoken.corpus.reading import members
from everytoken.corpus.reading.lines import Row
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.rendering.renderers import RENDERERS
from tests.corpus.reading.read_rows import file_at, jsonl, read, reading, write_arrow
from tests.corpus.reading.test_tars import header_of, sparse, tar_of
from tests.corpus.rendering.test_chat_keys import ANSWER, USER, renderer

SOURCES = Path(__file__).parents[3] / "src" / "everytoken" / "corpus" / "reading"
TEXTS = ["one é", "two"]
RECORDS = [{"id": "1", "text": "one é"}, {"id": "2", "text": "two"}]
LINES = jsonl(*RECORDS)
OBJECTS = b"".join(json.dumps(record, indent=1).encode() for record in RECORDS)
TABLE = "id,text\n1,one é\n2,two\n"
LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=23)
DOCUMENT = {"kind": "document", "id_columns": ["id"]}
CHATS = [{"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER]}]
Content = bytes | Callable[[Path], object]


class Given(NamedTuple):
    """A file, how its source says that it is read, and how much memory there may be."""

    name: str
    content: Content
    how: dict[str, Any] | None = None
    limits: ReadingLimits = LIMITS


def parquet(records: list[dict[str, Any]]) -> Content:
    return lambda path: pq.write_table(pa.Table.from_pylist(records), path)


def arrow(table: pa.Table) -> Content:
    return lambda path: write_arrow(path, table, stream=True)


def zst(data: bytes, **options: int) -> bytes:
    return zstd.compress(data, options={getattr(zstd.CompressionParameter, name): n for name, n in options.items()})


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, end: bool = True) -> bytes:
    return tar_of(list(members), end=end)  # type: ignore[arg-type]


def size_of(name: str, size: str) -> tarfile.TarInfo:
    return header_of(name, pax_headers={"size": size})


DICTIONARY = zstd.train_dict([b'{"id": %d, "text": "words %d"}' % (i, i * 7) for i in range(2_000)], 1_000)
CP1252 = TABLE.encode("cp1252")
REFETCH = "Fetch the file again"
REPAIR = "Repair the file at its origin, or pin another revision of it."
NAMED = "Name the file by what it is"
MEMBERS = [("one.txt", b"one \xc3\xa9"), ("two.txt", b"two")]
PLAIN = Given("x.tar", tar(*MEMBERS))
LINKED = [header_of("l.txt", tarfile.SYMTYPE, linkname="one.txt"), header_of("p.txt", tarfile.FIFOTYPE)]
SAMPLES = {"format": "webdataset", "renderer": {"kind": "document", "text_column": "txt", "id_columns": ["__key__"]}}
RUN_ENDS = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(TEXTS))

CASES: list[tuple[str, Given, list[Given]]] = [
    (REFETCH, Given("x.jsonl.gz", gzip.compress(LINES)[:-5]), [Given("x.jsonl.gz", gzip.compress(LINES))]),
    (NAMED, Given("x.jsonl.gz", zst(LINES)), [Given("x.jsonl.zst", zst(LINES))]),
    (NAMED, Given("x.jsonl.gz", LINES), [Given("x.jsonl", LINES)]),
    (NAMED, Given("x.jsonl", gzip.compress(LINES)), [Given("x.jsonl.gz", gzip.compress(LINES))]),
    (NAMED, Given("x.jsonl", parquet(RECORDS)), [Given("x.jsonl", parquet(RECORDS), {"format": "parquet"})]),
    (
        "again without a dictionary",
        Given("x.jsonl.zst", zstd.compress(LINES, zstd_dict=DICTIONARY)),
        [Given("x.jsonl.zst", zst(LINES))],
    ),
    (
        "Set zstd_window_log_max to 24 ",
        Given("x.jsonl.zst", zst(LINES + b" " * (9 << 20), window_log=24), {"format": "objects"}),
        [
            Given(
                "x.jsonl.zst",
                zst(LINES + b" " * (9 << 20), window_log=24),
                {"format": "objects"},
                LIMITS.model_copy(update={"zstd_window_log_max": 24}),
            )
        ],
    ),
    (
        "Raise zstd_window_log_max, or compress the file again with a smaller dictionary",
        Given("x.jsonl.xz", lzma.compress(LINES, preset=9)),
        [
            Given("x.jsonl.xz", lzma.compress(LINES, preset=6)),
            Given(
                "x.jsonl.xz",
                lzma.compress(LINES, preset=9),
                None,
                LIMITS.model_copy(update={"zstd_window_log_max": 26}),
            ),
        ],
    ),
    (REPAIR, Given("x.csv", b'id,text\n1,"a"b\n'), [Given("x.csv", TABLE.encode())]),
    (
        REPAIR,
        Given("x.json", b'{"\\ud8": 1, "a": []}', {"records": "a"}),
        [Given("x.json", json.dumps(RECORDS).encode())],
    ),
    (
        "Set the source's encoding to the file's own",
        Given("x.csv", TABLE.replace("id", "ïd").encode("cp1252")),
        [Given("x.csv", TABLE.replace("id", "ïd").encode("cp1252"), {"encoding": "cp1252"})],
    ),
    (
        "Close the quote that is open there, or raise reading.max_row_bytes",
        Given("x.csv", b'id,text\n1,"one \xc3\xa9\n2,two\n' + b"\n" * (1 << 20)),
        [Given("x.csv", b'id,text\n1,"one \xc3\xa9"\n2,two\n')],
    ),
    (
        "Set encoding to the file's own, or to null when it is UTF-8",
        Given("x.csv", CP1252 + b"3,\x81\n", {"encoding": "cp1252"}),
        [Given("x.csv", CP1252, {"encoding": "latin-1"}), Given("x.csv", TABLE.encode())],
    ),
    (
        "Convert it to UTF-8, or set the source's encoding to utf-16",
        Given("x.csv", TABLE.encode("utf-16")),
        [Given("x.csv", TABLE.encode()), Given("x.csv", TABLE.encode("utf-16"), {"encoding": "utf-16"})],
    ),
    ("set the source's format, or change", Given("x.dat", LINES), [Given("x.dat", LINES, {"format": "jsonl"})]),
    (
        "Decompress it, or change the source's format",
        Given("x.parquet.gz", gzip.compress(LINES)),
        [Given("x.parquet", parquet(RECORDS)), Given("x.parquet.gz", gzip.compress(LINES), {"format": "jsonl"})],
    ),
    (
        "Set encoding to null",
        Given("x.parquet", parquet(RECORDS), {"encoding": "cp1252"}),
        [Given("x.parquet", parquet(RECORDS))],
    ),
    (
        "Set records to null, or change upstream.pattern to .json files, or set format to json",
        Given("x.jsonl", LINES, {"records": "rows"}),
        [
            Given("x.jsonl", LINES),
            Given("x.json", json.dumps({"rows": RECORDS}).encode(), {"records": "rows"}),
            Given("x.jsonl", json.dumps({"rows": RECORDS}).encode(), {"records": "rows", "format": "json"}),
        ],
    ),
    (
        "set format to jsonl (one a line) or objects (one on several lines)",
        Given("x.json", LINES),
        [Given("x.json", LINES, {"format": "jsonl"}), Given("x.json", OBJECTS, {"format": "objects"})],
    ),
    (
        "Check the source's `records`.",
        Given("x.json", json.dumps({"rows": RECORDS}).encode(), {"records": "row"}),
        [Given("x.json", json.dumps({"rows": RECORDS}).encode(), {"records": "rows"})],
    ),
    (
        "Check the source's `records` and `format`",
        Given("x.json", b'"text"'),
        [Given("x.json", json.dumps(RECORDS).encode())],
    ),
    (
        "If the objects are in an array, set format to json",
        Given("x.jsonl", json.dumps(RECORDS).encode(), {"format": "objects"}),
        [Given("x.jsonl", json.dumps(RECORDS).encode(), {"format": "json"})],
    ),
    (
        "Set the renderer's text_column to the one that holds the text",
        Given("x.parquet", parquet(RECORDS), {"renderer": {**DOCUMENT, "text_column": "body"}}),
        [Given("x.parquet", parquet(RECORDS), {"renderer": {**DOCUMENT, "text_column": "text"}})],
    ),
    (
        "Set the renderer's text_columns to those that hold the text",
        Given("x.parquet", parquet(RECORDS), {"renderer": {"kind": "joined", "text_columns": ["a"], "separator": ""}}),
        [
            Given(
                "x.parquet",
                parquet(RECORDS),
                {"renderer": {"kind": "joined", "text_columns": ["text"], "separator": ""}},
            )
        ],
    ),
    (
        "Set the renderer's shape to that of the chats, or name their columns in column_names",
        Given(
            "x.parquet", parquet([{"dialog": chat["messages"]} for chat in CHATS]), {"renderer": renderer("messages")}
        ),
        [
            Given(
                "x.parquet",
                parquet([{"dialog": chat["messages"]} for chat in CHATS]),
                {"renderer": renderer("messages", column_names={"messages": "dialog"})},
            )
        ],
    ),
    (
        "Write the column as a plain type, or leave it out",
        Given("x.arrow", arrow(pa.table({"text": RUN_ENDS}))),
        [Given("x.arrow", arrow(pa.table({"text": TEXTS})))],
    ),
    (
        REPAIR,
        Given("x.arrow", arrow(pa.table([["a"], TEXTS[:1]], ["text", "text"]))),
        [Given("x.parquet", parquet(RECORDS))],
    ),
    (REFETCH, Given("x.parquet", b"PAR1 and no more"), [Given("x.parquet", parquet(RECORDS))]),
    (REFETCH, Given("x.tar", tar(*MEMBERS, end=False)), [PLAIN]),
    ("files in place of links (tar --dereference", Given("x.tar", tar(*MEMBERS, LINKED[0])), [PLAIN]),
    ("Make the archive again without it.", Given("x.tar", tar(*MEMBERS, LINKED[1])), [PLAIN]),
    ("again without it, in the format of GNU tar or pax", Given("x.tar", tar(header_of("m", b"M"), *MEMBERS)), [PLAIN]),
    ("Make the archive again without --sparse", Given("x.tar", sparse()), [PLAIN]),
    (
        "sort them by name",
        Given("x.tar", tar(("1.txt", TEXTS[0].encode()), ("2.txt", b"two"), ("1.json", b"{}")), SAMPLES),
        [Given("x.tar", tar(("1.json", b"{}"), ("1.txt", TEXTS[0].encode()), ("2.txt", b"two")), SAMPLES)],
    ),
    (
        "Set format to tar: every .json member is then a record",
        Given("x.tar", tar(("1.json", jsonl(CHATS[0]))), {"format": "webdataset", "renderer": renderer("messages")}),
        [
            Given(
                "x.tar",
                tar(("1.json", jsonl(CHATS[0])), ("2.json", jsonl(CHATS[1]))),
                {"format": "tar", "renderer": renderer("messages")},
            )
        ],
    ),
]


def outcome(folder: Path, given: Given) -> tuple[list[str], str]:
    """Return the texts of a file, and what is said of it."""
    file = file_at(folder / given.name)
    if isinstance(given.content, bytes):
        (folder / given.name).write_bytes(given.content)
    else:
        given.content(folder / given.name)
    how = reading(**(given.how or {}))
    try:
        rows = read(file, limits=given.limits, **(given.how or {}))
        texts = [
            RENDERERS[how.renderer.kind](row.key, row.record, how.renderer).text for row in rows if isinstance(row, Row)
        ]
    except CorpusError as error:
        return [], str(error)
    return texts, " ".join(row.detail for row in rows if not isinstance(row, Row))


@pytest.mark.parametrize(("remedy", "broken", "repaired"), CASES, ids=[f"{c[1].name}: {c[0]}" for c in CASES])
def test_a_remedy_helps(tmp_path: Path, remedy: str, broken: Given, repaired: list[Given]) -> None:
    _, said = outcome(tmp_path, broken)
    assert remedy in said
    for given in repaired:
        texts, said = outcome(tmp_path, given)
        assert (len(texts), said) == (2, "")
        if "messages" not in str(given.how):
            assert texts == TEXTS


def test_a_record_alone_is_read_as_its_error_says(tmp_path: Path) -> None:
    one = json.dumps(RECORDS[0], indent=1).encode()
    assert "set format to objects" in outcome(tmp_path, Given("x.json", one))[1]
    assert outcome(tmp_path, Given("x.json", one, {"format": "objects"})) == (TEXTS[:1], "")


def test_the_texts_of_a_zip_archive_are_read_when_it_is_unpacked_as_its_error_says(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", TEXTS[0])
    with pytest.raises(CorpusError) as caught:
        read(file_at(tmp_path / "x.zip"))
    assert "unpack it first, for example by python -m zipfile -e FILE FOLDER" in str(caught.value)
    (command,) = re.findall(r"python (-m zipfile -e FILE FOLDER)", str(caught.value))
    words = [{"FILE": str(tmp_path / "x.zip"), "FOLDER": str(tmp_path / "out")}.get(w, w) for w in command.split()]
    subprocess.run([sys.executable, *words], check=True)
    (row,) = read(file_at(tmp_path / "out" / "a.txt"))
    assert isinstance(row, Row) and row.record["text"] == TEXTS[0]


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS[1:]), sink)
    return sink.getvalue()


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
@pytest.mark.parametrize(
    ("data", "remedy", "how"),
    [
        (
            tar(MEMBERS[0]) + tar(MEMBERS[1]),
            "If archives were joined, unpack it by tar --ignore-zeros --extract --file FILE, or part them",
            {},
        ),
        (
            tar(MEMBERS[0], ("two.parquet", parquet_bytes())),
            "Unpack the archive (tar --extract --file FILE), and read the folder",
            {},
        ),
        (
            tar(MEMBERS[0], ("two.csv", "text\ntwo\n".encode("utf-16"))),
            "Unpack the archive and read the folder. For that file: Convert it to UTF-8, or set the source's encoding",
            {"encoding": "utf-16"},
        ),
    ],
    ids=["joined", "a table", "another encoding"],
)
def test_an_archive_is_unpacked_as_its_error_says(
    tmp_path: Path, data: bytes, remedy: str, how: dict[str, Any]
) -> None:
    _, said = outcome(tmp_path, Given("x.tar", data))
    assert remedy in said
    command = next(
        iter(re.findall(r"tar (?:--ignore-zeros )?--extract --file FILE", said)), "tar --extract --file FILE"
    )
    (tmp_path / "out").mkdir()
    subprocess.run(command.replace("FILE", "../x.tar").split(), cwd=tmp_path / "out", check=True)
    one, two = sorted((tmp_path / "out").iterdir())
    rows = [*read(file_at(one)), *read(file_at(two), **how)]
    assert [row.record["text"] for row in rows if isinstance(row, Row)] == TEXTS


def test_an_encoding_is_set_to_one_as_its_error_says() -> None:
    with pytest.raises(ValidationError, match=r"no encoding of text. Set it to one, such as cp1252 or utf-16"):
        reading(encoding="ansi-1252")
    assert reading(encoding="cp1252").encoding == "cp1252"


def test_a_shard_plan_is_made_again_as_its_error_says(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.jsonl", LINES)
    with pytest.raises(CorpusError, match=r"2 rows, expected at least 3. Make the shard plan again"):
        read(file, 0, 3)
    assert len(read(file, 0, 2)) == 2


_REMEDY = re.compile(
    r"(?:^|[.,;:] |or )((?:Set|set|Raise|Compress|Name|Close|Convert|Write|Unpack|unpack|Make|Decompress|If|Check|Fetch"
    r"|Repair|sort) .*)"
)


def strings_of(module: Path) -> list[str]:
    """Return the strings of a module that are no documentation."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation]
    return [node.value for node in constants if isinstance(node.value, str)]


@pytest.mark.parametrize("how", [{}, SAMPLES], ids=["tar", "webdataset"])
def test_an_archive_of_more_names_than_are_held_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    files = [(f"{k}.txt", b"text") for k in range(3)]
    whole = file_at(tmp_path / "x.tar", tar(*files))
    monkeypatch.setattr(members, "MAX_MEMBERS", 3)
    assert len(read(whole, **how)) == 3
    monkeypatch.setattr(members, "MAX_MEMBERS", 2)
    with pytest.raises(CorpusError, match="it has over 2 names of members") as refused:
        read(whole, **how)
    assert "Divide the archive, or unpack it and read the folder." in str(refused.value)
    parts = [file_at(tmp_path / f"{k}.tar", tar(*half)) for k, half in enumerate((files[:2], files[2:]))]
    assert [len(read(part, **how)) for part in parts] == [2, 1]


def test_every_remedy_has_a_test() -> None:
    """A remedy that is added to a module of reading needs a case."""
    tried = [text for text in strings_of(Path(__file__)) if len(text) > 12 and "\\" not in text]
    missing = []
    for module in sorted(SOURCES.glob("*.py")):
        for text in strings_of(module):
            found = _REMEDY.search(text)
            if found and not any(one.strip(". ") in text or found[1].strip(". ") in one for one in tried):
                missing.append(f"{module.name}: {text}")
    assert not missing
