"""A whole run of a published recipe against a hub on loopback: what a user does, but for the size."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd

from everytoken.seeds import python_random
from tests.corpus.upstreams.hub_server import Fault, Hub, serve_hub, sizes_of_partials
from tests.shards.children import wait_until
from tests.test_run import Project, made, read_addresses

pytestmark = pytest.mark.sensitive

FILES, ROWS = 6, 40
TOKEN = "hf_a_secret_that_must_not_be_written_anywhere"
RECIPE = ["run", "--env", "spp", "--pipelines", "ingestion", "--params"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    draw = python_random(3, "hub")
    with serve_hub() as hub:
        hub.dataset, hub.token = "allenai/dolma3_mix-6T", TOKEN
        for number in range(FILES):
            rows = [
                {"id": f"{number}-{row}", "text": "".join(draw.choices("abcdefgh ", k=9_000))} for row in range(ROWS)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            hub.files[f"data/common_crawl-0019/shard_{number:08d}.jsonl.zst"] = zstd.compress(lines)
        hub.files["data/common_crawl-0019/notes.txt"] = b"not a shard"
        yield hub


def ingest(project: Project, hub: Hub, expect_shards: int = FILES, expect: int = 0, **environment: str) -> str:
    parameters = f"ingestion.plan.n_shards=5,ingestion.plan.expect_shards={expect_shards},expect.fatal=null"
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, **environment}
    return project.kedro(*RECIPE, parameters, expect=expect, **environment)


def sizes_of(hub: Hub) -> dict[str, int]:
    return {path: len(content) for path, content in hub.files.items() if path.endswith(".zst")}


def undisturbed_run(hub: Hub, folder: Path) -> Project:
    undisturbed = Project(folder)
    ingest(undisturbed, hub)
    assert len(read_addresses(undisturbed)) == 5 * ROWS
    fetched = {request.path: request.sent for request in hub.asked("storage")}
    assert len(fetched) == 5 and fetched.items() <= sizes_of(hub).items(), "five of six shards, each once"
    assert not list((undisturbed.folder / "data/01_raw/hub").rglob("*.zst")), "keep_fetched is false in this recipe"
    assert made(ingest(undisturbed, hub)) == []
    assert len(hub.asked("storage")) == 5, "a finished run fetches nothing"
    return undisturbed


@pytest.mark.slow
def test_the_recipe_is_read_from_the_hub_and_a_finished_run_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    undisturbed_run(hub, tmp_path / "project")


@pytest.mark.slow  # of one file: tests/corpus/upstreams/test_hub.py
def test_a_killed_run_fetches_only_the_rest(hub: Hub, tmp_path: Path) -> None:
    undisturbed, sizes = undisturbed_run(hub, tmp_path / "undisturbed"), sizes_of(hub)
    hub.requests.clear()
    hub.faults["storage"] = [Fault(), Fault(), *[Fault(cut_after=150_000, stalls=True)] * 2]
    project = Project(tmp_path / "killed")
    parameters = f"ingestion.plan.n_shards=5,ingestion.plan.expect_shards={FILES},expect.fatal=null"
    process = project.start(*RECIPE, parameters, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    making = project.folder / "data/spp/02_intermediate/upstream_documents/.making"

    def two_are_made_and_two_are_broken() -> bool:
        assert process.poll() is None
        broken = sizes_of_partials(project.folder / "data/01_raw")
        return broken == [150_000] * 2 and len(list(making.glob("part_*.json"))) == 2

    wait_until(two_are_made_and_two_are_broken, "the downloads did not stall")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    hub.released.set()
    before = {request.path: request.sent for request in hub.asked("storage")}
    hub.requests.clear()
    assert "upstream_documents 3" in made(ingest(project, hub))
    after = {request.path: (request.start, request.sent) for request in hub.asked("storage")}
    assert len(after) == 3 and hub.asked("info", "tree") == [], "the list of files is there"
    whole = {path for path, sent in before.items() if sent == sizes[path]}
    assert not whole & set(after), "what was fetched is not fetched again"
    for path in set(before) - whole:
        start, sent = after[path]
        assert start > 0 and start + sent == sizes[path], "a broken download goes on where it was"
    for name in ("upstream_documents", "documents", "dropped_documents"):
        ledgers = [p.folder / f"data/spp/02_intermediate/{name}/ledger.json" for p in (undisturbed, project)]
        assert ledgers[0].read_bytes() == ledgers[1].read_bytes()


@pytest.mark.slow
def test_another_number_of_shards_a_lost_shard_and_a_wrong_token_are_named(hub: Hub, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    output = ingest(project, hub, expect_shards=63_911, expect=1)
    assert "the upstreams have 6 shards, expect_shards pins 63,911" in output
    assert hub.asked("resolve", "storage") == []
    (first, *_) = sorted(path for path in hub.files if path.endswith(".zst"))
    hub.gone.update(path for path in hub.files if path != first)
    output = ingest(project, hub, expect=1)
    assert "4 of 5 parts failed, the other 1 are done and kept" in output
    assert "shard_00000003.jsonl.zst: the file at 689a3ea2d8217e64d73a5058913fa43ad15e81aa of dataset" in output
    hub.gone.clear()
    assert "HF_TOKEN" in ingest(project, hub, expect=1, HF_TOKEN="hf_wrong")
    ingest(project, hub)
    for path in project.folder.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), f"{path} holds the token"
