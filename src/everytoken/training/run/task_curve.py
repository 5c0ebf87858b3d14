"""Tasks of lm-evaluation-harness on the model of a run that is under way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everytoken.benchmark_tasks import TaskError, open_tasks
from everytoken.generation import ChatFiles, NonFiniteLogits, OpenedModel
from everytoken.models import LanguageModel
from everytoken.progress import steps_done
from everytoken.tokens.tokenizer import open_tokenizer
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import PeriodicTasks
from everytoken.training.run.job import TrainingJob
from everytoken.training.step import TaskRecord, autocast

logger = logging.getLogger(__name__)


class TaskCurve:
    """The tasks of a run, opened before its first step, so that what is missing stops it there.

    Raises:
        TrainingError: the extra ``eval`` is not installed, the job has no tokenizer, or a task cannot be opened.
    """

    def __init__(self, job: TrainingJob, parameters: PeriodicTasks) -> None:
        if job.tokenizer is None:
            raise TrainingError("training.tasks needs a tokenizer, the job names none; give one, or tasks: null")
        self._job, self._parameters = job, parameters
        self._tokenizer = open_tokenizer(job.tokenizer, job.eos_token).tokenizer
        folder = parameters.task_folder
        with _in_words():
            self._tasks = open_tasks(parameters.names, None if folder is None else Path(folder), seed=job.training.seed)

    def point(self, model: LanguageModel, step: int) -> list[TaskRecord]:
        """Return the figures of each task after a step; none of a model that computes what is not finite.

        The model is in eval mode afterwards. Run it inside ``execution`` of the job's parameters.

        Raises:
            TrainingError: a task cannot be run.
        """
        opened = OpenedModel(self._job.run[:16], model, self._tokenizer, ChatFiles(), self._job.eos_id)
        device = model.output_weight().device.type
        options = self._parameters.model_dump(include={"limit", "batch_size", "max_new_tokens"})
        try:
            with _in_words(), autocast(self._job.training.execution, device):
                found = self._tasks.evaluate(opened, **options)
        except NonFiniteLogits as error:
            logger.warning("tasks after %s: %s; so their curves have no point there", steps_done(step), error)
            return []
        for name, result in found["tasks"].items():
            figures = ", ".join(f"{key} {value:.4f}" for key, value in result["metrics"].items())
            logger.info("after %s: %s %s", steps_done(step), name, figures)
        return [
            TaskRecord(step, name, one["metrics"], one["version"], one["sha256"], one["examples"], found["lm_eval"])
            for name, one in found["tasks"].items()
        ]


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except TaskError as error:
        raise TrainingError(f"optimisation.tasks: {error}") from error
