"""A release and its upstream give the streams again, byte for byte; what upstream cannot give is counted and named."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro_viz.integrations.kedro.data_loader import load_data
from pydantic import ValidationError

from everytoken.configuration import ReplayHook
from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.exclusion import ExcludedId, write_list
from everytoken.corpus.ingestion.source import HubUpstream
from everytoken.parameters import (
    ExpectParameters,
    IngestionParameters,
    PackingParameters,
    ReplayParameters,
    SubsamplingParameters,
    TokenizationParameters,
)
from everytoken.pipelines.packing.pipeline import create_pipeline as packing_pipeline
from everytoken.pipelines.replay.nodes import find_upstreams
from everytoken.pipelines.replay.pipeline import restore_pipeline as replay_pipeline
from everytoken.pipelines.tokenization.pipeline import create_pipeline as tokenization_pipeline
from everytoken.pipelines.verification.pipeline import create_pipeline as verification_pipeline
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import open_release
from everytoken.provenance.replay import parameters as replay_parameters
from everytoken.provenance.replay.faults import of_another_id
from everytoken.provenance.replay.manifest_files import (
    is_release,
    manifest_parts,
    read_released_manifest,
)
from everytoken.provenance.replay.parameters import (
    rebuilding_pipelines,
    released_groups,
    with_released_parameters,
)
from everytoken.provenance.replay.replayed_release import keep_to_release
from everytoken.provenance.replay.report import require_unmoved
from everytoken.provenance.replay.upstream_drift import released_plan
from everytoken.shards import Artifact, ArtifactStore, Store, make_engine
from everytoken.tokens.streams import released_kinds
from everytoken.tokens.streams.megatron import open_indexed
from tests.provenance.builds import ROOT, Build, build, parameters_of, release_of
from tests.warm_kedro import run_kedro

SPLITS = ("annotated", "unannotated", "held_out")
SMALL: dict[str, Any] = {
    "ingestion__dedup": {"exact": False, "near": None},
    "ingestion__sources__pieces__rows_per_shard": 26,
    "ingestion__plan": {"seed": 42, "offset": 0, "n_shards": 6, "expect_shards": 7},
    "subsampling__target_tokens": 3_500,
    "subsampling__held_out_share": 0.1,
}
PACKING: dict[str, Any] = {
    "seed": 42,
    "shard_size_tokens": 700,
    "dtype": "uint16",
    "shuffle_memory": 1 << 20,
    "cross_document_boundary": True,
    "n_shards": None,
}
LONG_ID = "a title that is so long that it would show the text of its document"


def write_upstream(folder: Path, change: Callable[[list[dict[str, Any]]], None] | None = None) -> Path:
    """Write two files of documents: some without id, some repeated, one whose id stands in its text."""
    folder.mkdir(parents=True)
    rows = [
        {
            "id": None if i % 7 == 3 else i if i % 11 == 5 else f"piece-{i}",
            "text": f"Piece {i} tells of things that nobody has told before: "
            + ", ".join(map(str, range(i, 6 * i, i + 1))),
            "topic": f"t{i % 3}",
        }
        for i in range(150)
    ]
    for i in range(8, 150, 10):
        rows[i] |= {"id": f"{LONG_ID} {i}", "text": f"{LONG_ID} {i}: {rows[i]['text']}"}
    rows[40:40] = [rows[12], rows[12]]  # upstream repeats documents
    rows[100:100] = [rows[12], rows[20]]
    (change or len)(rows)
    for file, own in enumerate((rows[:80], rows[80:])):
        text = "".join(json.dumps(row) + "\n" for row in own)
        (folder / f"texts_{file}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build with its release."""
    folder = tmp_path_factory.mktemp("made")
    made = build(folder / "data", write_upstream(folder / "texts"), **SMALL)
    made.held["params:packing"] = PackingParameters(**PACKING)
    made.run(packing_pipeline().to_outputs("raw_shards"), "05_model_input")
    release_of(made)
    assert all(made[f"{split}_documents"].rows > 5 for split in SPLITS)
    return made


class Replay(Build):
    """A data folder that a replay fills."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any], workers: Mapping[str, int]) -> None:
        super().__init__(folder, parameters)
        self.workers = workers

    def save(self, name: str, value: Any, layer: str) -> None:
        if name in self.workers:
            store = Store(self.folder / layer / name)
            store.save(value, make_engine("processes", self.workers[name]))
            value = store.load()
        super().save(name, value, layer)


def replay(folder: Path, release: Path, own: Mapping[str, Any], *, upto: str = "streams", **how: Any) -> Replay:
    """Replay a release (or a published manifest, with the parameters ``own``) into ``folder``."""
    workers = how.pop("workers", {})
    given = {"release": str(release), "upstreams": None, "allow": [], "allow_roots": [], "memory": 1 << 27, **how}
    given["verification"] = {"full": True, "documents": 10, "seed": 42}
    plain = {name.removeprefix("params:"): one.model_dump(mode="json") for name, one in own.items()}
    environment = {**plain, "replay": given}
    taken = with_released_parameters(environment) if is_release(release) else environment
    parameters = {
        "replay": ReplayParameters.model_validate(given),
        "ingestion": IngestionParameters.model_validate(taken["ingestion"]),
        "subsampling": SubsamplingParameters.model_validate(taken["subsampling"]),
        "tokenization": TokenizationParameters.model_validate(taken["tokenization"]),
        "expect": ExpectParameters.model_validate(environment["expect"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replayed = Replay(folder, parameters, workers)
    replayed.run(replay_pipeline(), "02_intermediate")
    replayed.held |= {kind.input: None for kind in released_kinds() if kind.is_on_request}
    if upto == "streams":
        replayed.run(tokenization_pipeline(), "05_model_input")
    if upto == "streams" and "packing" in taken:
        replayed.held["params:packing"] = PackingParameters.model_validate(taken["packing"])
        replayed.run(packing_pipeline().to_outputs("raw_shards"), "05_model_input")
        replayed.held["raw_shards_when_made"] = replayed["raw_shards"]
    return replayed


def own_parameters(texts: Path, **seeds: Any) -> dict[str, Any]:
    """Parameters of an environment that has other ones than the release: what decides bytes may not come from them."""
    return parameters_of(texts, tokenization__seq_length=32, ingestion__min_chars=1, subsampling__seed=1, **seeds)


def release_path(made: Build) -> Path:
    return made.folder / "08_reporting/release"


def upstream_at(folder: Path) -> dict[str, Any]:
    return {"pieces": {"kind": "path", "root": str(folder), "pattern": "*.jsonl", "checksums": None}}


def stream_files(made: Build) -> dict[str, str]:
    """The SHA-256 of every file of the streams but ledgers."""
    return {
        f"{name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for name in ("compact_stream", "annotated_stream")
        for path in sorted(made[name].folder.iterdir())
        if path.name != "ledger.json"
    }


def text_files(made: Build) -> dict[str, str]:
    return {name: digest for name, digest in stream_files(made).items() if not name.endswith("sidecar.parquet")}


def rows_of(made: Build, split: str) -> list[dict[str, Any]]:
    return [row for part in made[f"{split}_documents"] for row in part.table().drop(["safety_probs"]).to_pylist()]


@pytest.fixture(scope="module")
def replayed(made: Build, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    folder = tmp_path_factory.mktemp("replayed") / "elsewhere"
    return replay(folder, release_path(made), own_parameters(made.folder.parent / "texts"))


def test_a_replay_gives_the_bytes_of_every_stream(
    made: Build, replayed: Replay, caplog: pytest.LogCaptureFixture
) -> None:
    assert stream_files(replayed) == stream_files(made)
    for name in ("compact_stream", "annotated_stream"):
        assert replayed[name].root_digest == made[name].root_digest
    for split in SPLITS:
        assert rows_of(replayed, split) == rows_of(made, split)
        documents = (one[f"{split}_documents"] for one in (replayed, made))
        here, there = ([part["estimated_tokens"] for part in one.statistics] for one in documents)
        assert here == there
    counts = replayed["replay_metrics"]
    assert counts["rows"] == counts["at_address"] == sum(made[f"{split}_documents"].rows for split in SPLITS)
    with caplog.at_level("INFO"):
        replayed.run(verification_pipeline(), "08_reporting")
    checks, digest = replayed["verification_metrics"]["checks"], open_release(release_path(made)).digest
    assert checks > 10
    found = f"{counts['rows']} documents: {counts['rows']} at their address"
    assert f"release {digest}: {found}; all streams are the released ones ({checks} checks)" in caplog.text
    assert replayed["replay_report"]["release"]["digest"] == digest


def test_raw_shards_of_a_release_are_rebuilt_with_its_packing_and_compared(
    made: Build, replayed: Replay, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"replay": {"release": str(release_path(made))}, **{name: {} for name in released_groups()}}
    other = {"seed": 1, "shard_size_tokens": 9, "dtype": "uint32", "shuffle_memory": 77}
    taken = with_released_parameters({**environment, "packing": other, "canary": {"seed": 3}})
    assert taken["packing"] == {**PACKING, "shuffle_memory": 77}
    assert taken["canary"] == {"seed": 3}, "the release has none"
    assert rebuilding_pipelines(open_release(release_path(made))) == ("packing",)
    assert replayed["raw_shards"].root_digest == made["raw_shards"].root_digest
    again = Replay(replayed.folder, {}, {})
    again.held |= {**replayed.held, "raw_shards_when_made": None}
    with caplog.at_level("WARNING"):
        again.run(verification_pipeline(), "08_reporting")
    assert again["verification_report"][-1]["name"] == "raw_shards" and again["verification_metrics"]["failed"] == 0
    assert again["verification_metrics"]["not_rebuilt"] == 1
    assert "stream raw_shards of the release is not rebuilt: kedro run --env replay --pipelines packing" in caplog.text
    again.held["raw_shards_when_made"] = replayed["compact_stream"]
    with pytest.raises(ProvenanceError, match=r"checks of the rebuilt streams fail: raw_shards files: .* is missing"):
        again.run(verification_pipeline(), "08_reporting")


def test_documents_cross_shards_in_a_release_from_before_they_could_do_otherwise(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = open_release(release_path(made))
    packing = {key: value for key, value in PACKING.items() if key not in ("cross_document_boundary", "n_shards")}
    older = {**release.recipe, "parameters": {**release.recipe["parameters"], "packing": packing}}
    monkeypatch.setattr(replay_parameters, "open_release", lambda path: dataclasses.replace(release, recipe=older))
    environment = {"replay": {"release": str(release_path(made))}, **{name: {} for name in released_groups()}}
    assert with_released_parameters(environment)["packing"] == {**packing, "cross_document_boundary": True}


def test_a_title_that_is_withheld_comes_back_from_upstream(made: Build, replayed: Replay) -> None:
    manifest = [row for split in SPLITS for part in made[f"{split}_manifest"] for row in part.table().to_pylist()]
    assert "withheld" in {row["id_type"] for row in manifest}
    assert any(str(row["id"]).startswith(LONG_ID) for split in SPLITS for row in rows_of(replayed, split))


def test_any_number_of_workers_hash_seed_and_order_of_directories_give_the_same_documents(
    made: Build, replayed: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(self: Path, pattern: str) -> Iterator[Path]:
        return reversed(list(globbed(self, pattern)))

    globbed, walked = Path.glob, os.walk
    monkeypatch.setattr(Path, "glob", backwards)
    monkeypatch.setattr(os, "walk", lambda *a, **k: ((at, d, f[::-1]) for at, d, f in walked(*a, **k)))
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    own = own_parameters(made.folder.parent / "texts")
    workers = {"located_documents": 2, "unannotated_documents": 5}
    again = replay(tmp_path / "data", release_path(made), own, upto="documents", workers=workers)
    for name in (*(f"{split}_documents" for split in SPLITS), "exclusions"):
        assert again[name].root_digest == replayed[name].root_digest


def changed_upstream(tmp_path: Path, made: Build, change: Callable[[list[dict[str, Any]]], None]) -> dict[str, Any]:
    """Parameters to replay from an upstream in which something changed."""
    return {"upstreams": upstream_at(write_upstream(tmp_path / "changed", change))}


def refused(folder: Path, made: Build, **how: Any) -> str:
    with pytest.raises(ProvenanceError) as error:
        replay(folder, release_path(made), own_parameters(made.folder.parent / "texts"), **how)
    return str(error.value)


def chosen(made: Build, split: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return next(row for row in rows_of(made, split) if wanted(row))


def windows_of(stream: Artifact, name: str) -> list[list[int]]:
    assert stream.folder
    tokens = open_indexed(stream.folder / name)
    return [tokens[i].tolist() for i in range(len(tokens))]


def is_alone(row: dict[str, Any]) -> bool:
    return str(row["id"]).startswith("piece-") and row["id"] not in ("piece-12", "piece-20")


def test_a_document_that_changed_is_named_and_its_tombstone_keeps_the_place_of_all_others(
    made: Build, tmp_path: Path
) -> None:
    victims = {chosen(made, split, is_alone)["id"] for split in ("annotated", "unannotated")}

    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["id"] in victims:
                row["text"] = row["text"].replace("nobody", "somebody")

    how = changed_upstream(tmp_path, made, edit)
    moved = refused(tmp_path / "data", made, **how)
    assert "moved: " in moved and ".jsonl: expected sha256:" in moved
    assert "--params replay.allow=moved, or in parameters_replay.yml replay.allow: [moved]" in moved
    message = refused(tmp_path / "data", made, allow=["moved"], **how)
    assert "2 changed" in message and "expected hash " in message and "found hash " in message
    assert "--params replay.allow=moved+changed, or in parameters_replay.yml replay.allow: [moved, changed]" in message
    assert any(victim in message for victim in victims)
    faults = pq.read_table(tmp_path / "data/02_intermediate/document_matches/faults.parquet").to_pylist()
    assert {row["id"] for row in faults} == victims
    assert {row["reason"] for row in faults} == {"changed"}
    assert all(row["found_hash"] not in (None, row["expected_hash"]) for row in faults)
    assert all(row["found_id"] == row["id"] and row["found_row"] == row["row"] for row in faults)

    own = own_parameters(made.folder.parent / "texts")
    allowed = replay(tmp_path / "data", release_path(made), own, allow=["moved", "changed"], **how)
    for name in ("compact", "annotated"):
        before, after = (windows_of(build[f"{name}_stream"], name) for build in (made, allowed))
        differ = [i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert 0 < len(differ) < len(before) // 2
        assert all(new in (0, old) for i in differ for old, new in zip(before[i], after[i], strict=True))
    sidecars = [pq.read_table(build["annotated_stream"].folder / "sidecar.parquet") for build in (made, allowed)]
    before, after = (table.drop(["text", "token_length", "doc_id"]) for table in sidecars)
    assert before.to_pylist() == after.to_pylist()
    assert sidecars[1]["text"].to_pylist().count("") == 1
    allowed.run(verification_pipeline(), "08_reporting")
    assert allowed["verification_metrics"]["failed"] > 0


def test_a_document_that_is_gone_is_named(made: Build, tmp_path: Path) -> None:
    victim = chosen(made, "annotated", is_alone)

    def remove(rows: list[dict[str, Any]]) -> None:
        at = next(i for i, row in enumerate(rows) if row["id"] == victim["id"])
        rows[at] = {**rows[at], "text": ""}  # too short to be a document

    how = changed_upstream(tmp_path, made, remove)
    message = refused(tmp_path / "data", made, allow=["moved", "changed"], **how)
    assert "1 gone" in message and "annotated document" in message and repr(victim["id"]) in message
    assert f"pieces/{victim['shard_index']}/{victim['row']}" in message


def test_rows_that_were_removed_are_gone_and_all_others_are_found_where_they_are_now(
    made: Build, tmp_path: Path
) -> None:
    victims = [chosen(made, split, is_alone) for split in ("annotated", "unannotated")]
    ids = {row["id"] for row in victims}

    def remove(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["id"] not in ids]

    how = changed_upstream(tmp_path, made, remove)  # the last range of the second file has fewer rows
    message = refused(tmp_path / "data", made, allow=["moved", "changed"], **how)
    assert "2 gone" in message and "replay.allow=moved+changed+gone" in message
    assert re.search(r"found (id '|a document without id).* at pieces/\d+/\d+, found hash ", message)
    faults = pq.read_table(tmp_path / "data/02_intermediate/document_matches/faults.parquet").to_pylist()
    assert {row["id"] for row in faults} == ids
    assert all(row["found_id"] not in ids and row["found_row"] == row["row"] for row in faults)
    own = own_parameters(made.folder.parent / "texts")
    again = replay(tmp_path / "data", release_path(made), own, upto="documents", allow=["moved", "gone"], **how)
    counts = again["replay_metrics"]
    assert counts["gone"] == len(faults) and counts["by_id"] > 10 and counts["changed"] == 0
    reasons = {entry[3] for part in again["exclusions"] for entry in part.value["addresses"]}
    assert reasons == {"gone upstream since the release"}


def test_rows_that_were_added_anywhere_change_nothing(made: Build, tmp_path: Path) -> None:
    def add(rows: list[dict[str, Any]]) -> None:
        new = [{"id": f"new-{i}", "text": f"Nobody had written text {i} when the release was made."} for i in range(9)]
        rows[:] = [*new[:6], *rows, *new[6:]]

    how = changed_upstream(tmp_path, made, add)
    own = own_parameters(made.folder.parent / "texts")
    again = replay(tmp_path / "data", release_path(made), own, upto="documents", allow=["moved"], **how)
    assert [rows_of(again, split) for split in SPLITS] == [rows_of(made, split) for split in SPLITS]
    plan = again["shard_plan"]["shards"]
    for file, rows in enumerate((80, 83)):
        ends = [shard["first_row"] + shard["rows"] for shard in plan if shard["shard_index"] == file]
        assert max(ends) == rows == sum(shard["rows"] for shard in plan if shard["shard_index"] == file)


def test_another_document_at_an_address_is_a_changed_one_only_where_ids_cannot_tell() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(["a", "a", None, "a", "a"], pa.large_string()),
            "doc_part": pa.array([None, None, None, None, 3], pa.int32()),
            "found_part": pa.array([1, 1, 1, 1, 1], pa.int32()),
        }
    )
    instead = pa.table({"id": pa.array(["b", "a", "b", None, "b"], pa.large_string())})
    assert of_another_id(batch, instead).tolist() == [True, False, False, False, False]


def test_kinds_that_are_allowed_can_be_one_string() -> None:
    given: dict[str, Any] = {"release": "", "upstreams": None, "allow_roots": [], "memory": 1}
    given["verification"] = {"full": True, "documents": 1, "seed": 1}
    for text, kinds in {
        "moved": ("moved",),
        "moved+changed": ("moved", "changed"),
        "gone | moved": ("gone", "moved"),
    }.items():
        assert ReplayParameters.model_validate({**given, "allow": text}).allow == kinds
    with pytest.raises(ValidationError, match="'moved', 'gone', 'changed' or 'ambiguous'"):
        ReplayParameters.model_validate({**given, "allow": "moved+lost"})


def test_texts_that_the_release_holds_replace_what_upstream_has_lost(made: Build, tmp_path: Path) -> None:
    def lose(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["id"] is None:
                row["text"] = "Nobody knows any more what stood in this row of the file."

    how = changed_upstream(tmp_path, made, lose)
    own = own_parameters(made.folder.parent / "texts")
    again = replay(tmp_path / "data", release_path(made), own, allow=["moved"], **how)
    assert again["replay_metrics"]["rescued"] > 5
    assert stream_files(again) == stream_files(made)
    release = tmp_path / "release"
    shutil.copytree(release_path(made), release)
    path = min((release / "text_rescue").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ProvenanceError, match=rf"{path} is not the file that was listed"):
        replay(tmp_path / "other", release, own, allow=["moved"], **how)


def test_rows_that_moved_in_their_file_are_found_by_id_or_text(made: Build, tmp_path: Path) -> None:
    def turn(rows: list[dict[str, Any]]) -> None:
        for at in range(0, len(rows) - 1, 2):  # within a shard
            rows[at : at + 2] = rows[at + 1], rows[at]

    how = changed_upstream(tmp_path, made, turn)
    own = own_parameters(made.folder.parent / "texts")
    again = replay(tmp_path / "data", release_path(made), own, allow=["moved"], **how)
    assert stream_files(again) == stream_files(made)
    assert again["replay_metrics"]["by_id"] > 10 and again["replay_metrics"]["by_text"] > 2


def test_a_mirror_gives_the_same_streams(made: Build, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for path in sorted((made.folder.parent / "texts").iterdir(), reverse=True):
        shutil.copy(path, mirror)
    own = own_parameters(tmp_path / "nowhere")
    again = replay(
        tmp_path / "data", release_path(made), own, upto="documents", upstreams=upstream_at(mirror), memory=1 << 26
    )
    assert [rows_of(again, split) for split in SPLITS] == [rows_of(made, split) for split in SPLITS]


def test_a_file_that_is_gone_is_named_and_its_rows_are_looked_for_elsewhere(made: Build, tmp_path: Path) -> None:
    folder = write_upstream(tmp_path / "changed")
    (folder / "texts_1.jsonl").unlink()
    shutil.copy(made.folder.parent / "texts/texts_1.jsonl", folder / "texts_0b.jsonl")
    how = {"upstreams": upstream_at(folder)}
    assert "texts_1.jsonl: expected sha256:" in (message := refused(tmp_path / "data", made, **how))
    assert "which is gone" in message
    with (folder / "texts_0b.jsonl").open("a") as other:
        other.write('{"id": "one-more", "text": "A file of another digest is no renamed one.", "topic": "t"}\n')
    assert " gone" in refused(tmp_path / "data", made, allow=["moved"], **how)  # the plan does not have the new file


def test_a_file_of_another_name_is_taken_by_its_digest_where_files_may_move(made: Build, tmp_path: Path) -> None:
    folder = write_upstream(tmp_path / "changed")
    (folder / "texts_1.jsonl").rename(folder / "texts_0b.jsonl")
    own, how = own_parameters(made.folder.parent / "texts"), {"upstreams": upstream_at(folder)}
    again = replay(tmp_path / "data", release_path(made), own, upto="documents", allow=["moved"], **how)
    assert [rows_of(again, split) for split in SPLITS] == [rows_of(made, split) for split in SPLITS]
    changes = again["upstream_changes"]
    names = {"path": "texts_1.jsonl", "expected": "texts_1.jsonl", "found": "texts_0b.jsonl"}
    assert changes == [{"source": "pieces", "what": "renamed", **names}]
    assert {shard["path"] for shard in again["shard_plan"]["shards"]} == {"texts_0.jsonl", "texts_0b.jsonl"}


def test_a_source_without_any_file_gives_what_the_release_holds_and_the_rest_is_gone(
    made: Build, tmp_path: Path
) -> None:
    (tmp_path / "changed").mkdir()
    own, how = own_parameters(made.folder.parent / "texts"), {"upstreams": upstream_at(tmp_path / "changed")}
    with pytest.raises(UpstreamError, match=r"no file in .* matches"):
        replay(tmp_path / "data", release_path(made), own, **how)
    assert re.search(r"\d+ gone\. First: ", refused(tmp_path / "data", made, allow=["moved"], **how))
    again = replay(tmp_path / "data", release_path(made), own, upto="documents", allow=["moved", "gone"], **how)
    counts = again["replay_metrics"]
    assert counts["rescued"] > 5 and counts["gone"] == counts["rows"] - counts["rescued"]


def test_another_revision_of_the_same_upstream_has_moved(made: Build) -> None:
    release = open_release(release_path(made))
    pin = {"kind": "hub", "dataset": "people/pieces", "subset": None, "split": None, "pattern": "*.jsonl"}
    then, now = ({**pin, "revision": digit * 40} for digit in "ab")
    files = {"pieces": made["upstream_files"]["pieces"]}
    sources = release.upstream["sources"]
    sources = {**sources, "pieces": {**sources["pieces"], "upstream": then}}
    upstream = {**release.upstream, "sources": sources}
    described = dataclasses.replace(release, upstream=upstream)
    _, moved = released_plan(described, {"pieces": HubUpstream.model_validate(now)}, files, follow_renamed=False)
    (change,) = moved
    assert (change["what"], change["expected"], change["found"]) == ("revision", "a" * 40, "b" * 40)
    with pytest.raises(ProvenanceError, match=r"moved: 1 .* source 'pieces', revision: expected a+, found b+"):
        require_unmoved(moved, (), "upstream_changes")


def test_a_release_that_is_not_whole_is_refused(made: Build, tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(release_path(made), release)
    part = release / "corpus-manifest/annotated/part_00001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(ProvenanceError, match=r"annotated/part_00001.parquet has SHA-256 .*, expected "):
        replay(tmp_path / "data", release, own_parameters(made.folder.parent / "texts"))


def test_a_mixture_with_documents_that_were_taken_down_is_replayed_without_their_texts(
    made: Build, tmp_path: Path
) -> None:
    ids = {row["id"] for split in SPLITS for row in rows_of(made, split) if is_alone(row)}
    victims = sorted(ids)[:20]
    listed = tmp_path / "list.jsonl"
    sha256 = write_list([ExcludedId(victim, "string", "asked for") for victim in victims], listed)
    texts = made.folder.parent / "texts"
    mixture = {
        "weights": {"pieces": 1.0},
        "target_total_tokens": 4_500,
        "chars_per_token": 4.0,
        "allow_repeat": {"pieces": 2},
        "tolerance": 0.1,
        "documents_per_part": 45,  # of several shards
    }
    mixed = {**SMALL, "ingestion__mixture": mixture, "subsampling__exclude": {"path": str(listed), "sha256": sha256}}
    without = build(tmp_path / "without", texts, **mixed)
    release_of(without)
    addresses = [(row["shard_index"], row["row"]) for split in SPLITS for row in rows_of(without, split)]
    assert len(set(addresses)) < len(addresses), "the mixture repeats documents"

    def remove(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["id"] in victims:
                row["text"] = ""

    how = changed_upstream(tmp_path, made, remove)
    again = replay(tmp_path / "data", release_path(without), own_parameters(texts), allow=["moved"], **how)
    assert again["replay_metrics"]["excluded"] > 5
    assert stream_files(again) == stream_files(without)
    assert "compact_stream/loss_mask.npy" in stream_files(again)


def test_a_path_without_a_manifest_stops_before_anything_is_read(made: Build, tmp_path: Path) -> None:
    given: dict[str, Any] = {"release": str(tmp_path), "upstreams": None, "allow": [], "allow_roots": [], "memory": 1}
    given["verification"] = {"full": True, "documents": 1, "seed": 1}
    own = own_parameters(made.folder.parent / "texts")
    with pytest.raises(ProvenanceError, match=rf"{tmp_path} is neither a release .* nor a manifest"):
        find_upstreams(ReplayParameters.model_validate(given), own["ingestion"])


def test_parameters_that_would_give_other_rows_are_refused(made: Build, tmp_path: Path) -> None:
    with pytest.raises(ProvenanceError, match=r"ingestion.dedup.exact is True, the release .* with False"):
        own = own_parameters(made.folder.parent / "texts")
        given: dict[str, Any] = {
            "release": str(release_path(made)),
            "upstreams": None,
            "allow": [],
            "allow_roots": [],
            "memory": 1,
        }
        checked = {"full": True, "documents": 1, "seed": 1}
        find_upstreams(ReplayParameters.model_validate({**given, "verification": checked}), own["ingestion"])


# The published format: no addresses, no hashes, and texts of documents without id.


def publish(made: Build, folder: Path, *, rescue: bool = True) -> Path:
    """Write the manifest of a build in the published format."""
    for split in ("annotated", "unannotated"):
        (folder / split).mkdir(parents=True)
        (folder / "text_rescue" / split).mkdir(parents=True)
        number, rescued = 0, []
        for part in made[f"{split}_documents"]:
            table = part.table(["id", "text", "safety_score", "is_bad", "has_annotation"])
            for row in table.select(["id", "text"]).to_pylist():
                rescued += [] if row["id"] is not None else [{"global_row": number, "text": row["text"]}]
                number += 1
            ids = table["id"]
            if ids.null_count == len(ids) or part.index == 2:  # a file in which no row has one, of Arrow's null type
                rescued = [one for one in rescued if one["global_row"] < number - part.rows]
                texts = enumerate(table["text"].to_pylist(), start=number - part.rows)
                rescued += [{"global_row": row, "text": text} for row, text in texts]
                table = table.set_column(0, "id", pa.nulls(part.rows))
            pq.write_table(table.drop(["text"]), folder / split / f"{part.name}.parquet")
        if rescue:
            for file, own in enumerate((rescued[::2], rescued[1::2])):
                pq.write_table(pa.Table.from_pylist(own), folder / "text_rescue" / split / f"{file}.parquet")
    return folder


def own_of(made: Build) -> dict[str, Any]:
    return {name.removeprefix("params:"): one for name, one in made.held.items() if name.startswith("params:")}


def given_tokenizer(made: Build) -> dict[str, Any]:
    """The parameters of a build, with its tokenizer as a given file: a published manifest has no recipe."""
    own = own_of(made)
    path = made["tokenizer"].path("tokenizer.json")
    given = {"kind": "file", "path": str(path), "sha256": made["tokenizer"].statistics["sha256"]}
    plain = {**own["tokenization"].model_dump(mode="json"), "tokenizer": given}
    return {**own, "tokenization": TokenizationParameters.model_validate(plain)}


def test_a_published_manifest_gives_the_streams_of_its_documents(made: Build, tmp_path: Path) -> None:
    manifest = publish(made, tmp_path / "manifest")
    again = replay(tmp_path / "data", manifest, given_tokenizer(made))
    assert text_files(again) == text_files(made)
    for split in ("annotated", "unannotated"):
        here, there = ([(row["text"], row["is_bad"]) for row in rows_of(build, split)] for build in (again, made))
        assert here == there
    counts = again["replay_metrics"]
    assert counts["rows"] == counts["by_id"] + counts["rescued"]
    assert counts["rescued"] > 10 and counts["by_split"]["annotated"]["by_id"] > 5
    again.run(verification_pipeline(), "08_reporting")
    assert again["verification_metrics"]["checks"] == 0


def contradicting(path: Path, **values: Any) -> None:
    """Give the first row of a file of a manifest other values."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0] |= values
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


@pytest.mark.parametrize(
    ("split", "values", "rule"),
    [
        ("annotated", {"has_annotation": False}, "has_annotation is False in the split annotated"),
        ("unannotated", {"has_annotation": True}, "has_annotation is True in the split unannotated"),
        ("annotated", {"safety_score": 0, "is_bad": True}, "is_bad is not whether safety_score is at least"),
        ("unannotated", {"safety_score": 5, "is_bad": False}, "is_bad is not whether safety_score is at least"),
        ("unannotated", {"safety_score": 6, "is_bad": True}, "safety_score is none of 0 to 5"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused_before_anything_is_read_unless_it_is_allowed(
    made: Build, tmp_path: Path, split: str, values: dict[str, Any], rule: str
) -> None:
    manifest = publish(made, tmp_path / "manifest")
    contradicting(sorted((manifest / split).glob("*.parquet"))[0], **values)
    own, folder = parameters_of(made.folder.parent / "texts", **SMALL), tmp_path / "data"
    with pytest.raises(ProvenanceError) as caught:
        replay(folder, manifest, own, upto="documents")
    message = str(caught.value)
    assert message.startswith("contradictory: ") and f"1 rows: {rule}" in message and f"{split} document 0" in message
    assert "--params replay.allow=contradictory" in message
    listed = folder / "02_intermediate/manifest_contradictions/contradictions.parquet"
    (row,) = pq.read_table(listed).to_pylist()
    assert str(listed) in message and row["rule"].startswith(rule) and row["number"] == 0 and row["split"] == split
    assert not (folder / "02_intermediate/upstream_documents").exists(), "nothing was read"
    allowed = replay(folder, manifest, own, upto="documents", allow=["contradictory"])
    assert allowed["replay_metrics"]["contradictory"] == 1
    assert allowed["replay_report"]["contradictions"]["first"][0]["rule"].startswith(rule)


def test_an_address_that_two_rows_of_a_release_have_is_a_contradiction(made: Build, tmp_path: Path) -> None:
    release = Path(shutil.copytree(release_path(made), tmp_path / "release", copy_function=shutil.copy))
    parts = [release / f"corpus-manifest/{split}/part_00001.parquet" for split in ("annotated", "unannotated")]
    first = pq.read_table(parts[0]).to_pylist()[0]
    contradicting(parts[1], **{name: first[name] for name in ("source", "shard_index", "row")})
    boundaries = json.loads((release / "file_boundaries.json").read_text())
    boundaries["unannotated"]["parts"][1]["sha256"] = hashlib.sha256(parts[1].read_bytes()).hexdigest()
    (release / "file_boundaries.json").write_text(json.dumps(boundaries))
    with pytest.raises(ProvenanceError, match=r"contradictory: .*1 rows: its address is that of an earlier row"):
        replay(tmp_path / "data", release, own_parameters(made.folder.parent / "texts"), upto="documents")


def test_a_manifest_may_have_ids_of_any_kind_and_nothing_that_is_no_manifest(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=7), None]
    rows = {"safety_score": [0, 3], "is_bad": [False, True], "has_annotation": [False, True]}
    for split, column in (("annotated", pa.array(ids, pa.uuid())), ("unannotated", pa.array([12, 13]))):
        (tmp_path / split).mkdir()
        pq.write_table(pa.table({"id": column, **rows}), tmp_path / split / "a.parquet")
    (part,) = manifest_parts(tmp_path)
    read = {split: batch.column("id").to_pylist() for split, _, batch in read_released_manifest(part.value)}
    assert read == {"annotated": [str(ids[0]), None], "unannotated": ["12", "13"]}
    pq.write_table(pa.table({"id": column, **rows, "is_bad": [None, True]}), tmp_path / "annotated/a.parquet")
    (part,) = manifest_parts(tmp_path)
    with pytest.raises(ProvenanceError, match=r"annotated/a.parquet row 0: is_bad is null"):
        list(read_released_manifest(part.value))
    boundaries = {"annotated": {"parts": [{"name": "a.parquet", "first_row": 0, "rows": 3}]}}
    (tmp_path / "file_boundaries.json").write_text(json.dumps(boundaries))
    with pytest.raises(ProvenanceError, match=r"annotated has \('a', 0, 3\) .*, found \('a', 0, 2\)"):
        manifest_parts(tmp_path)
    with pytest.raises(ProvenanceError, match=r"is neither a release .* nor a manifest"):
        manifest_parts(tmp_path / "annotated")


def test_an_id_with_two_texts_cannot_be_told_apart_without_a_hash(made: Build, tmp_path: Path) -> None:
    def differ(rows: list[dict[str, Any]]) -> None:
        last = max(at for at, row in enumerate(rows) if row["id"] == "piece-12")
        rows[last] = {**rows[last], "text": "Another text that has the id of one that is repeated."}

    how = changed_upstream(tmp_path, made, differ)
    manifest = publish(made, tmp_path / "manifest")
    with pytest.raises(ProvenanceError, match=r"\d+ ambiguous\. First: .*'piece-12'"):
        replay(tmp_path / "data", manifest, given_tokenizer(made), **how)
    own = own_parameters(made.folder.parent / "texts")  # a release has hashes: the right one is known
    again = replay(tmp_path / "other", release_path(made), own, upto="documents", allow=["moved"], **how)
    assert [rows_of(again, split) for split in SPLITS] == [rows_of(made, split) for split in SPLITS]


def test_rows_that_only_a_rescue_could_give_are_gone_without_one(made: Build, tmp_path: Path) -> None:
    manifest = publish(made, tmp_path / "manifest", rescue=False)
    with pytest.raises(ProvenanceError, match=r"\d+ gone\. First: (un)?annotated document \d+ is gone\. "):
        replay(tmp_path / "data", manifest, given_tokenizer(made), upto="documents")
    allowed = replay(tmp_path / "data", manifest, given_tokenizer(made), allow=["gone"])
    before, after = (windows_of(build["annotated_stream"], "annotated") for build in (made, allowed))
    assert all(new in (old, [0] * len(old)) for old, new in zip(before, after, strict=True))
    gone = [row for row in rows_of(allowed, "unannotated") if row["source"] == "gone"]
    assert len(gone) == allowed["replay_metrics"]["by_split"]["unannotated"]["gone"] and {
        row["text"] for row in gone
    } == {""}


_KILLED = """
import os, signal, sys
from pathlib import Path
from everytoken.provenance.replay import restore
from tests.provenance.replay import test_replay as t

done, documents = [], restore._documents

def killed_at_the_fifth_batch(*arguments):
    done.append(1)
    if len(done) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return documents(*arguments)

restore._documents = killed_at_the_fifth_batch
folder, release, texts = map(Path, sys.argv[1:])
t.replay(folder, release, t.own_parameters(texts), upto="documents")
"""


@pytest.mark.sensitive
def test_a_replay_that_was_killed_goes_on_to_the_same_documents(made: Build, replayed: Replay, tmp_path: Path) -> None:
    texts = made.folder.parent / "texts"
    arguments = [str(tmp_path / "data"), str(release_path(made)), str(texts)]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "data").rglob("*_documents/.making/part_*.json")), "some parts are made"
    again = replay(tmp_path / "data", release_path(made), own_parameters(texts), upto="documents")
    for split in SPLITS:
        assert again[f"{split}_documents"].root_digest == replayed[f"{split}_documents"].root_digest


# Kedro: the job that an environment names, and the parameters of the release.


def session_default(env: str | None, given: dict[str, Any] | None = None) -> tuple[set[str | None], dict[str, Any]]:
    from kedro.framework.project import pipelines

    with KedroSession.create(project_path=ROOT, env=env, runtime_params=given) as session:
        context = session.load_context()
        return {node.namespace for node in pipelines["__default__"].nodes}, context.params


def test_the_environment_replay_runs_the_replay_with_the_parameters_of_the_release(made: Build) -> None:
    bootstrap_project(ROOT)
    given = {"replay": {"release": str(release_path(made))}, "tokenization": {"certificate": {"cases": 7}}}
    names, parameters = session_default("replay", given)
    assert names == {"replay", "tokenization", "provenance", "packing", "verification"}
    assert parameters["tokenization"].certificate.cases == 7
    assert parameters["tokenization"].seq_length == made["params:tokenization"].seq_length
    assert parameters["tokenization"].tokenizer.kind == "file"
    assert set(parameters["ingestion"].sources) == {"pieces"}
    assert parameters["packing"].dtype == "uint16"
    _, shown, _ = load_data(ROOT, env="replay", extra_params=given)
    assert {node.namespace for node in shown["__default__"].nodes} == names, "kedro-viz, which runs no hooks"
    names, _ = session_default("replay", {"replay": {"release": "not/there"}})  # the graph can be looked at
    assert "replay" in names and "packing" not in names
    names, parameters = session_default("test")
    assert {"ingestion", "training"} <= names and not {"replay", "verification", "release"} & names
    assert "pieces" not in parameters["ingestion"].sources


@pytest.mark.parametrize("reader", ["verification", "release"])
@pytest.mark.parametrize(
    ("maker", "stream"), [("canary", "canary_stream"), ("packing", "raw_shards")], ids=["canary", "packing"]
)
def test_what_reads_a_stream_on_request_waits_for_it_in_a_run_that_makes_it(
    maker: str, stream: str, reader: str
) -> None:
    from kedro.framework.project import pipelines

    bootstrap_project(ROOT)
    alone = pipelines[reader]
    assert f"{stream}_when_made" in alone.inputs(), "of a run without the maker, what was made before is taken"
    together = pipelines[maker] + alone
    readers = {node.name for node in alone.nodes if f"{stream}_when_made" in node.inputs}
    waiting = {node.name for node in together.from_inputs(*pipelines[maker].inputs()).nodes}
    made_before = together.to_nodes(*readers).to_outputs(stream).nodes
    assert readers and readers <= waiting
    assert [name for node in made_before for name in node.outputs][-1] == stream


def test_an_environment_without_its_release_can_be_looked_at_and_not_run() -> None:
    bootstrap_project(ROOT)
    given = {"replay": {"release": "not/there"}}
    with KedroSession.create(project_path=ROOT, env="replay", runtime_params=given) as session:
        hook, context = ReplayHook(), session.load_context()
        assert "ingestion" in context.params
        hook.after_context_created(context)
        with pytest.raises(ProvenanceError, match=r"replay.release is .*not/there, which is no folder: .*PATH"):
            hook.before_pipeline_run()


def test_a_folder_of_replayed_data_takes_no_other_release(made: Build, tmp_path: Path) -> None:
    release, copied, other = release_path(made), tmp_path / "copied", tmp_path / "other"
    for folder in (copied, other):
        shutil.copytree(release, folder)
    (other / "SHA256SUMS").write_text("".join((other / "SHA256SUMS").read_text().splitlines(keepends=True)[1:]))
    data = tmp_path / "data/replay"
    for folder in (release, release, copied):
        keep_to_release(data, open_release(folder))
    with pytest.raises(ProvenanceError, match=rf"{data} is replayed from the release \w+ \(at {release} then\)"):
        keep_to_release(data, open_release(other))
    (data / "replayed_release.json").write_text("")
    with pytest.raises(ProvenanceError, match="does not tell which release"):
        keep_to_release(data, open_release(release))


def test_kedro_run_replays_in_a_project_that_has_only_the_release(made: Build, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "pyproject.toml", project)
    for name in ("conf", "src"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
    with (project / "conf/replay/globals.yml").open("a") as settings:
        settings.write("engine: {kind: inline}\n")  # to start workers would take most of the time
    root = f"ingestion.sources.pieces.upstream.root={made.folder.parent / 'texts'}"
    given = (
        f"replay.release={release_path(made)},tokenization.engine=tokenizers,tokenization.certificate.cases=1,{root}"
    )
    arguments = ["run", "--env", "replay", "--params", given]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "", "DO_NOT_TRACK": "1"}
    done = run_kedro(arguments, folder=project, environment=environment, timeout=600)
    assert done.returncode == 0, done.stdout
    streams = {
        name: ArtifactStore(project / "data/replay/05_model_input" / name).load().root_digest
        for name in ("compact_stream", "annotated_stream", "raw_shards")
    }
    assert streams == {name: made[name].root_digest for name in streams}
    compared = json.loads((project / "data/replay/08_reporting/verification_metrics.json").read_text())
    assert compared["failed"] == compared["not_rebuilt"] == 0
    with sqlite3.connect(project / "mlflow.db") as runs:
        tags = dict(runs.execute("SELECT key, value FROM tags"))
    assert tags["mlflow.runName"].startswith("replay · replay") and tags["job"] == "replay"
    assert tags["replay.release.digest"] == open_release(release_path(made)).digest

    before = {path: path.stat().st_mtime_ns for path in (project / "data").rglob("*")}
    arguments = ["run", "--env", "replay", "--pipelines", "tokenization", "--params", "replay.release=not/there"]
    done = run_kedro(arguments, folder=project, environment=environment, timeout=600)
    assert done.returncode == 1 and "not/there, which is no folder: it is no release" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (project / "data").rglob("*")} == before
