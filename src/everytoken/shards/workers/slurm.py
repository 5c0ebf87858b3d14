"""The engine ``slurm``: slices of tasks as job arrays, through submitit. This is the side of the caller.

A map has a folder that the caller and all nodes see (`MapFolder`). The caller queues the slices as an array, reads
outcomes as they appear, and asks ``squeue`` which jobs are left. A job that is gone without all its outcomes has died:
the task that it was with runs again in a job of its own, and what it had not begun is cut into new slices. A task
whose job dies a second time is a `Failure`. Preempted jobs are queued again, by Slurm or by submitit, and go on.

Jobs have the name of their map. So a caller that stops cancels them, and those of a caller that was killed are
cancelled by the next one in the same folder (`everytoken.shards.workers.job_queue`).

Processes that need each other, as those of one training, run at once in one job of several nodes (`Slurm.together`).

``cluster: local`` runs the same path on this machine, with submitit's processes instead of Slurm's.
"""

from __future__ import annotations

import logging
import pickle
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from pydantic import ValidationError

from everytoken.shards.errors import Failure, ShardsError
from everytoken.shards.workers.job_queue import TOGETHER, JobQueue, JobShape, SlurmOptions, end_of_log
from everytoken.shards.workers.slurm_slice import JobSlice, MapFolder

logger = logging.getLogger(__name__)

_LOOK = 0.2


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
    def queue(self) -> JobQueue:
        """Where its jobs are queued."""
        return JobQueue(self.options)

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
        with self.queue.new_group("") as group:
            folder = MapFolder(group)
            folder.make()
            folder.function.write_bytes(pickled)
            work = _Map(folder, deque(range(len(tasks))), tasks)
            while work.waiting or work.alone or work.flying:
                self._queue(work)
                self._find_gone(work)
                yield from self._finished(work)
                if work.flying:
                    time.sleep(_LOOK)

    def together(self, function: Callable[[], None], shape: JobShape, look: Callable[[], bool]) -> str:
        """Run a function in several processes at once: one job. Return the end of the log of its first process.

        A caller that stops, or has seen all, cancels the job; its processes get SIGTERM, and time to end.

        Args:
            function: called by each process; ``checkpoint`` of it is called when the job is preempted or out of time,
                as submitit does.
            look: called again and again; returns whether it has seen all that there is to see.

        Raises:
            ShardsError: ``sbatch`` refuses the job.
        """
        with self.queue.new_group(TOGETHER, gently=True) as group:
            jobs = self.queue.submit(group, [function], shape)
            logger.info("job %s: %d nodes with %d processes each", jobs[0].job_id, shape.nodes, shape.tasks)
            asked, gone_since = float("-inf"), None
            while not look():
                now = time.monotonic()
                if gone_since is None and (self.queue.is_local or now - asked >= self.options.ask_every):
                    asked, gone_since = now, now if self.queue.gone(group, jobs) else None
                if gone_since is not None and now - gone_since >= self._patience:
                    look()
                    break
                time.sleep(_LOOK)
            return end_of_log(jobs[0])

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
        jobs = self.queue.submit(work.folder.group, slices)
        for job, numbers in zip(jobs, cut, strict=True):
            work.flying.append(_Flying(job, {number: work.tasks[number] for number in numbers}))

    def _room(self, work: _Map) -> int:
        if self.queue.is_local:  # which has no arrays
            return self.options.workers - len(work.flying)
        return 0 if work.flying else self.options.array_limit

    def _find_gone(self, work: _Map) -> None:
        """Note which jobs have ended."""
        now = time.monotonic()
        if not self.queue.is_local:
            if now - work.asked < self.options.ask_every:
                return
            work.asked = now
        ended = self.queue.gone(work.folder.group, [one.job for one in work.flying]) or []
        gone = [one for one in work.flying if one.job in ended]
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
        return 0 if self.queue.is_local else self.options.patience

    def _after_death(self, work: _Map, dead: _Flying) -> Iterator[tuple[Any, Any]]:
        suspects = [number for number in dead.tasks if work.folder.began(number).exists()] or list(dead.tasks)
        logger.warning("job %s ended early; its log is in %s", dead.job.job_id, work.folder.group.jobs)
        for number, task in dead.tasks.items():
            if number not in suspects:
                work.waiting.append(number)
                continue
            work.deaths[number] = work.deaths.get(number, 0) + 1
            if work.deaths[number] == 1:
                work.alone.append(number)
                continue
            death = f"its job died twice (killed? out of memory or time?); its log is in {work.folder.group.jobs}"
            yield (
                task,
                Failure(death, f"{death}\nThe end of the log of job {dead.job.job_id}:\n{end_of_log(dead.job)}"),
            )
