"""The function of an artifact maps over ranges in the engine of its store, and no engine changes a byte."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everytoken.shards import ArtifactStore, Inline, RangeFailed, RangeMap, WorkerProcesses, in_threads, plan_artifact
from everytoken.shards.engines import POOL_BYTES
from tests.shards.children import Nursery, nursery, save, wait_until, wait_until_empty
from tests.shards.folders import content
from tests.shards.functions import Tenth, build_in_ranges

WORKERS = [WorkerProcesses(1), WorkerProcesses(2), WorkerProcesses(5)]


@pytest.fixture(scope="module")
def births() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


def place(tenth: Tenth) -> tuple[int, int]:
    return tenth.number, os.getpid()


def test_results_come_in_the_order_of_the_ranges() -> None:
    ranges = [Tenth(number) for number in (4, 1, 3, 0, 2)]
    for ranges_in in (RangeMap(), *map(RangeMap, WORKERS)):
        assert [number for number, _ in ranges_in(place, ranges)] == [4, 1, 3, 0, 2]
        assert list(ranges_in(place, [])) == []


def test_results_of_threads_come_in_order() -> None:
    assert list(in_threads(lambda number: number * number, range(50))) == [number * number for number in range(50)]


def test_ranges_run_in_workers_unless_they_are_small() -> None:
    ranges_in = RangeMap(WorkerProcesses(2))
    assert ranges_in.workers == 2
    assert os.getpid() not in {worker for _, worker in ranges_in.unless_small(POOL_BYTES)(place, [Tenth(0), Tenth(1)])}
    small = ranges_in.unless_small(POOL_BYTES - 1)
    assert small.workers == 1
    assert {worker for _, worker in small(place, [Tenth(0), Tenth(1)])} == {os.getpid()}


@pytest.mark.parametrize("engine", WORKERS)
def test_an_artifact_has_the_same_bytes_for_any_number_of_workers(tmp_path: Path, engine: WorkerProcesses) -> None:
    undisturbed = ArtifactStore(tmp_path / "inline").save(plan_artifact(build_in_ranges), Inline())
    made = ArtifactStore(tmp_path / "workers").save(plan_artifact(build_in_ranges), engine)
    assert content(tmp_path / "workers") == content(tmp_path / "inline"), "the ledger too: no engine is recorded"
    assert made.statistics == {"order": list(range(10))} == undisturbed.statistics
    assert "ranges" not in made.ledger["recipe"]["parameters"]


def test_a_range_that_fails_is_named_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path / "a")
    store.save(plan_artifact(build_in_ranges))
    before = content(tmp_path)
    monkeypatch.setenv("TEST_FAIL", "tenth_7")
    with pytest.raises(RangeFailed, match="tenth_7 failed: ValueError: tenth_7 does not like this") as failed:
        store.save(plan_artifact(build_in_ranges, factor=2), WorkerProcesses(2))
    assert "in obey" in failed.value.__notes__[0], "the traceback of the worker"
    assert content(tmp_path) == before
    with pytest.raises(ValueError, match="tenth_7 does not like this"):
        store.save(plan_artifact(build_in_ranges, factor=2))
    assert content(tmp_path) == before


@pytest.mark.sensitive
def test_a_range_with_which_workers_die_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DIE", "tenth_7")
    with pytest.raises(RangeFailed, match=r"tenth_7 failed: the worker process died \(killed\? out of memory\?\)"):
        ArtifactStore(tmp_path / "a").save(plan_artifact(build_in_ranges), WorkerProcesses(2))
    assert list(content(tmp_path)) == [".a.lock/"]


@pytest.mark.sensitive
def test_a_worker_killed_in_the_middle_of_a_range_costs_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ArtifactStore(tmp_path / "inline").save(plan_artifact(build_in_ranges))
    monkeypatch.setenv("TEST_DIE_ONCE", str(tmp_path / "died"))
    ArtifactStore(tmp_path / "workers").save(plan_artifact(build_in_ranges), WorkerProcesses(2))
    assert (tmp_path / "died").exists()
    assert content(tmp_path / "workers") == content(tmp_path / "inline")


@pytest.mark.sensitive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_ends_in_the_middle_leaves_no_worker_and_no_half_file(
    births: Nursery, tmp_path: Path, number: signal.Signals
) -> None:
    side, root = tmp_path / "ran.txt", tmp_path / "data" / "a"
    environment = {"TEST_SECONDS": "1000", "TEST_RAN": str(side)}
    child = births.start(kind="ranges", root=str(root), plan=1, workers=2, environment=environment)
    wait_until(lambda: side.exists() and len(side.read_text().split()) >= 2, "the ranges did not start")
    os.kill(child, number)
    births.end()
    wait_until_empty(child, "a worker outlived the run")
    assert not root.exists()
    save("ranges", root, 1, 2)
    assert sorted(path.name for path in root.parent.iterdir()) == [".a.lock", "a"]
    save("ranges", tmp_path / "undisturbed", 1, 0)
    assert content(root) == content(tmp_path / "undisturbed")
