"""Parts that were read from several files: release, replay, take-down, diff and questions about documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from everytoken.address import Address
from everytoken.corpus.exclusion import ExcludedAddress, write_list
from everytoken.pipelines.verification.pipeline import create_pipeline as verification_pipeline
from everytoken.provenance.lookup import read_documents_at
from everytoken.provenance.releases.release import open_release
from tests.provenance.builds import Build, build, release_of, write_texts
from tests.provenance.replay.test_replay import SPLITS, own_parameters, replay, rows_of, stream_files, upstream_at
from tests.provenance.test_diff import RELEASE, SAME, address, command, rows

PER_FILE = 4
TOGETHER = {
    "ingestion__sources__pieces__rows_per_shard": None,
    "ingestion__sources__pieces__files_per_shard": 6,
    "ingestion__plan": {"seed": 42, "offset": 0, "n_shards": 6, "expect_shards": 7},
    "subsampling__held_out_share": 0.1,
}


def write_small_files(folder: Path) -> Path:
    """Write 40 files of four documents."""
    write_texts(folder.with_name("whole"))
    lines = [line for path in sorted(folder.with_name("whole").iterdir()) for line in path.read_text().splitlines()]
    folder.mkdir()
    for first in range(0, len(lines), PER_FILE):
        text = "".join(f"{line}\n" for line in lines[first : first + PER_FILE])
        (folder / f"pieces_{first:03d}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("packed")
    made = build(folder / "data", write_small_files(folder / "texts"), **TOGETHER)
    release_of(made)
    assert len(made["upstream_documents"]) == 6 and len(made["shard_plan"]["shards"]) in (34, 36)
    return made


def test_a_replay_gives_the_bytes_of_every_stream_and_verifies(made: Build, tmp_path: Path) -> None:
    again = replay(tmp_path / "data", made.folder / RELEASE, own_parameters(made.folder.parent / "texts"))
    assert stream_files(again) == stream_files(made)
    assert again["upstream_documents"].root_digest == made["upstream_documents"].root_digest
    counts = again["replay_metrics"]
    assert counts["rows"] == counts["at_address"] == sum(made[f"{split}_documents"].rows for split in SPLITS)
    again.run(verification_pipeline(), "08_reporting")
    assert again["verification_metrics"]["checks"] > 10
    assert open_release(made.folder / RELEASE).upstream["plan"] == made["shard_plan"]


@pytest.mark.slow
def test_files_of_a_part_may_be_gone_or_have_another_name(made: Build, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(made.folder.parent / "texts", folder)
    planned = [shard["path"] for shard in made["shard_plan"]["shards"]]
    (folder / planned[7]).rename(folder / "another_name.jsonl")
    (folder / planned[8]).unlink()
    own = own_parameters(made.folder.parent / "texts")
    how = {"upstreams": upstream_at(folder), "allow": ["moved", "gone"], "upto": "documents"}
    again = replay(tmp_path / "data", made.folder / RELEASE, own, **how)
    (lost,) = (
        {shard["path"] for shard in again["shard_plan"]["shards"]}
        ^ set(planned)
        ^ {planned[7]}
        ^ {"another_name.jsonl"}
    )
    assert lost == planned[8]
    gone = {(shard["source"], shard["shard_index"]) for shard in made["shard_plan"]["shards"] if shard["path"] == lost}
    for split in SPLITS:
        released = [row for row in rows_of(made, split) if (row["source"], row["shard_index"]) not in gone]
        found = [row for row in rows_of(again, split) if (row["source"], row["shard_index"]) not in gone]
        assert found == released, split


def test_a_document_is_read_again_at_its_address(made: Build) -> None:
    rows = rows_of(made, "unannotated")
    ingestion, files = made["params:ingestion"], made["upstream_files"]
    read = read_documents_at(ingestion.active_sources, files, [Address(*address(row)) for row in rows])
    assert {place: document.text for place, document in read.items()} == {
        Address(*address(row)): row["text"] for row in rows
    }


@pytest.mark.slow
def test_a_take_down_leaves_the_documents_of_the_same_part(made: Build, tmp_path: Path) -> None:
    down = [ExcludedAddress(*address(rows_of(made, split)[3]), "asked for") for split in SPLITS]
    listed = {"path": str(tmp_path / "list.jsonl"), "sha256": write_list(down, tmp_path / "list.jsonl")}
    texts = made.folder.parent / "texts"
    other = build(tmp_path / "data", texts, **TOGETHER, subsampling__exclude=listed)
    release_of(other)
    again = replay(tmp_path / "again", other.folder / RELEASE, own_parameters(texts))
    assert stream_files(again) == stream_files(other)
    result = command(other.folder, again.folder)
    assert SAME in result.output
    differing = command(made.folder, other.folder).output
    assert "asked for" in differing


def test_the_plan_names_the_part_of_each_file(made: Build) -> None:
    parts = made["upstream_documents"].statistics
    order = [shard["shard_index"] for shard in made["shard_plan"]["shards"]]
    assert [file["shard_index"] for part in parts for file in part["files"]] == order
    assert json.loads((made.folder / "01_raw/shard_plan.json").read_text()) == made["shard_plan"]
    assert rows(made.folder, "upstream_documents")
