"""Jobs of Slurm through submitit: queued with the options of the engine, asked for, and ended.

Jobs have the name of their group, and a group has a folder. So jobs of a process that was killed are found again.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from everytoken.locks import locked
from everytoken.shards.errors import ShardsError

logger = logging.getLogger(__name__)

_LOOK = 0.2
_GRACE = 3.0
_MOST_SECONDS_TO_END = 120.0
_TAIL = 4000  # characters of a log in a traceback
_PREFIX = "everytoken-"
_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"}  # what a user says; all others are of the job around


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


@dataclass(frozen=True)
class JobGroup:
    """Jobs of one name, and the folder of their files.

    Attributes:
        gently: they get a minute or two to end, as they have something to write.
    """

    root: Path
    name: str
    gently: bool = False

    @property
    def jobs(self) -> Path:
        """Scripts and logs of the jobs."""
        return self.root / "jobs"

    @property
    def ended(self) -> Path:
        """The file that is there once the jobs are to end: one that starts all the same does nothing."""
        return self.root / "ended"

    @property
    def processes(self) -> Path:
        """Numbers of the processes of jobs that have no name, as they are on this machine."""
        return self.root / "processes"


@dataclass(frozen=True)
class JobShape:
    """How many processes a job has that run at once.

    Attributes:
        tasks: processes on each node.
        cpus: of each process.
        gpus: of each node; all its processes see them.
    """

    nodes: int
    tasks: int
    cpus: int
    gpus: int = 0


@dataclass(frozen=True)
class JobQueue:
    """Queues jobs, asks for them and ends them."""

    options: SlurmOptions

    @property
    def is_local(self) -> bool:
        """Whether jobs are processes of this machine."""
        return self.options.cluster == "local"

    @contextmanager
    def new_group(self, kind: str, *, gently: bool = False) -> Iterator[JobGroup]:
        """Give a group with a folder; its jobs have ended when the block has. End those of callers that were killed.

        Args:
            kind: begin of its name.
        """
        home = Path(self.options.folder).absolute()
        home.mkdir(parents=True, exist_ok=True)
        self.end_left()
        root = home / f"{_PREFIX}{kind}{uuid4().hex[:12]}"
        root.mkdir()
        with locked(root, wait=False):
            group = JobGroup(root, root.name, gently)
            group.jobs.mkdir()
            try:
                yield group
            finally:
                self.end(group)  # of one that has ended there are none

    def end_left(self) -> None:
        """End the jobs of callers that were killed, and remove their files."""
        for left in Path(self.options.folder).absolute().glob(f"{_PREFIX}*"):
            with suppress(BlockingIOError, FileNotFoundError), locked(left, wait=False):
                self.end(JobGroup(left, left.name, gently=left.name.startswith(f"{_PREFIX}{TOGETHER}")))
                shutil.rmtree(left, ignore_errors=True)

    def submit(
        self, group: JobGroup, functions: Sequence[Callable[[], Any]], shape: JobShape | None = None
    ) -> list[Any]:
        """Queue a job for each function, as one array; return submitit's jobs.

        Args:
            shape: of each job; None: as the options say.

        Raises:
            ShardsError: ``sbatch`` refuses them.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self._executor(group, shape)
        try:
            with _outside_of_jobs(), executor.batch():
                jobs = [executor.submit(function) for function in functions]
        except (FailedJobError, FailedSubmissionError) as error:
            raise ShardsError(
                f"sbatch refuses {len(functions)} jobs: {error}. Correct partition, account, minutes and array_limit "
                "of the engine (globals.yml or catalog); `sinfo` and `scontrol show config` show what there is"
            ) from error
        if self.is_local:
            with group.processes.open("a") as file:
                file.writelines(f"{job.job_id}\n" for job in jobs)
        return jobs

    def _executor(self, group: JobGroup, shape: JobShape | None) -> Any:
        given = self.options
        asked = shape or JobShape(1, given.tasks_per_job, given.cpus_per_task)
        if self.is_local:
            from submitit import LocalExecutor

            if asked.nodes > 1:
                raise ShardsError(f"engine.cluster is local, which is one node, and not {asked.nodes}. Give nodes: 1")
            local = LocalExecutor(group.jobs, max_num_timeout=given.requeues)
            gpus = asked.gpus if shape else given.gpus_per_task * given.tasks_per_job
            local.update_parameters(
                timeout_min=given.minutes, tasks_per_node=asked.tasks, gpus_per_node=gpus, setup=given.setup
            )
            return local
        from submitit import SlurmExecutor

        slurm = SlurmExecutor(group.jobs, max_num_timeout=given.requeues)
        options = {
            "job_name": group.name,
            "time": given.minutes,
            "nodes": asked.nodes,
            "ntasks_per_node": asked.tasks,
            "cpus_per_task": asked.cpus,
            "gpus_per_task": None if shape else given.gpus_per_task or None,
            "gpus_per_node": asked.gpus or None,
            "mem": None if given.memory_gb is None else f"{round(given.memory_gb * 1024)}M",
            "partition": given.partition,
            "account": given.account,
            "qos": given.qos,
            "constraint": given.constraint,
            "setup": given.setup or None,
            "array_parallelism": given.workers,
            "srun_args": _of_a_slice(given) if shape is None else _of_processes_together(shape),
            "additional_parameters": {"requeue": True, **given.sbatch},
        }
        slurm.update_parameters(**{name: value for name, value in options.items() if value is not None})
        return slurm

    def gone(self, group: JobGroup, jobs: Sequence[Any]) -> list[Any] | None:
        """Return those of the jobs that have ended; None where nobody knows."""
        if self.is_local:
            return [job for job in jobs if job.done()]
        queued = _queued(group.name)
        return None if queued is None else [job for job in jobs if job.job_id not in queued]

    def is_alive(self, group: JobGroup) -> bool | None:
        """Return whether a job of the group waits or runs; None where nobody knows."""
        if self.is_local:
            return any(True for _ in _controllers(group))
        queued = _queued(group.name)
        return None if queued is None else bool(queued)

    def end(self, group: JobGroup) -> None:
        """End the jobs of a group, and wait until they have ended."""
        with suppress(FileNotFoundError):
            group.ended.touch()
        if self.is_local:
            _end_processes(group)
            return
        started, told = time.monotonic(), False
        while _queued(group.name, "%i %t", but=" CG") and (passed := time.monotonic() - started) < _MOST_SECONDS_TO_END:
            _scancel(group, "--state=PENDING")
            if not group.gently or passed > _MOST_SECONDS_TO_END / 2:
                # outputs are atomic: there is nothing to wait for; Slurm alone would wait half a minute
                for options in [["--signal=KILL"], *([[]] if passed > _GRACE else [])]:
                    _scancel(group, *options)
            elif not told:
                told = _scancel(group, "--signal=TERM")  # without it Slurm kills after ``KillWait``
            time.sleep(_LOOK)


TOGETHER = "together-"
"""Begin of the kind of groups whose jobs have something to write when they end."""


def _scancel(group: JobGroup, *options: str) -> bool:
    command = ["scancel", f"--name={group.name}", *options]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hide the variables of the job that this process is in: ``sbatch`` and ``srun`` would take them as options."""
    hidden = ("SUBMITIT_", "SLURM_", "SLURMD_") if "SLURM_JOB_ID" in os.environ else ("SUBMITIT_",)
    names = [name for name in os.environ if name.startswith(hidden) and name not in _KEPT]
    of_job = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(of_job)


def _of_a_slice(given: SlurmOptions) -> list[str]:
    """Return what srun has to be given again: since Slurm 22.05 a step does not have it from its job."""
    gpus = [f"--gpus-per-task={given.gpus_per_task}"] if given.gpus_per_task else []
    return [f"--cpus-per-task={given.cpus_per_task}", *gpus]


def _of_processes_together(shape: JobShape) -> list[str]:
    return [f"--cpus-per-task={shape.cpus}", "--kill-on-bad-exit=1"]


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


def end_of_log(job: Any) -> str:
    """Return the last lines of the log of a job."""
    texts = [text for text in (job.stdout(), job.stderr()) if text]
    return "\n".join(texts)[-_TAIL:] or "(empty)"


def _end_processes(group: JobGroup) -> None:
    """Kill the processes of jobs on this machine: each is a controller of submitit with its tasks."""
    if group.gently:
        for process in _controllers(group):
            with suppress(ProcessLookupError, FileNotFoundError):
                # it hands the signal on; with ``setup`` it is the child of a shell
                is_shell = b"sh\0-c\0" in Path(f"/proc/{process}/cmdline").read_bytes()
                for number in _children(process) if is_shell else [process]:
                    os.kill(number, signal.SIGTERM)
        end = time.monotonic() + _MOST_SECONDS_TO_END / 2
        while any(True for _ in _controllers(group)) and time.monotonic() < end:
            time.sleep(_LOOK)
    for process in _controllers(group):
        tree = [process]
        for number in tree:
            tree += _children(number)
        for number in tree:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def _children(process: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _controllers(group: JobGroup) -> Iterator[int]:
    """Yield the processes of the group that live; a number may be of another process now."""
    if not group.processes.exists():
        return
    for line in group.processes.read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{line}/cmdline").read_bytes()
            if os.fsencode(group.root) in command or (not command and not _has_ended(line)):
                yield int(line)


def _has_ended(process: str) -> bool:
    """Return whether a process without a command line has ended, or is only about to start its program."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
