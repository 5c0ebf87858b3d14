"""Submit, cancel and submit again: a process of this machine, jobs of submitit here, and jobs of Slurm's daemons."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everytoken.locks import locked
from everytoken.shards import JobQueue, Slurm, make_engine
from everytoken.submission import (
    RunOrder,
    Submission,
    SubmissionError,
    cancel_run,
    start_detached,
    submission_state,
    submissions_in,
    submit_run,
    wait_for,
)
from tests.shards.children import wait_until
from tests.shards.workers.slurm_daemons import require_slurm, slurm_daemons
from tests.submission.background import steps

pytest.importorskip("submitit")

ORDER = RunOrder("test", ("ingestion",), "ingestion.seed=1")


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    require_slurm()
    with slurm_daemons(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture(params=["process", "local", pytest.param("slurm", marks=pytest.mark.sensitive)])
def queue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue | None:
    if request.param == "process":
        return None
    if request.param == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("daemons")))
    options = {"folder": str(tmp_path / "jobs"), "minutes": 5, "ask_every": 0.3, "patience": 0.5}
    engine = make_engine("slurm", 2, cluster=request.param, **options)
    assert isinstance(engine, Slurm)
    return engine.queue


def made(data: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((data / "made").iterdir())}


def at_second_step(data: Path, submission: Submission) -> None:
    wait_until((data / "made/0").exists, "the run has not begun")
    wait_until(lambda: submission.is_running, "its lock is free")


def test_a_run_that_was_cancelled_is_resumed(tmp_path: Path, queue: JobQueue | None) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "stay").touch()
    first = submit_run(data, ORDER, steps, queue)
    at_second_step(data, first)
    assert submission_state(first, queue) == "running"
    with pytest.raises(SubmissionError, match=r"submission 1 of .* is running.*everytoken cancel"):
        submit_run(data, ORDER, steps, queue)
    assert [one.number for one in submissions_in(data)] == [1]
    assert cancel_run(first, queue)
    assert not cancel_run(first, queue), "there is nothing to end"
    assert submission_state(first, queue) == "ended early" and first.was_cancelled
    (data / "stay").unlink()
    second = submit_run(data, first.order(), steps, queue)
    assert wait_for(second, queue) == "done"
    assert made(data) == {"0": "1", "1": "2", "2": "2"}, "what was made is kept"
    assert second.log.read_text() == "begun\n"


def test_a_run_that_fails_says_why(tmp_path: Path, queue: JobQueue | None) -> None:
    submission = submit_run(tmp_path, RunOrder(None, (), "fail"), steps, queue)
    assert wait_for(submission, queue) == "ended early"
    assert submission.why_ended() == "ValueError: row 7 is no number"
    assert "Traceback" in submission.log.read_text()


def test_what_is_kept_names_no_machine_and_no_folder_of_it(tmp_path: Path, queue: JobQueue | None) -> None:
    submission = submit_run(tmp_path, ORDER, steps, queue)
    assert wait_for(submission, queue) == "done"
    kept = {path.name: path.read_text() for path in submission.path.iterdir()}
    assert kept.keys() - {"pid"} == {"order.json", "log", "done"}
    assert str(tmp_path) not in "".join(kept.values())
    assert submission.order().command == "kedro run --env test --pipelines ingestion --params ingestion.seed=1"


def test_a_process_that_was_killed_is_told(tmp_path: Path) -> None:
    (tmp_path / "stay").touch()
    submission = submit_run(tmp_path, ORDER, steps, None)
    at_second_step(tmp_path, submission)
    os.killpg(int(submission.pid.read_text()), signal.SIGKILL)
    assert wait_for(submission, None) == "ended early"
    assert "its process was killed" in submission.why_ended()


def test_who_asks_for_the_state_hinders_no_start_and_nobody_else_who_asks(tmp_path: Path) -> None:
    asked = Submission(tmp_path, 1)
    asked.path.mkdir()
    with ThreadPoolExecutor() as other:
        with locked(asked.path, shared=True):  # as somebody who asks
            assert not asked.is_running
            started = other.submit(start_detached, print, asked)
            time.sleep(0.1)
            assert not started.done(), "it waits, and does not fail"
        assert started.result(timeout=30).wait() == 0
    with locked(asked.path), pytest.raises(BlockingIOError):
        start_detached(print, asked)


def test_a_damaged_order_is_named(tmp_path: Path) -> None:
    submission = submit_run(tmp_path, ORDER, steps, None)
    wait_for(submission, None)
    (submission.path / "order.json").write_text("{")
    with pytest.raises(SubmissionError, match=r"order\.json is no order .*Remove .*00001, and submit"):
        submission.order()
