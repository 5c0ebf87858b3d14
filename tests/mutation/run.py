"""Run a seeded choice of mutants, each against the tests of its own module.

    python -m tests.mutation.run --seed 15 --mutants 300

A module's tests are collected once, and run once to see which functions each test calls. For every mutant this process
forks: the child puts the faulty code into the functions of the module (the source files stay as they are), and runs the
tests up to the first failure and for about 10 s at most. The tests that call the function with the fault come first,
the fastest of them first; then the others, which may use what an earlier test, a fixture or a cache has got from it.

A mutant is *killed* when a test fails, when the child crashes, or when it takes much more time than the tests do.
Mutants in ``equivalent.toml`` change nothing that a test could see; they are not run, and not counted. One child a
module has no fault: it must pass.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import pytest
from hypothesis import Phase, settings

from tests import memory
from tests.mutation.modules import DRAWN_AS, LEFT_OUT, MODULES, PRELOADED
from tests.mutation.mutants import CALLED, Mutant, compiled, functions_in, mutants_of, noting_calls

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "everytoken"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
REQUIRED_SHARE = 0.95
_Functions = dict[tuple[str, int], list[FunctionType]]  # by qualified name and first line
_MEMORY = 12 << 30  # bytes of data of a child: a fault in a size must not fill the machine
_BROKEN = 3  # exit code of a child in which something else than a test failed
_MOST_SECONDS = 10  # of processor time, of the tests of a mutant
_SPARE_SECONDS = 4  # of processor time that a test may take beyond five times what it takes without a fault
_MOST_CLOCK_SECONDS = 240  # of a mutant: one that only waits


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return why each mutant of the list is equivalent, by its key."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(entry["module"], entry["function"], entry["before"], entry["after"]): entry["reason"] for entry in listed}


def all_mutants(module: str) -> list[Mutant]:
    """Return the mutants of a module under ``src/everytoken``."""
    return mutants_of(module, (SOURCES / module).read_text(encoding="utf-8"))


def chosen(seed: int, count: int | None, modules: Sequence[str]) -> dict[str, list[Mutant]]:
    """Return ``count`` mutants that are not listed as equivalent, as evenly over the modules as they have any.

    ``count`` None: all of them.
    """
    known = equivalents()
    left = {}
    for module in modules:
        mutants = all_mutants(module)
        # all of them are shuffled: a new entry in the list of equivalents keeps the choice
        random.Random(f"{seed} {DRAWN_AS.get(module, module)}").shuffle(mutants)
        left[module] = [mutant for mutant in mutants if mutant.key not in known][::-1]
    picked: dict[str, list[Mutant]] = {module: [] for module in modules}
    remaining = sum(map(len, left.values())) if count is None else count
    while remaining and any(left.values()):
        for module in [module for module in modules if left[module]][:remaining]:
            picked[module].append(left[module].pop())
            remaining -= 1
    return picked


@dataclass
class _Measured:
    """What a run without a fault shows: the functions that a test calls, and the seconds that it takes."""

    calls: dict[str, set[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Child:
    pid: int
    mutant: Mutant | None  # None: without a fault
    folder: Path
    deadline: float


class _Mutation:
    """The plugin that runs mutants in place of the tests that were collected; results go to ``self.survivors``."""

    def __init__(self, module: str, mutants: Sequence[Mutant], processes: int) -> None:
        self._module, self._mutants, self._processes = module, mutants, processes
        self._path = str(SOURCES / module)
        self._source = (SOURCES / module).read_text(encoding="utf-8")
        self.survivors: list[Mutant] = []
        self.error: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # No shrinking: one failure is enough. No database: a fault is no example to keep.
        settings.register_profile(
            "mutation", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        memory.START_METHOD = "fork"  # a fault is in this process, and in forks of it
        import_module("everytoken." + self._module.removesuffix(".py").replace("/", "."))  # it may be loaded when used
        gc.unfreeze()  # what was frozen is not listed
        functions: _Functions = {}
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename == self._path:
                functions.setdefault((found.__code__.co_qualname, found.__code__.co_firstlineno), []).append(found)
        gc.collect()
        gc.freeze()
        if not functions:
            self.error = f"{self._module}: it has no function"
            return True
        measured = self._measure(session, functions)
        if measured is not None:
            self._run_all(session, functions, measured)
        return True

    def _measure(self, session: pytest.Session, functions: _Functions) -> _Measured | None:
        """Run all tests once, in a child."""
        with tempfile.TemporaryDirectory(prefix="everytoken-mutation-") as folder:
            pid = os.fork()
            if not pid:
                with _quiet(folder):
                    measured = self._measured(session, functions)
                    Path(folder, "measured").write_bytes(pickle.dumps(measured))
                    os._exit(1 if session.testsfailed else 0)
            _, status = os.waitpid(pid, 0)
            if status:
                self.error = f"{self._module}: its tests fail without a fault (status {status})"
                return None
            return pickle.loads(Path(folder, "measured").read_bytes())  # type: ignore[no-any-return]

    def _measured(self, session: pytest.Session, functions: _Functions) -> _Measured:
        measured = _Measured()
        called: set[str] = set()
        next(iter(functions.values()))[0].__globals__[CALLED] = called
        _put(noting_calls(self._source, self._path), functions)
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            called.clear()
            before = sum(os.times()[:4])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            measured.calls[item.nodeid] = set(called)
            measured.seconds[item.nodeid] = sum(os.times()[:4]) - before
        return measured

    def _run_all(self, session: pytest.Session, functions: _Functions, measured: _Measured) -> None:
        running: dict[int, _Child] = {}
        for mutant in (None, *self._mutants):
            while len(running) >= self._processes:
                self._reap(running)
            tests = _tests_of(mutant, session.items, measured)
            folder = Path(tempfile.mkdtemp(prefix="everytoken-mutation-"))
            pid = os.fork()
            if not pid:
                with _quiet(str(folder)):
                    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
                    if mutant is not None:
                        _put(compiled(mutant, self._source, self._path), functions)
                    os._exit(_failed(session, tests, measured))
            running[pid] = _Child(pid, mutant, folder, time.monotonic() + _MOST_CLOCK_SECONDS)
        while running:
            self._reap(running)

    def _reap(self, running: dict[int, _Child]) -> None:
        """Wait for a child; end those that are over their time."""
        while True:
            for child in list(running.values()):
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid or time.monotonic() > child.deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)  # what its tests started, too
                    if not pid:
                        os.waitpid(child.pid, 0)
                    self._judge(child.mutant, status if pid else None)
                    shutil.rmtree(child.folder, ignore_errors=True)
                    del running[child.pid]
                    return
            time.sleep(0.01)

    def _judge(self, mutant: Mutant | None, status: int | None) -> None:
        """Note what the end of a child says; its status is None when it took too long."""
        if mutant is None:
            if status != 0:
                self.error = f"{self._module}: without a fault its tests fail, the fastest first (status {status})"
        elif status == 0:
            self.survivors.append(mutant)
        elif status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == _BROKEN:
            self.error = f"{self._module}: this run itself failed at {mutant}"


def _put(module: CodeType, functions: _Functions) -> None:
    """Give functions of a module the code that a changed module has for them."""
    for key, code in functions_in(module).items():
        for function in functions.get(key, []):
            if function.__code__.co_freevars == code.co_freevars:
                function.__code__ = code


def _tests_of(mutant: Mutant | None, items: Sequence[pytest.Item], measured: _Measured) -> list[pytest.Item]:
    """Return the tests of a mutant in their order, as many as there is time for."""

    def place(item: pytest.Item) -> tuple[bool, float]:
        calls = mutant is None or mutant.function in measured.calls[item.nodeid]
        return not calls, measured.seconds[item.nodeid]

    ordered = sorted(items, key=place)
    ends = accumulate(measured.seconds[item.nodeid] for item in ordered)
    return [item for item, end in zip(ordered, ends, strict=True) if end <= _MOST_SECONDS or item is ordered[0]]


def _failed(session: pytest.Session, tests: Sequence[pytest.Item], measured: _Measured) -> int:
    for item, after in zip(tests, [*tests[1:], None], strict=True):
        # processor time, so that a busy machine ends nobody; the signal ends this process
        signal.setitimer(signal.ITIMER_PROF, _SPARE_SECONDS + 5 * measured.seconds[item.nodeid])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.testsfailed:
            return 1
    return 0


@contextlib.contextmanager
def _quiet(folder: str) -> Iterator[None]:
    """Run the block in a process group of its own, with its temporary files in ``folder``; it must not return."""
    os.setsid()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        yield
    finally:
        os._exit(_BROKEN)


def run_module(module: str, mutants: Sequence[Mutant], processes: int) -> tuple[list[Mutant], str | None]:
    """Run mutants of one module in a process of its own; return the survivors, and an error that ended the run."""
    with tempfile.TemporaryDirectory(prefix="everytoken-mutation-") as folder:
        answer = Path(folder, "answer")
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            plugin = _Mutation(module, mutants, processes)
            options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "--assert=plain"]
            options += ["-m", "not slow and not sensitive", "-k", " and ".join(f"not {word}" for word in LEFT_OUT)]
            with Path(folder, "output").open("w") as output, contextlib.redirect_stdout(output):
                code = pytest.main([*options, *MODULES[module]], plugins=[plugin])
            error = plugin.error or (None if code in (0, 5) else f"{module}: pytest ended with {code}")
            answer.write_bytes(pickle.dumps((plugin.survivors, error)))
            os._exit(0)
        os.waitpid(pid, 0)
        if not answer.is_file():
            return [], f"{module}: the run ended without a result"
        return pickle.loads(answer.read_bytes())  # type: ignore[no-any-return]


def main() -> int:
    """Run what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=15, help="of the choice of mutants")
    parser.add_argument("--mutants", type=int, help="how many; all when it is not given")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("modules", nargs="*", help=f"files under {SOURCES.relative_to(ROOT)}; all of the table if none")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for name in PRELOADED:
        __import__(name)
    picked = chosen(arguments.seed, arguments.mutants, arguments.modules or list(MODULES))
    survivors, errors, total = [], [], sum(map(len, picked.values()))
    for module, mutants in picked.items():
        if not mutants:
            continue
        begun = time.monotonic()
        found, error = run_module(module, mutants, arguments.processes)
        survivors += found
        errors += [error] if error else []
        print(
            f"{module}: {len(mutants) - len(found)} of {len(mutants)} killed in {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        for mutant in sorted(found, key=lambda mutant: mutant.number):
            print(f"  SURVIVED line {mutant.line}, {mutant.function}: {mutant.before}\n{'':>10}-> {mutant.after}")
    killed = total - len(survivors)
    print(f"{killed} of {total} mutants killed ({100 * killed / max(total, 1):.1f} %), seed {arguments.seed}")
    for error in errors:
        print(f"ERROR {error}")
    return int(bool(errors) or killed < REQUIRED_SHARE * total)


if __name__ == "__main__":
    sys.exit(main())
