"""An engine runs every task once, whatever becomes of the others, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards import Engine, Failure, Inline, ShardsError, WorkerProcesses, make_engine, start_server
from tests.shards import functions
from tests.shards.children import PATIENCE, wait_until
from tests.shards.functions import given, total

ENGINES = [Inline(), WorkerProcesses(1), WorkerProcesses(3)]
ODD = ["well", "unpicklable", "surrogate", "unspeakable", "panic", "well"]


def square(number: int) -> int:
    return number * number


def die_of(numbers: list[int], number: int) -> int:
    if number in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def process_id(task: int) -> int:
    return os.getpid()


def meet(folder: Path, count: int, task: int) -> int:
    """Stay until as many processes are here as are expected."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= count, f"there are not {count} workers")
    return os.getpid()


def long_after_the_first(task: int) -> int:
    if task:
        time.sleep(1000)
    return os.getpid()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def folder(task: int) -> str:
    return str(Path.cwd())


def raise_oddly(value: str) -> int:
    return functions.raise_oddly(given(1).from_values([value], [value]).parts[0])


def parent(_: int) -> int:
    return os.getppid()


def results(engine: Engine, function: Any, tasks: list[Any]) -> dict[Any, Any]:
    return dict(engine.run(function, tasks))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_task_is_run_once(engine: Engine, count: int) -> None:
    outcomes = list(engine.run(square, range(count)))
    assert sorted(outcomes) == [(n, n * n) for n in range(count)]


@pytest.mark.parametrize("engine", ENGINES[:2], ids=str)
def test_any_exception_is_a_failure_with_its_text_and_costs_no_other_task(engine: Engine) -> None:
    found = list(engine.run(raise_oddly, ODD))
    assert [value for _, value in found if value == 7] == [7, 7]
    errors = {task: outcome for task, outcome in found if isinstance(outcome, Failure)}
    assert errors["unpicklable"].error == "Unpicklable: kept as text"
    assert errors["surrogate"].error == "ValueError: half of a pair: \\ud800"
    assert errors["unspeakable"].error.startswith("Unspeakable: <exception str() failed>")
    assert errors["panic"].error == "Panic: in Rust"
    for failure in errors.values():
        assert "in raise_oddly" in failure.traceback
        (failure.error + failure.traceback).encode()


def test_an_exit_within_a_worker_is_a_failure_and_not_the_end() -> None:
    found = results(WorkerProcesses(1), raise_oddly, ["exit", "well"])
    assert found["well"] == 7
    assert found["exit"].error == "SystemExit: 0"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_within_this_process_ends_the_run(stop: type[BaseException]) -> None:
    def interrupted(task: int) -> None:
        raise stop

    with pytest.raises(stop):
        list(Inline().run(interrupted, [1]))


@pytest.mark.sensitive
def test_tasks_with_which_a_worker_dies_are_named_and_cost_no_other() -> None:
    found = results(WorkerProcesses(2), partial(die_of, [0, 3, 11]), list(range(12)))
    died = {n for n, outcome in found.items() if isinstance(outcome, Failure)}
    assert died == {0, 3, 11}
    assert "died twice with this part, the second time alone" in found[3].traceback
    assert {n: n for n in found if n not in died} == {n: v for n, v in found.items() if n not in died}


def test_there_are_as_many_workers_as_asked_for(tmp_path: Path) -> None:
    found = set(results(WorkerProcesses(2), partial(meet, tmp_path, 2), list(range(6))).values())
    assert len(found) == 2 and os.getpid() not in found
    assert set(results(Inline(), process_id, [1]).values()) == {os.getpid()}


@pytest.mark.sensitive
def test_a_caller_that_stops_leaves_no_worker() -> None:
    outcomes = WorkerProcesses(2).run(long_after_the_first, list(range(50)))
    worker = next(outcomes)[1]
    os.kill(worker, 0)
    start = time.monotonic()
    outcomes.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < PATIENCE, "it waited for the parts"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_workers_have_the_environment_and_folder_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_RAN", "before")
    assert results(WorkerProcesses(1), environment, ["TEST_RAN"]) == {"TEST_RAN": "before"}
    monkeypatch.setenv("TEST_RAN", "after")
    monkeypatch.setenv("TEST_SECONDS", "1")
    monkeypatch.chdir(tmp_path)
    found = results(WorkerProcesses(2), environment, ["TEST_RAN", "TEST_SECONDS"])
    assert found == {"TEST_RAN": "after", "TEST_SECONDS": "1"}
    assert results(WorkerProcesses(1), folder, [0]) == {0: str(tmp_path)}
    monkeypatch.delenv("TEST_RAN")
    assert results(WorkerProcesses(1), environment, ["TEST_RAN"]) == {"TEST_RAN": None}


def test_a_fork_of_a_process_that_had_workers_has_its_own() -> None:
    assert results(WorkerProcesses(1), square, [5]) == {5: 25}
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if results(WorkerProcesses(2), square, [5, 6]) == {5: 25, 6: 36} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert results(WorkerProcesses(1), square, [7]) == {7: 49}


def test_a_worker_uses_one_core() -> None:
    assert results(WorkerProcesses(1), environment, ["TOKENIZERS_PARALLELISM"]) == {"TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the signals of a process")
def test_ctrl_c_does_not_reach_the_fork_server_not_even_while_it_imports() -> None:
    assert results(WorkerProcesses(1), square, [5]) == {5: 25}
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
    assert int(fields["SigBlk"], 16) & 1 << signal.SIGINT - 1, "blocked since before it began"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "and not blocked here"


def test_a_server_that_was_started_early_serves_the_workers() -> None:
    start_server()
    early = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert results(WorkerProcesses(1), parent, [0]) == {0: early}


def test_functions_that_cannot_travel_end_the_run_and_hang_nothing() -> None:
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        results(WorkerProcesses(2), lambda task: task, [1, 2])


def test_the_engine_is_made_of_the_configuration() -> None:
    assert make_engine("inline") == Inline()
    assert make_engine("processes", 3) == WorkerProcesses(3)
    assert make_engine("processes", "cores") == WorkerProcesses(os.cpu_count() or 1)
    for kind, workers, message in [
        ("processes", 0, "at least 1"),
        ("processes", "many", "'cores'"),
        ("processes", 1.5, "at least 1"),
        ("dask", 1, "this version knows 'inline', 'processes', 'slurm', 'ray'"),
    ]:
        with pytest.raises(ShardsError, match=message):
            make_engine(kind, workers)  # type: ignore[arg-type]


def test_part_functions_are_importable_in_workers(tmp_path: Path) -> None:
    """The function of a recipe travels by name; so it does with tests, from a folder that is no package of its own."""
    assert total.__module__ == "tests.shards.functions"
    assert results(WorkerProcesses(1), square, [5]) == {5: 25}
