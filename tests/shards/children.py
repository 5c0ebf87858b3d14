"""Child processes for the tests of crashes and signals.

Starting Python and pyarrow takes most of a second, so one process imports everything and forks a child for each job.
A child is the leader of its own process group, as a shell's job is.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0  # seconds: a deadline is there for what hangs, and a busy machine is slow
_IMPORTED = [
    "pandas",
    "pyarrow.pandas_compat",
    "everytoken.shards.artifacts",
    "everytoken.shards.engines",
    "everytoken.shards.store",
    "tests.shards.functions",
]


class Nursery:
    """Gives birth to children, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._child = process, 0

    def start(self, **job: Any) -> int:
        """Start a job (see `_run`) and return the process id of the child, which leads a group of its own.

        Both can be signalled until `end` is called: a child that has ended stays a zombie for so long.
        """
        if self._child:  # a test that failed left it
            os.killpg(self._child, signal.SIGKILL)
            self.end()
        self._child = int(self._ask(json.dumps(job)))
        return self._child

    def end(self) -> int:
        """Wait for the child and return its exit code, negative for a signal."""
        self._child = 0
        return os.waitstatus_to_exitcode(int(self._ask("end")))

    def _ask(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def nursery(module: str = "tests.shards.children") -> Iterator[Nursery]:
    """Start ``module``, which calls `serve`."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", module]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        yield Nursery(process)
        assert process.stdin
        process.stdin.close()


def group_members(group: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def wait_until(condition: Callable[[], object], message: str, seconds: float = PATIENCE) -> None:
    """Wait until the condition holds; a test that waited for so long in vain fails with the message."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{message} (waited {seconds:.0f} s)"
        time.sleep(0.01)


def wait_until_empty(group: int, message: str) -> None:
    """Wait until no process of the group lives."""
    wait_until(lambda: not group_members(group), message)


_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"}


def die_at(step: int, root: str) -> None:
    """Kill this process before its ``step``-th operation on files."""
    done = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event in _EVENTS and (event != "open" or root in str(arguments[0])):
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def planned(kind: str, plan: int) -> Any:
    """Return one of two plans for a store: other parameters, other inputs and, for shards, other parts."""
    from everytoken.shards import plan_artifact
    from tests.shards.functions import build_folder, build_in_ranges, count_up, given, hold_the_lock, sift

    match kind:
        case "artifact":
            return plan_artifact(build_folder, factor=plan)
        case "ranges":
            return plan_artifact(build_in_ranges, factor=plan)
        case "sifted":
            return given(4 + plan, changed=plan).map(sift, factor=1 + plan // 2)
        case "stuck":
            return given(2).reduce(hold_the_lock)
    return given(4 + plan, changed=plan).map(count_up, factor=1 + plan // 2)


def save(kind: str, root: Path, plan: int, workers: int) -> None:
    from everytoken.shards import ArtifactStore, Inline, Store, WorkerProcesses

    engine = WorkerProcesses(workers) if workers else Inline()
    if kind in ("artifact", "ranges"):
        ArtifactStore(root).save(planned(kind, plan), engine)
    else:
        Store(root).save(planned(kind, plan), engine)


def _run(job: dict[str, Any]) -> None:
    os.environ.update(job.get("environment", {}))
    save(job["kind"], Path(job["root"]), job["plan"], job.get("workers", 0))


def serve(run: Callable[[dict[str, Any]], None]) -> None:
    """Read jobs, one a line; fork a child for each, which runs it and, if the job says so, dies at an operation.

    A second line asks for the end of the child: until then its number is nobody else's.
    """
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                quiet = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(quiet, descriptor)
                if job.get("die_at"):
                    die_at(job["die_at"], job["root"])
                run(job)
                code = 0
            except KeyboardInterrupt:
                code = 130
            finally:
                os._exit(code)
        os.setpgid(child, child)  # as shells do, in both: the group exists before anybody signals it
        print(child, flush=True)
        if not sys.stdin.readline():  # the tests have ended
            os.killpg(child, signal.SIGKILL)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    # imported once for all children, which then are killed while they work and not while they import
    for name in _IMPORTED:
        importlib.import_module(name)

    serve(_run)
