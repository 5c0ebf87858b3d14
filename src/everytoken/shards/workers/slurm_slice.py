"""A slice: the tasks of a map that one job of Slurm runs. This is the side of the job.

The folder of a map has the function, the tasks of each slice, and a file for each outcome. An outcome is there as soon
as its task is done. So a job that dies costs only the task that it was with, and a job that is queued again after a
preemption runs what is left.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.shards.atomic import atomic_file
from everytoken.shards.workers.attempts import ONE_CORE, attempt
from everytoken.shards.workers.job_queue import JobGroup


@dataclass(frozen=True)
class MapFolder:
    """The files of a map that its jobs share."""

    group: JobGroup

    @property
    def root(self) -> Path:
        """The folder."""
        return self.group.root

    @property
    def function(self) -> Path:
        """The pickled function. Its module is found in the folder of the run, or by PYTHONPATH, which Kedro sets."""
        return self.root / "function.pickle"

    def tasks(self, number: int) -> Path:
        """Return the pickled numbers and tasks of a slice."""
        return self.root / "slices" / f"{number}.pickle"

    def began(self, task: int) -> Path:
        """Return the file that is there since a task began."""
        return self.root / "began" / str(task)

    def outcome(self, task: int) -> Path:
        """Return the file with the pickled outcome of a task."""
        return self.root / "outcomes" / f"{task}.pickle"

    def make(self) -> None:
        """Make the folders."""
        for path in (self.tasks(0), self.began(0), self.outcome(0)):
            path.parent.mkdir(parents=True, exist_ok=True)


def one_gpu(environment: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return ``CUDA_VISIBLE_DEVICES`` of a task: of the devices that its job sees, the one of its number on the node.

    Slurm gives a task its own device (``--gpus-per-task``) where it constrains devices; elsewhere a task sees all.
    """
    devices = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return {"CUDA_VISIBLE_DEVICES": devices[local_rank % len(devices)]} if len(devices) > 1 else {}


class _Leaving:
    """Whether the job was told to end and is queued again."""

    asked = False


@dataclass(frozen=True)
class JobSlice:
    """Runs the tasks of one slice: what a job calls. Several processes of a job share the slice."""

    folder: MapFolder
    number: int
    has_gpu: bool = False

    def __call__(self) -> None:
        """Run the tasks that have no outcome yet."""
        from submitit import JobEnvironment

        job = JobEnvironment()
        os.environ.update(ONE_CORE)
        if self.has_gpu:
            os.environ.update(one_gpu(os.environ, job.local_rank))
        function = pickle.loads(self.folder.function.read_bytes())
        tasks = pickle.loads(self.folder.tasks(self.number).read_bytes())
        for number, task in tasks[job.global_rank :: job.num_tasks]:
            if not self.folder.root.exists() or self.folder.group.ended.exists():
                return
            if not self.folder.outcome(number).exists():
                self.folder.began(number).touch()
                outcome = attempt(function, task, ends_run=())
                if _Leaving.asked:  # the outcome is the exit that ended the task
                    raise SystemExit(1)
                with atomic_file(self.folder.outcome(number)) as temporary:
                    temporary.write_bytes(pickle.dumps(outcome))

    def checkpoint(self) -> Any:
        """Return what submitit queues again when the job is preempted or out of time: the slice itself."""
        from submitit.helpers import DelayedSubmission

        _Leaving.asked = True
        return DelayedSubmission(self)
