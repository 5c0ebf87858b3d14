"""Tar archives: files of text, records of webdataset, and archives that are damaged or made to do harm."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from backports import zstd

from everytoken.corpus.errors import OTHER_MEMBER, RowError, UpstreamError
from everytoken.corpus.reading.lines import Row, UnreadableRow
from everytoken.corpus.reading.readers import count_rows
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.rendering.renderers import DocumentRenderer, JoinedRenderer, NamedRenderer, render_document
from everytoken.corpus.upstreams import PathUpstream
from tests.corpus.ingestion.test_ingest import read_rows_of, values_of
from tests.corpus.part_tables import collect_all
from tests.corpus.reading.read_rows import LIMITS, file_at, jsonl, kept, read, reading, set_aside

CAPTIONS = DocumentRenderer(
    kind="document", text_column="txt", id_columns=("__key__",), stratum_column="json.licence.name"
)
JPEG = b"\xff\xd8\xff\xe0" + bytes(3_000)
FILES: list[tuple[str, bytes]] = [
    ("texts/a.txt", "é, as it is\r\n".encode()),
    ("texts/deep.er/" + "n" * 120 + "/b.md", b"\xef\xbb\xbfsecond"),
    ("one.json", b'{\n "id": 3,\n "text": "pretty"\n}\n'),
    ("array.json", b'[{"id": 4, "text": "x"}, {"id": 5, "text": "y"}]'),
    ("lines.jsonl.gz", gzip.compress(jsonl({"id": 6, "text": "z"}, {"id": 7, "text": "w"}))),
    ("é.ndjson", b'{"id": 8, "text": "v"}\nno\n'),
    ("table.CSV", b"id,text\n9,u\n"),
    ("pictures/a.jpg", JPEG),
    ("empty.txt", b""),
]


def tar_of(
    members: list[tuple[str, bytes]] | list[tarfile.TarInfo], layout: int = tarfile.PAX_FORMAT, end: bool = True
) -> bytes:
    """Return an archive of these files, or of headers without data."""
    file = io.BytesIO()
    archive = tarfile.open(fileobj=file, mode="w", format=layout)  # noqa: SIM115  # its end is left out for some
    for member in members:
        if isinstance(member, tarfile.TarInfo):
            archive.addfile(member)
            continue
        header = tarfile.TarInfo(member[0])
        header.size = len(member[1])
        archive.addfile(header, io.BytesIO(member[1]))
    if end:
        archive.close()
    return file.getvalue()


def header_of(name: str, kind: bytes = tarfile.REGTYPE, **changes: object) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type = kind
    for key, value in changes.items():
        setattr(header, key, value)
    return header


@pytest.mark.parametrize("layout", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_every_member_is_read_as_a_file_of_its_name(tmp_path: Path, layout: int) -> None:
    data = tar_of([header_of("texts", tarfile.DIRTYPE)], layout, end=False) + tar_of(FILES, layout)
    file = file_at(tmp_path / "x.tar", data)
    rows = read(file)
    assert kept(rows) == [
        {"id": FILES[0][0], "text": "é, as it is\r\n"},
        {"id": FILES[1][0], "text": "second"},
        {"id": 3, "text": "pretty"},
        *({"id": number, "text": text} for number, text in zip(range(4, 9), "xyzwv", strict=True)),
        {"id": "9", "text": "u"},
        {"id": "empty.txt", "text": ""},
    ]
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(8, "not_json"), (10, OTHER_MEMBER)]
    assert [row.number for row in rows] == list(range(12))
    details = [row.detail for row in rows if isinstance(row, UnreadableRow)]
    assert "member 'é.ndjson': not valid JSON" in details[0]
    assert "member 'pictures/a.jpg': its name ends in none of .jsonl" in details[1]
    for row in (rows[0], rows[8]):  # an offset is a place in the archive
        assert row.offset is not None
        assert data[row.offset :].startswith(b"no\n" if isinstance(row, UnreadableRow) else FILES[0][1])
    for first in range(13):  # addresses are stable
        assert read(file, first) == rows[first:]
        assert read(file, first, min(2, 12 - first) if first < 12 else 0) == rows[first : first + 2]
    assert count_rows(file, reading(), LIMITS) == 12


@pytest.mark.parametrize(
    "name", ["x.tar.gz", "x.TGZ", "x.tar.bz2", "x.tbz2", "x.tar.xz", "x.txz", "x.tar.zst", "x.tzst"]
)
def test_an_archive_may_be_compressed(tmp_path: Path, name: str) -> None:
    import bz2
    import lzma

    data = tar_of(FILES)
    compress = {"gz": gzip.compress, "b2": bz2.compress, "xz": lzma.compress, "st": zstd.compress}
    kind = {"x.TGZ": "gz", "x.tbz2": "b2", "x.tar.bz2": "b2"}.get(name, name[-2:])
    packed = compress[kind](data)
    assert read(file_at(tmp_path / name, packed)) == read(file_at(tmp_path / "x.tar", data))
    with pytest.raises(RowError, match="truncated or corrupt"):
        read(file_at(tmp_path / name, packed[:-9]))


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
def test_archives_of_the_program_tar_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text(f"text {number}")
    for layout in ("gnu", "pax", "ustar", "v7"):
        target = tmp_path / f"{layout}.tar"
        subprocess.run(["tar", f"--format={layout}", "--sort=name", "-cf", target, "-C", tmp_path, "./in"], check=True)
        expected = [{"id": f"./in/{number}.txt", "text": f"text {number}"} for number in range(3)]
        assert kept(read(file_at(target))) == expected


def samples(*numbers: int) -> list[tuple[str, bytes]]:
    """Return the members of records as webdataset's ``TarWriter`` lays them out."""
    return [
        member
        for number in numbers
        for member in (
            (f"shard/{number:06}.jpg", JPEG),
            (f"shard/{number:06}.json", json.dumps({"licence": {"name": "cc0"}, "n": number}).encode()),
            (f"shard/{number:06}.txt", f"caption {number}".encode()),
        )
    ]


def test_members_of_one_name_are_a_record(tmp_path: Path) -> None:
    file = file_at(tmp_path / "00000.tar", tar_of(samples(0, 1, 2), tarfile.USTAR_FORMAT))
    rows = read(file, format="webdataset", renderer=CAPTIONS)
    found = [
        {"__key__": f"shard/{n:06}", "json": {"licence": {"name": "cc0"}, "n": n}, "txt": f"caption {n}"}
        for n in range(3)
    ]
    assert kept(rows) == found
    documents = [render_document(None, record, CAPTIONS) for record in kept(rows)]
    assert [(one.id.text if one.id else None, one.text, one.stratum) for one in documents] == [
        (f"shard/{n:06}", f"caption {n}", "cc0") for n in range(3)
    ]
    assert read(file, 1, 1, format="webdataset", renderer=CAPTIONS) == rows[1:2]
    assert count_rows(file, reading(format="webdataset", renderer=CAPTIONS), LIMITS) == 3
    one = DocumentRenderer(kind="document", text_column="json.licence.name", id_columns=("json.n",))
    assert kept(read(file, format="webdataset", renderer=one))[0] == {k: v for k, v in found[0].items() if k != "txt"}


def test_columns_have_the_names_of_webdataset(tmp_path: Path) -> None:
    both = JoinedRenderer(kind="joined", text_columns=("en.txt", "cls", "de.txt.gz"), separator="\n")
    members = [
        ("a.b/x.en.TXT", b"one"),
        ("a.b/x.cls", b"7"),
        ("a.b/x.de.txt.gz", gzip.compress(b"eins")),
        ("__info__", b"{}"),
        ("a.b/y.cls", b"8"),
    ]
    rows = read(file_at(tmp_path / "x.tar", tar_of(members)), format="webdataset", renderer=both)
    assert kept(rows) == [{"__key__": "a.b/x", "en.txt": "one", "cls": "7", "de.txt.gz": "eins"}]
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(0, OTHER_MEMBER), (2, "no_text")]
    assert isinstance(rows[2], UnreadableRow)
    assert "'a.b/y' has no column 'en.txt', found the columns cls" in rows[2].detail


@pytest.mark.parametrize(
    ("members", "reason", "detail"),
    [
        ([("a.txt", b"1"), ("a.txt", b"2")], "duplicate_key", "has a member of this name before"),
        ([("b.txt", b"0"), ("a.txt", b"1"), ("b.txt", b"2")], "duplicate_key", "sort them by name"),
        ([("a.txt", b"caf\xe9")], "not_utf8", "member 'a.txt': not valid UTF-8"),
        ([("a.json", b"{"), ("a.txt", b"1")], "not_json", "member 'a.json': not valid JSON"),
        ([("a.json", b'{"x": "' + b"y" * 600_000 + b'"}'), ("a.txt", b"z" * 600_000)], "row_too_large", "over max_row"),
    ],
    ids=["member twice", "key twice", "latin-1", "broken", "large"],
)
def test_a_record_that_cannot_be_read_is_set_aside(
    tmp_path: Path, members: list[tuple[str, bytes]], reason: str, detail: str
) -> None:
    members = [*members, ("zz.txt", b"good")]
    rows = read(file_at(tmp_path / "x.tar", tar_of(members)), format="webdataset", renderer=CAPTIONS)
    (bad,) = (row for row in rows if isinstance(row, UnreadableRow))
    assert (bad.reason, detail in bad.detail) == (reason, True)
    assert kept(rows)[-1] == {"__key__": "zz", "txt": "good"}
    assert [row.number for row in rows] == list(range(len(rows)))


def test_webdataset_is_for_documents_and_chats_are_read_by_member(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.tar", tar_of(samples(0)))
    with pytest.raises(UpstreamError, match="Set format to tar"):
        read(file, format="webdataset", renderer=NamedRenderer(kind="chat"))
    assert kept(read(file, format="tar"))[0]["n"] == 0


def test_a_member_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    rows = read(file_at(tmp_path / "x.tar", tar_of([("a.txt", b"old"), ("a.txt", b"new")])))
    assert kept(rows) == [{"id": "a.txt", "text": "old"}]
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(1, "duplicate_key")]


def test_a_picture_is_left_out_as_by_a_filter_and_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    members = [("a.txt", b"one"), ("b.jpg", JPEG), ("c.txt", b"two"), ("\udcff.txt", b"no name")]
    (tmp_path / "in" / "x.tar.zst").write_bytes(zstd.compress(tar_of(members, tarfile.GNU_FORMAT)))
    (value,) = values_of(tmp_path, upstream=PathUpstream(kind="path", root=str(tmp_path / "in"), pattern="*.tar.zst"))
    with pytest.raises(RowError, match=r"1 of 4 rows are bad .1 lone_surrogate.*row 3"):
        collect_all(read_rows_of(value))
    documents, aside, statistics = collect_all(read_rows_of(value, max_bad_share=0.25))
    assert documents.select(["row", "id", "text"]).to_pylist() == [
        {"row": 0, "id": "a.txt", "text": "one"},
        {"row": 2, "id": "c.txt", "text": "two"},
    ]
    assert aside.column("reason").to_pylist() == [OTHER_MEMBER, "lone_surrogate"]
    assert (statistics["rows_in"], statistics["kept"]) == (4, 2)


def test_names_are_no_places(tmp_path: Path) -> None:
    names = ["../../up.txt", "/etc/passwd.txt", "a/../b.txt", "\udcff.txt", "a\nb.txt"]
    before = sorted(tmp_path.parent.rglob("*"))
    file = file_at(tmp_path / "x.tar", tar_of([(name, b"text") for name in names], tarfile.GNU_FORMAT))
    assert kept(read(file)) == [{"id": name, "text": "text"} for name in names]
    assert sorted({*tmp_path.parent.rglob("*")} - {tmp_path / "x.tar"}) == before


def sparse() -> bytes:
    header = header_of("s.txt", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.size": "9"})
    return tar_of([header])


def altered(data: bytes, at: int, new: bytes) -> bytes:
    """Return an archive whose first header has other bytes and the checksum of them."""
    block = bytearray(data[:512])
    block[at : at + len(new)] = new
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data[512:]


ONE = tar_of([("a.txt", b"text"), ("b.txt", b"text")], tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            tar_of([header_of("l.txt", tarfile.SYMTYPE, linkname="/etc/passwd")]),
            "'l.txt' is a symbolic link.*dereference",
        ),
        (tar_of([header_of("l.txt", tarfile.LNKTYPE, linkname="a.txt")]), "'l.txt' is a hard link.*dereference"),
        (tar_of([header_of("p.txt", tarfile.FIFOTYPE)]), "'p.txt' is a pipe"),
        (tar_of([header_of("d.txt", tarfile.CHRTYPE)]), "'d.txt' is a device"),
        (sparse(), "'s.txt' is a sparse file.*without --sparse"),
        (altered(ONE, 156, b"S"), "'a.txt' is a sparse file"),
        (altered(ONE, 156, b"M"), "'a.txt' is of the type b'M'"),
        (altered(ONE, 124, b"\x80" + b"\0" * 3 + b"\x0f" * 8), "archive ends at byte 10,240, within member 'a.txt'"),
        (altered(ONE, 124, b"\xff" * 12), "negative size"),
        (altered(altered(ONE, 156, b"L"), 124, b"77777777777"), "headers at byte 512 have 8,589,934,591 bytes"),
        (altered(ONE, 156, b"x"), "no records of pax"),
        (tar_of([header_of("a.txt", pax_headers={"size": "-512"})]), "has the size '-512'"),
        (ONE[:512] + b"text" + b"\1" * 508 + b"\2" * 512 + ONE[1024:], "byte 1,024: expected the header"),
        (ONE + ONE, "the archive ends before byte 10,240.*--ignore-zeros"),
        (tar_of([("a.txt", b"text")], end=False), "archive ends at byte 1,024, within a header"),
        (b"", "archive ends at byte 0"),
        (b"text of somebody" * 64, "byte 0: expected the header of a member"),
        (tar_of([("a/b.parquet", b"PAR1")]), "'a/b.parquet' is parquet.*Unpack"),
        (tar_of([("inner.tar.gz", b"")]), "'inner.tar.gz' is tar.*Unpack"),
        (tar_of([("a.txt", "é".encode("utf-16"))]), "member 'a.txt': the text is UTF-16.*Unpack the archive.*encoding"),
        (tar_of([("a.csv", b'a\n"')]), "member 'a.csv': truncated or corrupt"),
        (tar_of([("a.txt.gz", gzip.compress(b"text")[:-4])]), "member 'a.txt.gz': truncated or corrupt"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_member(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(RowError, match=f"file x.tar: .*{reason}"):
        read(file_at(tmp_path / "x.tar", data))


def test_a_cut_archive_is_never_whole(tmp_path: Path) -> None:
    for data, rows in ((tar_of(FILES), 12), (tar_of(FILES, tarfile.GNU_FORMAT), 12)):
        end = len(data.rstrip(b"\0")) // 512 * 512 + 512 + 512 * 2  # an empty member comes last
        for size in [*range(0, end, 97), *range(0, end, 512)]:
            try:
                found = read(file_at(tmp_path / "x.tar", data[:size]))
            except RowError:
                continue
            assert len(found) == rows and size >= end - 1024, size


def test_memory_is_that_of_a_row(tmp_path: Path) -> None:
    """A picture of 64 MiB is passed over, and so is a text that is too large."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in ("a.jpg", "b.txt"):
            header = header_of(name, size=64 << 20)
            with (tmp_path / "zeros").open("wb+") as zeros:
                os.truncate(zeros.fileno(), 64 << 20)
                archive.addfile(header, zeros)
    tracemalloc.start()
    rows = read(file_at(tmp_path / "x.tar"), limits=ReadingLimits(max_row_bytes=1000, zstd_window_log_max=27))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [reason for _, _, reason in set_aside(rows)] == [OTHER_MEMBER, "row_too_large"]
    assert peak < 4 << 20


def test_attributes_of_macos_and_folders_are_no_texts(tmp_path: Path) -> None:
    members = [("._a.txt", b"\0\5\x16\7attributes"), ("a.txt", b"text"), (".hidden.txt", b"seen")]
    file = file_at(tmp_path / "x.tar", tar_of(members))
    rows = read(file)
    assert kept(rows) == [{"id": "a.txt", "text": "text"}, {"id": ".hidden.txt", "text": "seen"}]
    assert [(number, reason) for number, _, reason in set_aside(rows)] == [(0, OTHER_MEMBER)]
    grouped = read(file, format="webdataset", renderer=CAPTIONS)
    assert [row.number for row in grouped if isinstance(row, Row)] == [2]
