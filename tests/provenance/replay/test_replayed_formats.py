"""A corpus of tar archives, tables and compressed files is released, and built again from the same files elsewhere."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from everytoken.pipelines import annotation, ingestion, release, subsampling, tokenization
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import open_release
from everytoken.provenance.verification import release_checks
from everytoken.shards import ArtifactStore, Shards, Store
from tests.corpus.reading.read_rows import jsonl, write_arrow
from tests.corpus.reading.test_tars import tar_of
from tests.corpus.rendering.test_chat_keys import renderer
from tests.provenance.builds import parameters_of
from tests.provenance.replay.test_replay import Replay, replay
from tests.provenance.small_job import LICENCE, SmallJob, documents, write_upstream

SPLITS = ("annotated", "unannotated", "held_out")
WEB = {"kind": "document", "text_column": "txt", "id_columns": ["__key__"], "stratum_column": "json.topic"}
SOURCES: dict[str, dict[str, Any]] = {
    "files": {"files_per_shard": 4},
    "western": {"encoding": "cp1252"},
    "web": {"format": "webdataset", "renderer": WEB},
    "chats": {"renderer": renderer("messages").model_dump(mode="json")},
}


def rows(name: str, count: int) -> list[dict[str, Any]]:
    """Return rows with texts of their own."""
    texts = [row["text"] for row in documents()["articles"][10:] if row["id"] != "shared"]
    return [{"id": f"{name} {i}", "text": f"{name}: {texts[i]}", "topic": f"t{i % 2}"} for i in range(count)]


def table(name: str, count: int, between: str) -> str:
    lines = [(row["id"], '"' + row["text"].replace('"', '""') + '"') for row in rows(name, count)]
    return "\n".join(between.join(line) for line in [("id", "text"), *lines]) + "\n"


def files_of(folder: Path) -> None:
    """Write the files of all sources."""
    packed = [
        ("deep/a.txt", rows("member", 1)[0]["text"].encode()),
        ("picture.jpg", b"\xff\xd8\xff"),
        ("lines.jsonl.gz", gzip.compress(jsonl(*rows("packed lines", 5)))),
        ("array.json", json.dumps(rows("packed array", 4)).encode()),
        ("table.csv", table("packed table", 4, ",").encode()),
    ]
    single = rows("text", 2)
    written: dict[str, bytes] = {
        "files/a.tar.gz": gzip.compress(tar_of(packed)),
        "files/b.csv": table("csv", 7, ",").encode(),
        "files/c.md": single[0]["text"].encode(),
        "files/d.jsonl.bz2": bz2.compress(jsonl(*rows("bz2", 6))),
        "files/e.ndjson.xz": lzma.compress(jsonl(*rows("xz", 6))),
        "files/f.json.gz": gzip.compress(json.dumps(rows("array in gz", 6)).encode()),
        "files/g.tsv.zst": zstd.compress(table("tsv", 6, "\t").encode()),
        "files/h.json": json.dumps(rows("array", 5), indent=1).encode(),
        "files/i.txt": single[1]["text"].encode(),
        "western/a.csv.gz": gzip.compress(table("Zürich", 6, ",").encode("cp1252", "replace")),
        "chats/a.jsonl": jsonl(
            *[
                {"messages": [{"role": "user", "content": row["id"]}, {"role": "assistant", "content": row["text"]}]}
                for row in rows("chat", 8)
            ]
        ),
    }
    web = [
        (f"{row['id']}.{kind}", content)
        for row in rows("web", 9)
        for kind, content in (("txt", row["text"].encode()), ("json", json.dumps({"topic": row["topic"]}).encode()))
    ]
    written["web/a.tar"] = tar_of(web[:10])
    written["web/b.tar.xz"] = lzma.compress(tar_of(web[10:]))
    for name, content in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    pq.write_table(pa.Table.from_pylist(rows("parquet", 6)), folder / "files/j.parquet", row_group_size=2)
    write_arrow(folder / "files/k.arrow", pa.Table.from_pylist(rows("arrow", 5)), stream=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    folder = tmp_path_factory.mktemp("formats") / "job"
    write_upstream(folder)
    files_of(folder / "upstream")
    changes: dict[str, Any] = {"ingestion.plan": {"seed": 42, "n_shards": None}}
    for name, own in SOURCES.items():
        upstream = {"kind": "path", "root": str(folder / "upstream" / name)}
        changes[f"ingestion.sources.{name}"] = {"upstream": upstream, **own}
        changes[f"release.licences.{name}"] = {**LICENCE, "attribution": "Nobody.", "text": "none"}
        changes[f"release.sources.{name}"] = {"public": False}
    made = SmallJob(folder, changes=changes)
    made.run(ingestion, annotation, subsampling, tokenization, release)
    return made


def replayed_from(job: SmallJob, root: Path, folder: Path) -> Replay:
    sources = job.catalog.load("params:ingestion").active_sources
    places = {name: source.upstream.model_dump(mode="json") for name, source in sources.items()}
    for place in places.values():
        place["root"] = place["root"].replace(str(job.folder / "upstream"), str(root))
    return replay(folder, job.release, parameters_of(job.folder), upstreams=places)


def kept_of(documents: Shards) -> list[list[dict[str, Any]]]:
    """Return what is known of the documents of the formats, part by part."""
    names = ["source", "shard_index", "row", "id", "assistant_spans"]
    return [[row for row in part.table(names).to_pylist() if row["source"] in SOURCES] for part in documents]


def test_every_row_of_every_format_is_a_document(job: SmallJob) -> None:
    store = Store(job.data / "02_intermediate/upstream_documents").load()
    found: dict[str, int] = {}
    for part in store:
        for source in part.table(["source"]).column(0).to_pylist():
            found[source] = found.get(source, 0) + 1
    assert {name: found[name] for name in SOURCES} == {"files": 63, "western": 6, "web": 9, "chats": 8}


def test_a_replay_from_a_copy_has_the_digests_of_every_stream(job: SmallJob, tmp_path: Path) -> None:
    shutil.copytree(job.folder / "upstream", tmp_path / "copy")
    replayed = replayed_from(job, tmp_path / "copy", tmp_path / "replayed")
    for name in ("annotated_stream", "compact_stream"):
        made = ArtifactStore(job.data / "05_model_input" / name).load()
        assert replayed[name].root_digest == made.root_digest
    counts = replayed["replay_metrics"]
    assert counts["rows"] == counts["at_address"]
    for split in SPLITS:
        drawn = Store(job.data / f"04_feature/{split}_documents").load()
        assert kept_of(replayed[f"{split}_documents"]) == kept_of(drawn)
    folders = {kind: replayed[f"{kind}_stream"].folder for kind in ("annotated", "compact")}
    checks = release_checks(open_release(job.release), folders, full=True, documents=5, seed=1)
    assert [check for check in checks if check.outcome == "failed"] == []


def test_a_member_of_an_archive_that_changed_stops_a_replay(job: SmallJob, tmp_path: Path) -> None:
    shutil.copytree(job.folder / "upstream", tmp_path / "copy")
    path = tmp_path / "copy/files/a.tar.gz"
    content = gzip.decompress(path.read_bytes())
    assert b"packed table 0" in content
    path.write_bytes(gzip.compress(content.replace(b"packed table 0", b"packed table 9")))
    with pytest.raises(ProvenanceError, match=r"a\.tar\.gz"):
        replayed_from(job, tmp_path / "copy", tmp_path / "replayed")
