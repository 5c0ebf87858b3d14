"""Documents are read again by address: from the files that hold them, up to the last row that is wanted."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from everytoken.corpus.errors import RowError
from everytoken.corpus.ingestion.source import Source, UpstreamFile, find_files
from everytoken.corpus.upstreams.path import PathUpstream
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.upstream_text import iterate_documents_at, read_documents_at
from everytoken.seeds import numpy_generator

ROWS = [
    {"id": None if i % 7 == 6 else f"row {i}", "text": f"text {i} é 日本 \u2028\x00" + "x" * (i * 37 % 500)}
    for i in range(300)
]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=40)


def tar(path: Path, rows: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w") as archive:
        for begin in range(0, len(rows), 30):
            data = lines(rows[begin : begin + 30])
            header = tarfile.TarInfo(f"{begin}.jsonl")
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(lines(rows))),
    "jsonl.zst": lambda path, rows: path.write_bytes(zstd.compress(lines(rows))),
    "json": lambda path, rows: path.write_text(json.dumps(rows)),
    "parquet": parquet,
    "tar": tar,
}


def source(folder: Path, pattern: str, **changes: Any) -> Source:
    renderer = {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None}
    given: dict[str, Any] = {
        "upstream": {"kind": "path", "root": str(folder), "pattern": pattern, "checksums": None},
        "format": None,
        "records": None,
        "renderer": renderer,
        "rows_per_shard": None,
        "quality": None,
        "min_keep_rate": None,
        "max_text_bytes": None,
    }
    return Source.model_validate({**given, **changes})


def files_of(name: str, given: Source, folder: Path) -> list[UpstreamFile]:
    assert isinstance(given.upstream, PathUpstream)
    return find_files(name, given.upstream, folder)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_any_rows_of_any_format_are_what_was_written(tmp_path: Path, suffix: str) -> None:
    for number in range(3):
        WRITERS[suffix](tmp_path / f"{number}.{suffix}", ROWS[100 * number : 100 * number + 100])
    web = source(tmp_path, f"*.{suffix}")
    files = files_of("web", web, tmp_path / "fetched")
    for seed in range(4):
        drawn = numpy_generator(seed).integers(0, 300, 1 + 9 * seed).tolist()
        wanted = [("web", row // 100, row % 100) for row in drawn]
        found = read_documents_at({"web": web}, {"web": files}, wanted)
        assert found == {("web", row // 100, row % 100): (ROWS[row]["id"], ROWS[row]["text"]) for row in drawn}
        assert list(found) == sorted(set(wanted))


def test_only_the_files_that_hold_an_address_are_opened_and_none_beyond_the_last_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS[:50]) + b"\xff broken " * 100_000)
    (tmp_path / "b.jsonl").write_bytes(lines(ROWS[50:60]))
    web = source(tmp_path, "*.jsonl")
    files = files_of("web", web, tmp_path / "fetched")
    (tmp_path / "b.jsonl").unlink()
    found = read_documents_at({"web": web}, {"web": files}, [("web", 0, 49), ("web", 0, 3)])
    assert list(found) == [("web", 0, 3), ("web", 0, 49)]
    with pytest.raises(RowError, match=r"b\.jsonl"):
        read_documents_at({"web": web}, {"web": files}, [("web", 1, 0)])
    one = iterate_documents_at({"web": web}, {"web": files}, [("web", 1, 0), ("web", 0, 3)])
    assert next(one) == (("web", 0, 3), (ROWS[3]["id"], ROWS[3]["text"])), "one after the other"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (("web", 0, 10), r"web', file a.jsonl: there is no row 10 \(1 of 1"),
        (("web", 0, -1), "row -1; rows are numbered from 0"),
        (("web", 7, 0), "has 1 files, numbered from 0; there is no file 7"),
        (("none", 0, 0), r"no source 'none'; the sources of this environment are \['web'\]"),
        (("web", 0, 4), r"row 4 is no document any more \(text_null"),
        (("web", 0, 5), r"row 5 is no document any more \(not_json"),
    ],
)
def test_an_address_that_is_no_document_is_named(tmp_path: Path, address: Any, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS[:4]) + b'{"text": null}\n{"text"\n' + lines(ROWS[6:10]))
    web = source(tmp_path, "*.jsonl")
    with pytest.raises(ProvenanceError, match=message):
        read_documents_at({"web": web}, {"web": files_of("web", web, tmp_path / "fetched")}, [address])


def test_records_that_hold_several_documents_are_cut_as_they_were(tmp_path: Path) -> None:
    answers = {
        name: "About it.\n\n" + "\n\n".join(f"Q: {name} {k}?\nA: {k}" for k in range(3)) for name in ("one", "two")
    }
    (tmp_path / "prompts.json").write_text(json.dumps(answers))
    given = source(tmp_path, "*.json", renderer={"kind": "flan_cot"})
    found = read_documents_at({"cot": given}, {"cot": files_of("cot", given, tmp_path)}, [("cot", 0, 4), ("cot", 0, 0)])
    assert found == {("cot", 0, 0): ("one/0", "Q: one 0?\nA: 0"), ("cot", 0, 4): ("two/1", "Q: two 1?\nA: 1")}
