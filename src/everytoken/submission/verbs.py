"""Submit, ask for, and cancel a run: a process of this machine, or a job of Slurm that queues further ones."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from everytoken.locks import locked
from everytoken.shards import JobQueue, JobShape
from everytoken.submission.detached import end_detached, start_detached, work_in
from everytoken.submission.errors import SubmissionError
from everytoken.submission.records import CANCELLED, SUBMISSIONS, RunOrder, Submission, submissions_in

SubmissionState = Literal["queued", "running", "done", "ended early"]

_GRACE = 60.0  # seconds between SIGTERM and SIGKILL
_LOOK = 0.2

WorkOfRun = Callable[[Submission, RunOrder], Callable[[], None]]
"""Returns what the process of a submission calls; it travels there by pickle."""


def submit_run(data: Path, order: RunOrder, work: WorkOfRun, queue: JobQueue | None) -> Submission:
    """Submit a run, and return when it is queued or has started.

    Args:
        data: folder of the data that it makes, which no other submission may be making.
        queue: of Slurm; None: it runs in a process of this machine.

    Raises:
        SubmissionError: another submission of this data folder is not over.
        ShardsError: Slurm refuses the job.
    """
    root = data / SUBMISSIONS
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        before = submissions_in(data)
        for other in before[-1:]:
            if (state := submission_state(other, queue)) in ("queued", "running"):
                raise SubmissionError(
                    f"submission {other.number} of {data} is {state}. Wait for it (everytoken status), or end it "
                    "(everytoken cancel)"
                )
            if queue is not None and (group := other.group(queue)) is not None:
                shutil.rmtree(group.root, ignore_errors=True)
        submission = Submission(root, before[-1].number + 1 if before else 1)
        order = replace(order, jobs=None if queue is None else f"everytoken-run-{uuid4().hex[:12]}")
        submission.write_order(order)
        try:
            if queue is None:
                start_detached(work(submission, order), submission)
            else:
                _queue(submission, work(submission, order), queue)
        except BaseException:
            shutil.rmtree(submission.path)
            raise
    return submission


def _queue(submission: Submission, work: Callable[[], None], queue: JobQueue) -> None:
    group = submission.group(queue)
    assert group is not None, "it was ordered with a name"
    group.jobs.mkdir(parents=True)
    queue.submit(group, [_InJob(work, submission)], JobShape(1, 1, queue.options.cpus_per_task))


@dataclass(frozen=True)
class _InJob:
    """The main process of a run, in a job."""

    work: Callable[[], None]
    submission: Submission

    def __call__(self) -> None:
        """Do the work; what it says goes into the log."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which submitit ignores; a run lets it end in order
        with locked(self.submission.path), _output_in(self.submission.log):  # who asks for the state locks it, too
            self.submission.begin()
            if not work_in(self.work, self.submission):
                raise SystemExit(1)

    def checkpoint(self) -> Any:
        """Return what submitit queues again when the job is preempted or out of time: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@contextmanager
def _output_in(file: Path) -> Iterator[None]:
    """Append to a file what this process and those that it starts print."""
    with ExitStack() as before, file.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            kept = os.dup(stream.fileno())
            before.callback(os.close, kept)
            before.callback(os.dup2, kept, stream.fileno())
            before.callback(stream.flush)
            os.dup2(log.fileno(), stream.fileno())
        yield


def submission_state(submission: Submission, queue: JobQueue | None) -> SubmissionState:
    """Return how far a submission is."""
    if submission.is_running:
        return "running"
    if submission.done.exists():
        return "done"
    group = None if queue is None else submission.group(queue)
    # where squeue does not answer, a job whose end nobody has noted still waits
    if group is not None and queue is not None and not group.ended.exists():
        alive = queue.is_alive(group)
        if alive or (alive is None and not submission.error.exists()):
            return "queued"
    return "ended early"


def wait_for(submission: Submission, queue: JobQueue | None) -> SubmissionState:
    """Return how a submission ended, when it has."""
    while (state := submission_state(submission, queue)) in ("queued", "running"):
        time.sleep(_LOOK if queue is None or queue.is_local else queue.options.ask_every)
    return state


def cancel_run(submission: Submission, queue: JobQueue | None) -> bool:
    """End a submission with its workers and jobs; what is made stays. Return whether there was one to end."""
    if submission_state(submission, queue) not in ("queued", "running"):
        return False
    group = None if queue is None else submission.group(queue)
    if group is None or queue is None:
        end_detached([submission], _GRACE)
    else:
        queue.end(group)
    if queue is not None:
        queue.end_left()  # of a main process that was killed
    if not submission.done.exists():
        submission.fail(CANCELLED)
    return True
