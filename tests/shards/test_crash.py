"""Killed at any moment, a store never seems whole when it is not, and goes on to the bytes of an undisturbed run."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everytoken.seeds import python_random
from everytoken.shards import ArtifactStore, Store
from tests.shards import children
from tests.shards.children import PATIENCE, Nursery, nursery, wait_until, wait_until_empty
from tests.shards.folders import content

pytestmark = pytest.mark.sensitive

KINDS = ["shards", "sifted", "artifact"]
LONG = "1000"  # seconds of a part: longer than a test waits for the end of its run


@pytest.fixture(scope="module")
def births() -> Iterator[Nursery]:
    with nursery() as found:
        yield found


class Trial:
    """A store under attack, and what each plan gives when nobody disturbs it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.root, self.folder = kind, folder / "attacked" / "it", folder
        self.undisturbed, self.seconds = {}, 0.0
        for plan in (0, 1, 2, 3):
            start = time.monotonic()
            children.save(kind, folder / f"plan {plan}", plan, 0)
            self.seconds = max(self.seconds, time.monotonic() - start)
            self.undisturbed[plan] = self.same(content(folder / f"plan {plan}"))

    def same(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Leave out the ledger of an artifact, which holds measurements."""
        return {name: data for name, data in files.items() if self.kind != "artifact" or name != "ledger.json"}

    def check_never_wrong(self) -> bool:
        """Return whether the store says that it is there; if it does, all of some plan must be."""
        store: Any = ArtifactStore(self.root) if self.kind == "artifact" else Store(self.root)
        if not store.exists():
            assert not (self.root / "ledger.json").exists(), "a ledger stands beside parts that are not its own"
            return False
        loaded = store.load()
        files = {n: d for n, d in self.same(content(self.root)).items() if not n.startswith(".")}
        (plan,) = [p for p in self.undisturbed if files == self.undisturbed[p]]
        assert loaded.root_digest == type(store)(self.folder / f"plan {plan}").load().root_digest
        return True

    def check_finished(self, plan: int) -> None:
        """The bytes of an undisturbed run, and no stray, temporary or half file anywhere."""
        assert self.check_never_wrong()
        assert self.same(content(self.root)) == self.undisturbed[plan]
        beside = sorted(path.name for path in self.root.parent.iterdir())
        assert beside == ([".it.lock", "it"] if self.kind == "artifact" else ["it"])
        assert content(self.root.parent / ".it.lock") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_any_operation_on_files(kind: str, births: Nursery, tmp_path: Path) -> None:
    """Every moment between two operations on files, one after the other, while one plan replaces another."""
    trial = Trial(kind, tmp_path)
    step, killed = 0, True
    while killed:
        step += 1
        shutil.rmtree(trial.root.parent, ignore_errors=True)
        trial.root.parent.mkdir()
        shutil.copytree(tmp_path / "plan 1", trial.root)
        births.start(kind=kind, root=str(trial.root), plan=0, die_at=step)
        code = births.end()
        assert code in (0, -signal.SIGKILL)
        killed = code != 0
        trial.check_never_wrong()
        children.save(kind, trial.root, 0, 0)
        trial.check_finished(0)
    assert step > (15 if kind == "artifact" else 30)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_fifty_random_moments(kind: str, births: Nursery, tmp_path: Path) -> None:
    """Resumed after each kill; whenever a run comes to its end, the next one is of another plan."""
    trial = Trial(kind, tmp_path)
    moments = python_random(20, kind)
    plan, kills, whole, longest = 0, 0, 0, trial.seconds * 0.7
    while kills < 50:
        child = births.start(kind=kind, root=str(trial.root), plan=plan, environment={"TEST_SECONDS": "0.002"})
        time.sleep(moments.uniform(0, longest))
        os.killpg(child, signal.SIGKILL)
        killed = births.end() != 0
        kills += killed
        whole += trial.check_never_wrong()
        if not killed:
            trial.check_finished(plan)
            plan = (plan + 1) % 4
        longest *= 1.02 if killed else 0.9  # about one run in six ends by itself, on any machine
    children.save(kind, trial.root, plan, 0)
    trial.check_finished(plan)


def test_killed_while_workers_run(births: Nursery, tmp_path: Path) -> None:
    """The parent alone, or the whole group: no worker outlives it, and the next run goes on."""
    trial = Trial("shards", tmp_path)
    moments = python_random(20, "processes")
    kills = 0
    for round_number in itertools.count():
        job = {"root": str(trial.root), "plan": round_number % 2, "environment": {"TEST_SECONDS": "0.3"}}
        child = births.start(kind="shards", workers=2, **job)
        time.sleep(moments.uniform(0.0, 1.2))
        (os.kill if round_number % 2 else os.killpg)(child, signal.SIGKILL)
        kills += births.end() != 0
        # A worker that is still importing ends when it has done so: before its first part, but after a second or two.
        wait_until_empty(child, "a worker outlived its parent")
        trial.check_never_wrong()
        if kills == 8:
            break
    children.save("shards", trial.root, 0, 2)
    trial.check_finished(0)


def wait_for_lines(path: Path, count: int) -> None:
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= count, "the parts did not start")


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGTERM, False)],
)
def test_a_signal_ends_long_parts_at_once(
    births: Nursery, tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    side = tmp_path / "ran.txt"
    environment = {"TEST_SECONDS": LONG, "TEST_RAN": str(side)}
    child = births.start(kind="shards", root=str(tmp_path / "s"), plan=0, workers=2, environment=environment)
    wait_for_lines(side, 2)
    start = time.monotonic()
    (os.killpg if to_group else os.kill)(child, number)
    code = births.end()
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)
    wait_until_empty(child, "workers outlived the run")
    assert time.monotonic() - start < PATIENCE, "the run waited for its parts"
    children.save("shards", tmp_path / "s", 0, 0)
    children.save("shards", tmp_path / "undisturbed", 0, 0)
    assert content(tmp_path / "s") == content(tmp_path / "undisturbed")


def test_an_interrupt_while_workers_start_does_not_hang(births: Nursery, tmp_path: Path) -> None:
    moments = python_random(20, "start")
    for _ in range(6):
        environment = {"TEST_SECONDS": LONG}
        child = births.start(kind="shards", root=str(tmp_path / "s"), plan=0, workers=3, environment=environment)
        time.sleep(moments.uniform(0.03, 0.6))
        start = time.monotonic()
        os.killpg(child, signal.SIGINT)
        births.end()
        assert time.monotonic() - start < PATIENCE, "the run waited for its parts"
        wait_until_empty(child, "workers outlived the run")


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="the kernel's help is Linux's")
def test_no_worker_outlives_its_parent_even_while_it_holds_the_interpreter_lock(
    births: Nursery, tmp_path: Path
) -> None:
    side = tmp_path / "ran.txt"
    environment = {"TEST_RAN": str(side)}
    child = births.start(kind="stuck", root=str(tmp_path / "s"), plan=0, workers=1, environment=environment)
    wait_for_lines(side, 1)
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    births.end()
    wait_until_empty(child, "the worker outlived its parent")
