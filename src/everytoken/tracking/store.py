"""Where runs are kept: any address that MLflow's client takes.

`everytoken.tracking.database.DatabaseStore` writes the same rows into a SQLite file and imports nothing of MLflow.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everytoken.redaction import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

DISCARDED = "DISCARDED"
"""The end of a run that made nothing: it is deleted."""

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # read when MLflow is imported
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # of files of some kilobytes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # MLflow alone tries for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",  # a connection that is kept follows a moved file
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password that is in the URL
}
_LEVELS = {"alembic": logging.WARNING, "mlflow.store.db.utils": logging.CRITICAL}  # prints errors that it raises too


class Experiment(NamedTuple):
    """An experiment of MLflow: id, where its artifacts are, and whether it is "active"."""

    id: str
    artifacts: str
    stage: str


@dataclass(frozen=True)
class TrackingStore:
    """A store behind MLflow's client.

    Attributes:
        uri: the address, with the password that may be in it.
        shown: the address without it, relative to the project where it contains the database.
        experiment_id: of the experiment that takes the runs.
        backlogs: folder of what runs could not deliver.
    """

    uri: str
    shown: str
    experiment_id: str
    backlogs: Path

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client: its import takes seconds."""
        with mlflow_environment():
            from mlflow import MlflowClient

            return MlflowClient(self.uri)

    def experiment(self, name: str) -> Experiment | None:
        """Return the experiment of a name, or None."""
        found = self.client.get_experiment_by_name(name)
        return (
            found if found is None else Experiment(found.experiment_id, found.artifact_location, found.lifecycle_stage)
        )

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a RUNNING run and return its id."""
        return str(self.client.create_run(self.experiment_id, run_name=name, tags=dict(tags)).info.run_id)

    def status(self, run_id: str) -> str | None:
        """Return FINISHED, FAILED, KILLED, RUNNING, or "deleted"; None: the store has no such run."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_run(run_id).info
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return str(found.status if found.lifecycle_stage == "active" else found.lifecycle_stage)

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the experiment, the newest first."""
        token = None
        while token != "":
            page = self.client.search_runs(
                [self.experiment_id], order_by=["attributes.start_time DESC"], page_token=token
            )
            yield from page
            token = page.token or ""

    def send(self, run_id: str, record: Mapping[str, Any], files: Path) -> None:
        """Give the store one record (`everytoken.tracking.delivery`). What was sent before changes nothing.

        Args:
            run_id: of a run that the store has.
            files: folder with the content of its file. None there: it was sent by a process that was then killed.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        client = self.client
        match record:
            case {"metrics": points}:
                client.log_batch(run_id, metrics=[Metric(*point) for point in points])
            case {"params": values}:
                client.log_batch(run_id, params=[Param(*pair) for pair in values.items()])
            case {"tags": values}:
                client.log_batch(run_id, tags=[RunTag(*pair) for pair in values.items()])
            case {"dataset": dataset, "tags_of_dataset": values}:
                tags = [InputTag(*pair) for pair in values.items()]
                client.log_inputs(run_id, [DatasetInput(Dataset(**dataset), tags)])
            case {"file": name}:
                if (file := files / name).exists():
                    folder = Path(name).parent.as_posix()
                    client.log_artifact(run_id, str(file), None if folder == "." else folder)
            case {"model": model}:
                self._send_model(run_id, model)
            case {"end": str(status), "time": end} if status == DISCARDED:
                if self.status(run_id) != "deleted":
                    client.set_terminated(run_id, "FINISHED", end)
                    client.delete_run(run_id)
            case {"end": status, "time": end}:
                client.set_terminated(run_id, status, end)

    def _send_model(self, run_id: str, model: Mapping[str, Any]) -> None:
        """Create a logged model unless the run has one of this name; give it its metrics."""
        from mlflow.entities import LoggedModelOutput, Metric

        client, name = self.client, model["name"]
        of_run = f"source_run_id = '{run_id}' AND name = '{name}'"
        found = list(client.search_logged_models([self.experiment_id], filter_string=of_run))
        if not found:
            found = [client.create_logged_model(self.experiment_id, name, run_id, model["tags"], model["params"])]
        made = found[0]
        if str(made.status) != "READY":  # new, or of a process that was killed here
            outputs = client.get_run(run_id).outputs
            if outputs is None or made.model_id not in {output.model_id for output in outputs.model_outputs}:
                client.log_outputs(run_id, [LoggedModelOutput(made.model_id, model["step"])])
            client.finalize_logged_model(made.model_id, "READY")
        has = {(metric.key, metric.step) for metric in made.metrics or ()}
        metrics = [
            Metric(key, value, time, step, made.model_id, *model["dataset"])
            for key, value, time, step in model["metrics"]
            if (key, step) not in has
        ]
        if metrics:
            client.log_batch(run_id, metrics=metrics)


def reason(error: Exception) -> str:
    """Return the beginning of an error, without a password."""
    return redacted((str(error).splitlines() or [type(error).__name__])[0])[:300]


@contextmanager
def mlflow_environment() -> Iterator[None]:
    """Let MLflow fail within seconds, and print nothing of its own; what the environment sets already holds."""
    given = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    os.environ.update(given)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
