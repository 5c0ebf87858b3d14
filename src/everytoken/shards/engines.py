"""Engines: where functions run over parts. An engine never changes a byte, only the time.

``inline`` runs in this process; ``processes`` in a pool of workers. They are forks, not of this process (so threads and
CUDA are safe here) but of one that is started once, has imported what every worker needs, and does nothing else:
Python's fork server. A pool is there in hundredths of a second, and each worker has the environment and folder of this
process. The function travels to a worker once, tasks one by one, few ahead. An exception in a task becomes a `Failure`
and costs no other task. A worker that dies (killed for memory, say) costs the tasks that were with the workers at
that moment another try, each alone, so that the culprit is named. When the caller stops (Ctrl-C, SIGTERM, an error),
workers are killed at once: outputs are atomic, so there is nothing to wait for; and when the caller itself is killed,
workers end by themselves.

``slurm`` runs them in jobs of a cluster (`everytoken.shards.workers.slurm`), and ``ray`` on the machines of a Ray
cluster (`everytoken.shards.workers.ray_cluster`).

A store of parts runs its part function in an engine. The function of an artifact runs in the caller. With a `RangeMap`
it maps another function over ranges of the artifact, in the engine of its store.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from everytoken.progress import progress
from everytoken.shards.errors import Failure, RangeFailed, ShardsError
from everytoken.shards.workers import ONE_CORE, attempt

if TYPE_CHECKING:  # what pools need is loaded where one starts: a question to stored data starts none
    from concurrent.futures import Future

Task = Any
Outcome = tuple[Task, Any]


class Engine(Protocol):
    """Runs ``function(task)`` for every task, in any order; yields each task with its result or `Failure`."""

    @property
    def workers(self) -> int:
        """How many tasks run at a time."""

    def run(self, function: Callable[[Task], Any], tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run all tasks."""


@dataclass(frozen=True)
class Inline:
    """Runs tasks in this process, in order."""

    workers: ClassVar[int] = 1

    def run(self, function: Callable[[Task], Any], tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run all tasks."""
        for task in tasks:
            yield task, attempt(function, task)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# What the server imports for all workers (pyarrow imports pandas for the first list it makes an array of).
_PRELOADED = ["concurrent.futures.process", "numpy", "pandas", "pyarrow.compute", "pyarrow.parquet", "pydantic"]

_function: Callable[[Task], Any]
_hiding = threading.Lock()


def _forget_server() -> None:
    if "multiprocessing.forkserver" not in sys.modules:
        return
    server: Any = sys.modules["multiprocessing.forkserver"]._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server.__init__()


os.register_at_fork(after_in_child=_forget_server)  # a server is of one process: a fork of that starts its own


def _start_worker(function: bytes, environment: dict[str, str]) -> None:
    global _function
    _forget_server()  # which then ends with the parent, whichever workers live
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # the kernel ends a worker even while a C call holds the GIL and no thread can run
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()  # what the server has is as old as the server
    os.environ.update(environment | ONE_CORE)
    _function = pickle.loads(function)


def _end_with_parent() -> None:
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # a worker that outlives its parent would race with the parent's successor


def _work(task: Task) -> Any:
    return attempt(_function, task, ends_run=())  # an exit inside a part must not end the run as if all were well


def start_server(modules: Sequence[str] = _PRELOADED) -> None:
    """Start the server of the workers, which imports what they need while the caller works; once is enough.

    SIGINT is blocked, as Ctrl-C reaches the server too: its imports would end in tracebacks.

    Args:
        modules: what it imports; looked for where this process looks.
    """
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # which unblocks the signal if it has to start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _main_hidden(), _search_path_in_environment():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _search_path_in_environment() -> Iterator[None]:
    """Let a process that is started look for modules where this one does; workers get their own environment later."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Let workers start without importing the parent's main module again.

    It would cost each worker a second (the ``kedro`` command imports Kedro), and no recipe has a function of
    ``__main__``.
    """
    with _hiding:  # of two threads that start workers one would put back what the other one put there
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@dataclass(frozen=True)
class WorkerProcesses:
    """Runs tasks in ``workers`` processes."""

    workers: int

    def run(self, function: Callable[[Task], Any], tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run all tasks."""
        waiting, suspects = deque(tasks), deque[Task]()
        while waiting:
            yield from self._run_pool(function, waiting, suspects, min(self.workers, len(waiting)))
        for suspect in suspects:
            alone, dead = deque([suspect]), deque[Task]()
            yield from self._run_pool(function, alone, dead, 1)
            if dead:
                death = "the worker process died (killed? out of memory?)"
                yield suspect, Failure(death, f"{death}\nIt died twice with this part, the second time alone.")

    def _run_pool(
        self, function: Callable[[Task], Any], waiting: deque[Task], suspects: deque[Task], workers: int
    ) -> Iterator[Outcome]:
        """Run ``waiting`` until it is empty or a worker dies; then what was in flight goes to ``suspects``."""
        from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        start_server()
        pool = ProcessPoolExecutor(
            workers,
            mp_context=get_context("forkserver"),
            initializer=_start_worker,
            initargs=(pickle.dumps(function), dict(os.environ)),
        )
        flying: dict[Future[Any], Task] = {}
        broken, finished = False, False
        try:
            while flying or (waiting and not broken):
                while waiting and not broken and len(flying) < 2 * workers:
                    task = waiting.popleft()
                    try:
                        with _main_hidden():
                            flying[pool.submit(_work, task)] = task
                    except BrokenProcessPool:
                        waiting.appendleft(task)
                        broken = True
                done, _ = wait(flying, return_when=FIRST_COMPLETED)
                for future in done:
                    task = flying.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        broken = True
                        suspects.append(task)
                        continue
                    yield task, result
            finished = True
        finally:
            if not finished:
                for process in list((pool._processes or {}).values()):
                    process.kill()
            pool.shutdown(wait=True, cancel_futures=True)


class Range(Protocol):
    """A task of a `RangeMap`: a part, or what else has a name for messages."""

    @property
    def name(self) -> str:
        """How messages call it."""


_Item = TypeVar("_Item")
_Range = TypeVar("_Range", bound=Range)
_Result = TypeVar("_Result")

# A pool costs each worker half a second to one second of its core, for imports. A core does less than this in 4 to 7 s.
POOL_BYTES = 256 << 20

THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class RangeMap:
    """Maps a function over ranges of an artifact, in the engine of its store; results come in the order of the ranges.

    A range writes its own bytes into files of the artifact, or returns something small. When a worker dies, the ranges
    that were with the workers run a second time. So a range must not read what it overwrites.
    """

    engine: Engine = Inline()

    @property
    def workers(self) -> int:
        """How many ranges run at a time: their share of the memory is one of so many."""
        return self.engine.workers

    def unless_small(self, size: int) -> RangeMap:
        """Return this map; for less than `POOL_BYTES` of work one that runs in this process."""
        return self if size >= POOL_BYTES else RangeMap()

    def __call__(
        self, function: Callable[[_Range], _Result], ranges: Sequence[_Range]
    ) -> Generator[_Result, None, None]:
        """Yield ``function(range)`` of each range.

        Args:
            function: a function of a module, or an object of a class of one: workers get it by pickle.
            ranges: in the order in which their results are wanted.

        Raises:
            RangeFailed: a range failed in a worker, or its worker died twice. In this process its own error is raised.
        """
        if self.workers == 1 or len(ranges) < 2:
            yield from map(function, ranges)
            return
        done: dict[int, _Result] = {}
        wanted = 0
        outcomes = self.engine.run(_OfNumbered(function), list(enumerate(ranges)))
        with closing(outcomes):  # type: ignore[type-var]
            for (number, task), outcome in progress(outcomes, len(ranges), "", "range"):
                if isinstance(outcome, Failure):
                    raise RangeFailed(task.name, outcome)
                done[number] = outcome
                while wanted in done:
                    yield done.pop(wanted)
                    wanted += 1

    def pieces(
        self, function: Callable[[_Range], Iterator[_Result]], ranges: Sequence[_Range], scratch: Path
    ) -> Generator[_Result, None, None]:
        """Yield what ``function(range)`` yields, range after range: for results that are not small.

        A worker leaves them in a file, so the caller holds one piece at a time. In this process no file is written.

        Args:
            function: as for a call.
            ranges: in the order in which their pieces are wanted.
            scratch: an existing folder; temporary files in it are gone when the last piece is taken.
        """
        if self.workers == 1 or len(ranges) < 2:
            for one in ranges:
                yield from function(one)
            return
        with TemporaryDirectory(prefix="pieces-", dir=scratch) as name:
            tasks = [_WithFile(one, Path(name) / str(number)) for number, one in enumerate(ranges)]
            with closing(self(_LeavePieces(function), tasks)) as counts:
                for task, count in zip(tasks, counts, strict=True):
                    with task.path.open("rb") as file:
                        for _ in range(count):
                            yield pickle.load(file)
                    task.path.unlink()


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result, None, None]:
    """Yield the result for each item, in their order; for what releases the GIL, as hashing does.

    What has not begun when the iterator is left never does.
    """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(THREADS)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


IN_THIS_PROCESS = RangeMap()
"""What a function that is declared ``in_ranges`` takes when no store runs it."""


@dataclass(frozen=True)
class _WithFile:
    range: Any
    path: Path

    @property
    def name(self) -> str:
        return str(self.range.name)


@dataclass(frozen=True)
class _LeavePieces:
    function: Callable[[Any], Iterator[Any]]

    def __call__(self, task: _WithFile) -> int:
        count = 0
        with task.path.open("wb") as file:  # a second try begins it again
            for piece in self.function(task.range):
                pickle.dump(piece, file, protocol=5)
                count += 1
        return count


@dataclass(frozen=True)
class _OfNumbered:
    function: Callable[[Any], Any]

    def __call__(self, task: tuple[int, Any]) -> Any:
        return self.function(task[1])


EngineKind = Literal["inline", "processes", "slurm", "ray"]


def make_engine(kind: EngineKind, workers: int | Literal["cores"] = 1, **options: Any) -> Engine:
    """Return the engine that ``globals.yml: engine``, or ``engine`` of a catalog entry, names.

    Args:
        options: of the kinds ``slurm`` and ``ray``; the others have none.

    Raises:
        ShardsError: an unknown kind or option, fewer than one worker, or what the engine needs is not installed.
    """
    if kind == "slurm":
        from everytoken.shards.workers import slurm_engine  # what a laptop does without

        return slurm_engine(workers=workers, **options)
    if kind == "ray":
        from everytoken.shards.workers import ray_engine

        return ray_engine(workers=workers, **options)
    if options:
        raise ShardsError(f"engine.{sorted(options)[0]} is nothing that an engine of kind {kind!r} has. Remove it.")
    count = processes_of(kind, workers)
    return WorkerProcesses(count) if count else Inline()


def processes_of(kind: EngineKind, workers: int | Literal["cores"] = 1, **options: Any) -> int:
    """Return how many processes of this machine ``globals.yml: engine`` names; 0 for one without any.

    Raises:
        ShardsError: an unknown kind, or fewer than one worker.
    """
    count = (os.cpu_count() or 1) if workers == "cores" else workers
    if not isinstance(count, int) or count < 1:
        raise ShardsError(f"engine.workers is {workers!r}; give a number of at least 1, or 'cores'")
    if kind not in get_args(EngineKind):
        known = ", ".join(map(repr, get_args(EngineKind)))
        raise ShardsError(f"engine.kind is {kind!r}; this version knows {known}")
    if kind in ("slurm", "ray"):
        return 1  # its workers are on other machines; what cannot run there runs here, one after the other
    return 0 if kind == "inline" else count
