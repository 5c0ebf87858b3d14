"""The engine ``slurm``: slices of tasks as job arrays, through submitit. This is the side of the caller.

A map has a folder that the caller and all nodes see (`MapFolder`). The caller queues the slices as an array, reads
outcomes as they appear, and asks ``squeue`` which jobs are left. A job that is gone without all its outcomes has died:
the task that it was with runs again in a job of its own, and what it had not begun is cut into new slices. A task
whose job dies a second time is a `Failure`. Preempted jobs are queued again, by Slurm or by submitit, and go on.

Jobs have the name of their map. So a caller that stops cancels them, and those of a caller that was killed are
cancelled by the next one in the same folder.

``cluster: local`` runs the same path on this machine, with submitit's processes instead of Slurm's.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.locks import locked
from everytoken.shards.errors import Failure, ShardsError
from everytoken.shards.workers.slurm_slice import JobSlice, MapFolder

logger = logging.getLogger(__name__)

_LOOK = 0.2
_GRACE = 3.0
_MOST_SECONDS_TO_END = 120.0
_TAIL = 4000  # characters of a log in a traceback
_PREFIX = "everytoken-"


class SlurmOptions(BaseModel):
    """What ``globals.yml: engine`` says for ``kind: slurm``.

    Attributes:
        folder: for tasks, outcomes, scripts and logs; all nodes see it under this name.
        workers: jobs of an array that run at a time.
        minutes: time limit of a job.
        cluster: ``local`` runs the jobs on this machine, without Slurm.
        parts_per_job: tasks of a slice.
        tasks_per_job: processes that share the slice of a job on its node.
        array_limit: jobs of an array, at most ``MaxArraySize - 1`` of the cluster.
        gpus_per_task: 1 gives each process a GPU of its own.
        memory_gb: of a job.
        requeues: how often a job that is out of time is queued again.
        setup: lines of the script before the job starts.
        sbatch: further options of ``sbatch``, by their long names.
        ask_every: seconds between two calls of ``squeue``.
        patience: seconds until an outcome of a job that has ended is seen, on a slow file system.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    folder: str
    workers: int = Field(ge=1)
    minutes: int = Field(ge=1)
    cluster: Literal["slurm", "local"] = "slurm"
    parts_per_job: int = Field(1, ge=1)
    tasks_per_job: int = Field(1, ge=1)
    array_limit: int = Field(1000, ge=1)
    cpus_per_task: int = Field(1, ge=1)
    gpus_per_task: int = Field(0, ge=0, le=1)
    memory_gb: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    requeues: int = Field(3, ge=0)
    setup: list[str] = []
    sbatch: dict[str, str | int | bool] = {}
    ask_every: float = Field(10, gt=0)
    patience: float = Field(30, ge=0)


def slurm_engine(**options: Any) -> Slurm:
    """Return the engine of these options (see `SlurmOptions`).

    Raises:
        ShardsError: an option is unknown or has no right value, or submitit is not installed.
    """
    try:
        read = SlurmOptions(**options)
    except ValidationError as error:
        told = "; ".join(f"engine.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ShardsError(f"globals.yml or catalog, engine of kind 'slurm': {told}. See docs/cluster.md") from None
    if find_spec("submitit") is None:
        raise ShardsError("engine.kind is 'slurm', which needs submitit: pip install 'everytoken[slurm]'")
    if read.cluster == "slurm" and (missing := [name for name in _COMMANDS if shutil.which(name) is None]):
        raise ShardsError(
            f"engine.kind is 'slurm', and there is no command {missing[0]} here: run this on a login node of the "
            "cluster, or give engine.cluster: local"
        )
    return Slurm(read)


_COMMANDS = ("sbatch", "srun", "squeue", "scancel")


@dataclass(eq=False)
class _Flying:
    """A slice that is queued or runs."""

    job: Any  # of submitit
    tasks: dict[int, Any]  # those without an outcome
    gone_since: float | None = None


@dataclass
class _Map:
    """A map while it runs."""

    folder: MapFolder
    waiting: deque[int]
    tasks: Sequence[Any]
    alone: deque[int] = field(default_factory=deque)
    flying: list[_Flying] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    slices: int = 0
    asked: float = float("-inf")


@dataclass(frozen=True)
class Slurm:
    """Runs tasks in jobs of Slurm."""

    options: SlurmOptions

    def __str__(self) -> str:
        return f"Slurm({self.options.cluster}, workers={self.options.workers})"

    @property
    def workers(self) -> int:
        """Processes that run tasks at a time."""
        return self.options.workers * self.options.tasks_per_job

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Run all tasks.

        Raises:
            ShardsError: ``sbatch`` refuses the jobs.
        """
        if not tasks:
            return
        pickled = pickle.dumps(function)
        with self._folder() as folder:
            folder.function.write_bytes(pickled)
            work = _Map(folder, deque(range(len(tasks))), tasks)
            while work.waiting or work.alone or work.flying:
                self._queue(work)
                self._find_gone(work)
                yield from self._finished(work)
                if work.flying:
                    time.sleep(_LOOK)

    @contextmanager
    def _folder(self) -> Iterator[MapFolder]:
        home = Path(self.options.folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        for left in home.glob(f"{_PREFIX}*"):
            with suppress(BlockingIOError, FileNotFoundError), locked(left, wait=False):
                self._cancel(left)
                shutil.rmtree(left, ignore_errors=True)
        root = home / f"{_PREFIX}{uuid4().hex[:12]}"
        root.mkdir()
        with locked(root, wait=False):
            folder = MapFolder(root)
            folder.make()
            try:
                yield folder
            finally:
                self._cancel(root)  # of a map that has ended there are none

    def _cancel(self, root: Path) -> None:
        """End the jobs of a map, and wait until they have ended."""
        MapFolder(root).ended.touch()
        if self.options.cluster == "local":
            _end_processes(root)
            return
        started = time.monotonic()
        while _queued(root.name, "%i %t", but=" CG") and (passed := time.monotonic() - started) < _MOST_SECONDS_TO_END:
            # outputs are atomic: there is nothing to wait for; Slurm alone would wait half a minute
            for options in [["--state=PENDING"], ["--signal=KILL"], *([[]] if passed > _GRACE else [])]:
                command = ["scancel", f"--name={root.name}", *options]
                subprocess.run(command, check=False, capture_output=True)
            time.sleep(_LOOK)

    def _queue(self, work: _Map) -> None:
        """Queue slices: as an array what waits, and a job for each task with which one has died."""
        cut: list[list[int]] = []
        while (work.waiting or work.alone) and len(cut) < self._room(work):
            if work.waiting:
                size = min(self.options.parts_per_job, len(work.waiting))
                cut.append([work.waiting.popleft() for _ in range(size)])
            else:
                cut.append([work.alone.popleft()])
        if not cut:
            return
        slices = []
        for numbers in cut:
            tasks = [(number, work.tasks[number]) for number in numbers]
            work.folder.tasks(work.slices).write_bytes(pickle.dumps(tasks))
            slices.append(JobSlice(work.folder, work.slices, has_gpu=self.options.gpus_per_task > 0))
            work.slices += 1
        jobs = self.submit(work.folder.jobs, work.folder.root.name, slices)
        if self.options.cluster == "local":
            with (work.folder.root / _PROCESSES).open("a") as file:
                file.writelines(f"{job.job_id}\n" for job in jobs)
        for job, numbers in zip(jobs, cut, strict=True):
            work.flying.append(_Flying(job, {number: work.tasks[number] for number in numbers}))

    def _room(self, work: _Map) -> int:
        if self.options.cluster == "local":  # which has no arrays
            return self.options.workers - len(work.flying)
        return 0 if work.flying else self.options.array_limit

    def submit(self, folder: Path, name: str, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Queue a job for each function, as one array; return submitit's jobs.

        Args:
            folder: for scripts and logs.
            name: of the jobs.

        Raises:
            ShardsError: ``sbatch`` refuses them.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self._executor(folder, name)
        try:
            with executor.batch():
                return [executor.submit(function) for function in functions]
        except (FailedJobError, FailedSubmissionError) as error:
            raise ShardsError(
                f"sbatch refuses {len(functions)} jobs: {error}. Correct partition, account, minutes and array_limit "
                "of the engine (globals.yml or catalog); `sinfo` and `scontrol show config` show what there is"
            ) from error

    def _executor(self, folder: Path, name: str) -> Any:
        given = self.options
        if given.cluster == "local":
            from submitit import LocalExecutor

            local = LocalExecutor(folder, max_num_timeout=given.requeues)
            gpus = given.gpus_per_task * given.tasks_per_job
            local.update_parameters(
                timeout_min=given.minutes, tasks_per_node=given.tasks_per_job, gpus_per_node=gpus, setup=given.setup
            )
            return local
        from submitit import SlurmExecutor

        slurm = SlurmExecutor(folder, max_num_timeout=given.requeues)
        asked = {
            "job_name": name,
            "time": given.minutes,
            "ntasks_per_node": given.tasks_per_job,
            "cpus_per_task": given.cpus_per_task,
            "gpus_per_task": given.gpus_per_task or None,
            "mem": None if given.memory_gb is None else f"{round(given.memory_gb * 1024)}M",
            "partition": given.partition,
            "account": given.account,
            "qos": given.qos,
            "constraint": given.constraint,
            "setup": given.setup or None,
            "array_parallelism": given.workers,
            "srun_args": _of_a_step(given),
            "additional_parameters": {"requeue": True, **given.sbatch},
        }
        slurm.update_parameters(**{name: value for name, value in asked.items() if value is not None})
        return slurm

    def _find_gone(self, work: _Map) -> None:
        """Note which jobs have ended."""
        now = time.monotonic()
        if self.options.cluster == "local":
            gone = [one for one in work.flying if one.job.done()]
        elif now - work.asked < self.options.ask_every:
            return
        else:
            work.asked = now
            queued = _queued(work.folder.root.name)
            gone = [] if queued is None else [one for one in work.flying if one.job.job_id not in queued]
        for one in gone:
            one.gone_since = now if one.gone_since is None else one.gone_since

    def _finished(self, work: _Map) -> Iterator[tuple[Any, Any]]:
        """Yield tasks with their outcomes; say what becomes of the tasks of jobs that died."""
        there = {int(path.stem) for path in work.folder.outcome(0).parent.iterdir() if path.name[0] != "."}
        for one in list(work.flying):
            for number in [number for number in one.tasks if number in there]:
                yield one.tasks.pop(number), pickle.loads(work.folder.outcome(number).read_bytes())
            if not one.tasks:
                work.flying.remove(one)
            elif one.gone_since is not None and time.monotonic() - one.gone_since >= self._patience:
                work.flying.remove(one)
                yield from self._after_death(work, one)

    @property
    def _patience(self) -> float:
        return 0 if self.options.cluster == "local" else self.options.patience

    def _after_death(self, work: _Map, dead: _Flying) -> Iterator[tuple[Any, Any]]:
        suspects = [number for number in dead.tasks if work.folder.began(number).exists()] or list(dead.tasks)
        logger.warning("job %s ended early; its log is in %s", dead.job.job_id, work.folder.jobs)
        for number, task in dead.tasks.items():
            if number not in suspects:
                work.waiting.append(number)
                continue
            work.deaths[number] = work.deaths.get(number, 0) + 1
            if work.deaths[number] == 1:
                work.alone.append(number)
                continue
            death = f"its job died twice (killed? out of memory or time?); its log is in {work.folder.jobs}"
            yield (
                task,
                Failure(death, f"{death}\nThe end of the log of job {dead.job.job_id}:\n{_end_of_log(dead.job)}"),
            )


def _of_a_step(given: SlurmOptions) -> list[str]:
    """Return what srun has to be given again: since Slurm 22.05 a step does not have it from its job."""
    gpus = [f"--gpus-per-task={given.gpus_per_task}"] if given.gpus_per_task else []
    return [f"--cpus-per-task={given.cpus_per_task}", *gpus]


_PROCESSES = "processes"  # of jobs that have no name, as they are on this machine


def _queued(name: str, form: str = "%i", but: str = "\0") -> set[str] | None:
    """Return the ids of the jobs of this name that wait or run; None where nobody knows.

    Args:
        form: of a line of squeue.
        but: the end of lines that do not count.
    """
    command = ["squeue", "--noheader", "--array", f"--name={name}", f"--format={form}"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode:
        logger.warning("squeue does not answer: %s", found.stderr.strip())
        return None
    return {line for line in found.stdout.splitlines() if not line.endswith(but)}


def _end_of_log(job: Any) -> str:
    texts = [text for text in (job.stdout(), job.stderr()) if text]
    return "\n".join(texts)[-_TAIL:] or "(empty)"


def _end_processes(root: Path) -> None:
    """Kill the processes of jobs on this machine: each is a controller of submitit with its tasks."""
    with suppress(FileNotFoundError):
        for line in (root / _PROCESSES).read_text().split():
            _kill_if_of(int(line), root)


def _kill_if_of(process: int, root: Path) -> None:
    """Kill a controller and its children, unless the number is now of another process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        if os.fsencode(root) not in Path(f"/proc/{process}/cmdline").read_bytes():
            return
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for number in (process, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
