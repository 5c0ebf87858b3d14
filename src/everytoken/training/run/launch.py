"""Train a job: here, in several processes, or in a job of Slurm; go on from the newest checkpoint of the run.

Several processes are started by a process of its own, which waits for them (`everytoken.training.run.worker`). What
they did comes back through files in the job's live folder: records as lines of JSON, and the error of a process that
failed. They end when this process ends, however it ends: they hold the other end of a pipe. Importing this loads no
torch.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from everytoken.shards import JobShape, Slurm, StoreBusy, sole_writer
from everytoken.training.errors import CheckpointError, NonFiniteError, TrainingError
from everytoken.training.run.job import TrainingJob, write_job
from everytoken.training.run.one_process import run_job
from everytoken.training.run.progress_channel import RECORDS_FILE, Listeners, OnFigures, OnRecords, Tail
from everytoken.training.step import HeldOutRecord, StepRecord, TaskRecord

if TYPE_CHECKING:
    from everytoken.training.checkpoints import CheckpointStore

JOB_FILE = "job.json"
_TOLD = "processes_"  # how folders begin in which the processes of one launch tell

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 40.0  # everytoken.training.run.worker gives a process 30 to end by itself

_KINDS = {kind.__name__: kind for kind in (CheckpointError, NonFiniteError)}


def launch(
    job: TrainingJob, on_records: OnRecords, on_figures: OnFigures | None = None, engine: Slurm | None = None
) -> None:
    """Train to the last step with as many processes as the job says; arguments and errors as of `run_job`.

    Without an engine, several nodes are not started from one of them: raises ``TrainingError`` with the command to run
    on each, unless the run is finished.

    Args:
        engine: runs the processes of all nodes in one job of Slurm.
    """
    if engine is not None:
        job.live_folder.mkdir(parents=True, exist_ok=True)
        with _only_parent(job):
            if not _is_finished(job):
                write_job(job.live_folder / JOB_FILE, job)
                _launch_in_job(job, on_records, on_figures, engine)
        return
    if job.distribution.processes * job.distribution.nodes == 1:
        with _only_parent(job) if job.live_folder.exists() else nullcontext():
            run_job(job, on_records, on_figures)
        return
    job.live_folder.mkdir(parents=True, exist_ok=True)
    with _only_parent(job):
        write_job(job.live_folder / JOB_FILE, job)
        if job.distribution.nodes > 1:
            _expect_finished(job)
        else:
            _launch_here(job, on_records, on_figures)


@contextmanager
def _only_parent(job: TrainingJob) -> Iterator[None]:
    """Be the only one that starts processes of this run, and remove what those that are dead told each other."""
    try:
        with sole_writer(job.live_folder):
            _remove_told(job.live_folder)
            try:
                yield
            finally:
                _remove_told(job.live_folder)
    except StoreBusy as error:
        raise CheckpointError(f"{job.folder}: another process trains this run; wait for it, or stop it") from error


def _remove_told(live_folder: Path) -> None:
    for folder in live_folder.glob(f"{_TOLD}*"):
        # a process whose parent was killed may still be ending, and write there: then the next launch removes the rest
        shutil.rmtree(folder, ignore_errors=True)


def _launch_here(job: TrainingJob, on_records: OnRecords, on_figures: OnFigures | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix=_TOLD, dir=job.live_folder))
    tail, listeners = Tail(folder / RECORDS_FILE), Listeners(on_records, on_figures, seconds=math.inf)
    environment = os.environ | {"OMP_NUM_THREADS": str(job.training.execution.threads)}
    worker = [sys.executable, "-m", "everytoken.training.run.worker", str(job.live_folder / JOB_FILE)]
    command = [*worker, "--start", str(folder)]
    with (
        _terminable(),
        subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment) as child,
    ):
        try:
            while child.poll() is None:
                _wait(child)
                _deliver(tail, listeners)
        finally:
            _end(child)
            _deliver(tail, listeners)
    if child.returncode:
        raise _error(folder, child.returncode)


def _launch_in_job(job: TrainingJob, on_records: OnRecords, on_figures: OnFigures | None, engine: Slurm) -> None:
    """Run the processes in one job, and hear of them until it has ended."""
    from everytoken.training.run.slurm_process import ENDED_FILE, ProcessInJob

    folder = Path(tempfile.mkdtemp(prefix=_TOLD, dir=job.live_folder))
    tail, listeners = Tail(folder / RECORDS_FILE), Listeners(on_records, on_figures, seconds=math.inf)
    processes, is_on_gpus = job.distribution.processes, job.distribution.device == "cuda"
    cpus = max(engine.options.cpus_per_task, job.training.execution.threads)

    def look() -> bool:
        _deliver(tail, listeners)
        return (folder / ENDED_FILE).exists() or any(folder.glob("error_*.json"))

    log = engine.together(
        ProcessInJob(job.live_folder / JOB_FILE, folder),
        JobShape(job.distribution.nodes, processes, cpus, gpus=processes if is_on_gpus else 0),
        look,
    )
    if any(folder.glob("error_*.json")):
        raise _error(folder, 1)
    if not (folder / ENDED_FILE).exists():
        raise TrainingError(
            "the job of the training ended early (killed? out of memory, or of time more often than engine.requeues?). "
            f"The same command goes on from its newest checkpoint. The end of its log:\n{log}"
        )


def _is_finished(job: TrainingJob) -> bool:
    """Return whether the newest checkpoint is that of the last step; then its copy is complete, too."""
    store, done = _store_and_steps(job)
    if done == job.training.steps:
        store.complete_mirror()
    return done == job.training.steps


def _store_and_steps(job: TrainingJob) -> tuple[CheckpointStore, int]:
    from everytoken.training.checkpoints import CheckpointStore

    store = CheckpointStore(job.folder, mirror=job.mirror, milestone_steps=job.checkpoints.milestone_steps)
    newest = store.newest()
    return store, 0 if newest is None else newest.step


def _expect_finished(job: TrainingJob) -> None:
    if _is_finished(job):
        return
    raise TrainingError(
        f"{_store_and_steps(job)[1]} of {job.training.steps} steps are done, and {job.distribution.nodes} "
        f"nodes cannot be started from one; {nodes_command(job, job.live_folder / JOB_FILE)}\nthen the same command "
        "again"
    )


def nodes_command(job: TrainingJob, path: Path) -> str:
    """Return what to run on each of several machines, which all find the job at ``path``.

    Their rendezvous is torch's static one: the one that it finds nodes with unpickles what anybody sends.
    """
    nodes, processes = job.distribution.nodes, job.distribution.processes
    return (
        f"run this on each of {nodes} machines in a network that is trusted, with HOST the first of them and N from 0 "
        f"there to {nodes - 1} on the last:\n"
        f"torchrun --nnodes {nodes} --nproc-per-node {processes} --node-rank N --master-addr HOST --master-port 29500 "
        f"-m everytoken.training.run.worker {shlex.quote(str(path.resolve()))}"
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exit through ``finally`` where nobody else has, so that the children end too."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_SECONDS_BETWEEN_LOOKS)
    except subprocess.TimeoutExpired:
        return


def _deliver(tail: Tail, listeners: Listeners) -> None:
    for record in tail.new():
        if isinstance(record, StepRecord):
            listeners.add(record)
        elif isinstance(record, HeldOutRecord | TaskRecord):
            listeners.figures([record])
    listeners.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the launcher and its processes, if they have not ended yet: they look at the pipe."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _error(folder: Path, code: int) -> TrainingError:
    """Return the error of the process that failed first; those that lost it fail afterwards, each in its way."""
    found: list[dict[str, Any]] = [json.loads(path.read_bytes()) for path in folder.glob("error_*.json")]
    if not found:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return TrainingError(f"the launcher of the training processes ended with {how}; see what it wrote to stderr")
    first = min(found, key=lambda error: (not error["expected"], error["time"]))
    kind = _KINDS.get(first["type"], TrainingError) if first["expected"] else TrainingError
    result: TrainingError = kind(f"{first['message']} (in training process {first['rank']})")
    return result
