"""Train a job in this process, alone or as one of several. Importing this loads no torch."""

from __future__ import annotations

from collections.abc import Callable

from everytoken.training.run.job import TrainingJob
from everytoken.training.run.progress_channel import Listeners, OnFigures, OnRecords


def run_job(
    job: TrainingJob,
    on_records: OnRecords,
    on_figures: OnFigures | None = None,
    is_stopping: Callable[[], bool] | None = None,
) -> None:
    """Train to the last step in this process; as one of several where torch.distributed is up.

    Goes on from the newest checkpoint of the run that verifies, and ends with a checkpoint of the last step: a run that
    was cut anywhere has, on the same machine, the bytes of one that was not. A run that is finished is left as it is.

    Args:
        on_records: gets the records of steps in batches every few seconds, and the rest at the end; in rank 0 alone.
        on_figures: gets the records of each look at the held-out documents, and of each evaluation on tasks.
        is_stopping: asked after each step, by every process or by none: whether this one was told to stop.

    Raises:
        TrainingStopped: one was.
        TrainingError: the job contradicts itself or the files that it names.
        NonFiniteError: too many steps in a row were not finite.
        CheckpointError: checkpoints are of another run, or none of them verifies, or one cannot be written.
    """
    from everytoken.training.run.session import train_here

    train_here(job, Listeners(on_records, on_figures), is_stopping)
