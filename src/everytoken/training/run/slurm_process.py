"""One process of a training that a job of Slurm runs, on one node or several. Importing this loads no torch.

SIGUSR2, which submitit lets Slurm send before the time is out and where a job is preempted, and SIGTERM, which ends a
job, are told to all processes after the step that they are in. They write a checkpoint of it. After SIGUSR2 the job is
queued again; after SIGTERM that is Slurm's decision.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.training.errors import TrainingError, TrainingStopped
from everytoken.training.run.job import read_job
from everytoken.training.run.one_process import run_job
from everytoken.training.run.progress_channel import RECORDS_FILE, append_records
from everytoken.training.run.worker import LOOPBACK, leave, run_as_one, tell_error

ENDED_FILE = "ended"
"""There once the last step is done and saved."""

_PORTS = 20_000, 10_000  # first of those that a job may have, and how many there are


@dataclass(frozen=True)
class ProcessInJob:
    """What submitit runs in each process of the job.

    Attributes:
        job: JSON file of the `everytoken.training.run.job.TrainingJob`.
        told: folder where the starter looks for records and errors.
    """

    job: Path
    told: Path

    def __call__(self) -> None:
        """Train as one of the job's processes, and end this process."""
        from submitit import JobEnvironment

        asked: list[int] = []
        requeue: Any = signal.getsignal(signal.SIGUSR2)  # of submitit
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda number, frame: asked.append(number))
        here = JobEnvironment()
        job, rank = read_job(self.job), here.global_rank
        os.environ.update({"OMP_NUM_THREADS": str(job.training.execution.threads), **_who_and_where(here)})
        logging.getLogger().setLevel(logging.INFO if rank == 0 else logging.WARNING)
        on_records, is_stopping = partial(append_records, self.told / RECORDS_FILE), lambda: bool(asked)
        try:
            if here.num_tasks == 1:
                run_job(job, on_records, on_records, is_stopping)
            else:
                run_as_one(job, on_records, None, is_stopping)
        except TrainingStopped:
            if rank == 0 and signal.SIGUSR2 in asked:
                requeue(signal.SIGUSR2, None)  # which ends this process
        except BaseException as error:
            tell_error(self.told, rank, error)
            raise SystemExit(1) from None
        else:
            if rank == 0:
                (self.told / ENDED_FILE).touch()
        leave()

    def checkpoint(self) -> Any:
        """Return what submitit queues again: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _who_and_where(here: Any) -> dict[str, str]:
    """Return the variables that torch reads: which process this is, and where all of them meet.

    They meet at the first node; those of one node talk over the loopback interface alone.

    Args:
        here: submitit's view of the job.
    """
    first, count = _PORTS
    port = os.environ.get("MASTER_PORT", str(first + int(here.raw_job_id) % count))
    place = {"MASTER_ADDR": "127.0.0.1", **LOOPBACK} if here.num_nodes == 1 else {"MASTER_ADDR": _address(here)}
    each = here.num_tasks // here.num_nodes
    who = {"RANK": here.global_rank, "WORLD_SIZE": here.num_tasks, "LOCAL_RANK": here.local_rank}
    return {name: str(value) for name, value in who.items()} | {
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_PORT": port,
        **place,
    }


def _address(here: Any) -> str:
    """Return the name of the first node, or where only Slurm knows this name, its address.

    Raises:
        TrainingError: nobody knows it.
    """
    name = here.hostnames[0]
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        told = subprocess.run(["scontrol", "show", "node", name], check=False, capture_output=True, text=True).stdout
        if (found := re.search(r"NodeAddr=(\S+)", told)) is None:
            raise TrainingError(f"the address of node {name} is not known here; correct it in slurm.conf") from None
        return found[1]
    return str(name)
