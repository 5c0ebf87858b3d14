"""What was submitted, and its files.

::

    submissions/00001/order.json   environment, pipelines, parameters, engine
    submissions/00001/log          what the run said
    submissions/00001/pid          of its process on this machine
    submissions/00001/done         there once it has ended well
    submissions/00001/error        why it ended early
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everytoken.shards import JobGroup, JobQueue, write_text
from everytoken.submission.detached import DetachedFolder
from everytoken.submission.errors import SubmissionError

SUBMISSIONS = "submissions"
"""Folder of submissions in a data folder."""

CANCELLED = "cancelled; everytoken rerun resumes it"
"""Why a submission ended that was cancelled."""


TRIAL = "submit_test"
"""Folder of the newest trial in a data folder. It is a data folder itself."""


@dataclass(frozen=True)
class TrialRun:
    """What of a run is tried on its first parts.

    Attributes:
        left_out: names of the pipelines and nodes that do not.
        params: what it changes, as ``--params`` takes it.
    """

    data: str
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]
    params: str


@dataclass(frozen=True)
class RunOrder:
    """What is to be run.

    Attributes:
        params: as ``--params`` takes them.
        jobs: name of the jobs of Slurm that it has; None: it is a process of this machine.
        trial: of its first parts; None: all of it is run.
    """

    environment: str | None
    pipelines: tuple[str, ...]
    params: str
    jobs: str | None = None
    trial: TrialRun | None = None

    @property
    def arguments(self) -> list[str]:
        """Options of ``kedro run``."""
        if self.trial is None:
            return self._options(self.pipelines, self.params)
        params = ",".join(filter(None, [self.params, self.trial.params]))
        feeding = tuple(dict.fromkeys(node.partition(".")[0] for node in self.trial.nodes))
        return [*self._options(feeding if self.pipelines else (), params), "--nodes", ",".join(self.trial.nodes)]

    @property
    def command(self) -> str:
        """The command that does the same; of a whole run, in the foreground."""
        verb = ("kedro", "run") if self.trial is None else ("everytoken", "submit-test")
        return shlex.join([*verb, *self._options(self.pipelines, self.params)])

    def _options(self, pipelines: tuple[str, ...], params: str) -> list[str]:
        options = {"--env": self.environment, "--pipelines": ",".join(pipelines), "--params": params}
        return [word for name, value in options.items() if value for word in (name, value)]

    @staticmethod
    def read(found: Mapping[str, Any]) -> RunOrder:
        """Return an order of what ``asdict`` and JSON made of one."""
        trial = found.get("trial")
        if trial is not None:
            trial = TrialRun(**{**trial, "nodes": tuple(trial["nodes"]), "left_out": tuple(trial["left_out"])})
        return RunOrder(**{**found, "pipelines": tuple(found["pipelines"]), "trial": trial})


@dataclass(frozen=True)
class Submission(DetachedFolder):
    """A run that was submitted; ``root`` is the folder of all."""

    root: Path
    number: int

    @property
    def path(self) -> Path:
        """Folder of its files."""
        return self.root / f"{self.number:05d}"

    @property
    def done(self) -> Path:
        """There once the run has ended well."""
        return self.path / "done"

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody ended it."""
        return self.error.exists() and self.why_ended() == CANCELLED

    @property
    def _order(self) -> Path:
        return self.path / "order.json"

    def begin(self) -> None:
        """Remove what the last process left, before the next one starts."""
        super().begin()
        self.done.unlink(missing_ok=True)

    def order(self) -> RunOrder:
        """Return what was submitted.

        Raises:
            SubmissionError: its file is damaged.
        """
        try:
            return RunOrder.read(json.loads(self._order.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SubmissionError(
                f"{self._order} is no order of a submission ({error}). Remove {self.path}, and submit"
            ) from error

    def write_order(self, order: RunOrder) -> None:
        """Write what is submitted."""
        self.path.mkdir(parents=True)
        write_text(self._order, json.dumps(asdict(order), indent=1) + "\n")

    def group(self, queue: JobQueue) -> JobGroup | None:
        """Return the jobs of Slurm that it has; None: it has none."""
        name = self.order().jobs
        folder = Path(queue.options.folder).absolute() / SUBMISSIONS
        return None if name is None else JobGroup(folder / name, name, gently=True)


def submissions_in(data: Path) -> list[Submission]:
    """Return what was submitted in a data folder, by number."""
    root = data / SUBMISSIONS
    numbers = sorted(int(path.name) for path in root.glob("[0-9]*") if path.name.isdigit())
    return [Submission(root, number) for number in numbers]
