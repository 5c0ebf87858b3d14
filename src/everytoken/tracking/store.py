"""Where runs are kept: a server, or MLflow's SQLite file in the project, opened under a lock.

`TrackingStore` speaks through MLflow's client, which takes any address.
`everytoken.tracking.database.DatabaseStore` writes the same rows into a SQLite file and imports nothing of MLflow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everytoken.redaction import redacted
from everytoken.tracking.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # read when MLflow is imported
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",  # a connection that is kept follows a moved file
}
_PROMPT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password that is in the URL
}
_PROBE_SECONDS = 5.0
_TRIES = 4


@dataclass(frozen=True)
class Experiment:
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
        if found is None:
            return None
        return Experiment(found.experiment_id, found.artifact_location, found.lifecycle_stage)

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a RUNNING run and return its id."""
        return str(self.client.create_run(self.experiment_id, run_name=name, tags=dict(tags)).info.run_id)

    def has(self, run_id: str) -> bool:
        """Return whether the store has a run; its id is known nowhere else, so the address may have changed since."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def running(self, host: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield id and tags of every RUNNING run of a host."""
        query = f"attributes.status = 'RUNNING' and tags.`host.name` = '{host}'"
        yield from ((run.info.run_id, run.data.tags) for run in self.runs(query))

    def runs(self, query: str = "") -> Iterator[Run]:
        """Yield the runs that a query of MLflow finds, the newest first."""
        token, order = None, ["attributes.start_time DESC"]
        while True:
            page = self.client.search_runs([self.experiment_id], query, order_by=order, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

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
            case {"end": status, "time": end}:
                client.set_terminated(run_id, status, end)


def require_server(uri: str, origin: str) -> None:
    """Check that an http(s) server answers; any other URI passes.

    Raises:
        TrackingError: if it does not within 5 seconds, or answers that it is out of order (5xx).
    """
    if not uri.lower().startswith(("http:", "https:")):
        return
    with mlflow_environment():
        from mlflow.exceptions import MlflowException
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.rest_utils import http_request  # with the proxies, certificates and logins of MLflow itself

    shown = redacted(uri)
    remedy = (
        f"Start the server (mlflow server --host ... --port ...), or correct {origin}; without the environment "
        f"variable the address in mlflow.yml holds, and sqlite:///mlflow.db there needs no server."
    )
    try:
        credentials = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
        answer = http_request(  # type: ignore[no-untyped-call]
            credentials, "/health", "GET", max_retries=0, timeout=_PROBE_SECONDS, raise_on_status=False
        )
    except (MlflowException, OSError) as error:  # those of requests are OSErrors
        raise TrackingError(f"{shown}, from {origin}: no MLflow server answers. {remedy}") from error
    if answer.status_code >= 500:
        raise TrackingError(f"{shown}, from {origin}: the server is out of order, HTTP {answer.status_code}. {remedy}")


def persistent(call: Callable[[], _T]) -> _T:
    """Call again what failed, a few times within a second.

    Two processes that write at once can both find that a row is missing and both insert it; one of them fails.
    """
    for attempt in range(1, _TRIES):
        try:
            return call()
        except Exception:  # each kind of store has its own
            time.sleep(0.05 * 2**attempt)
    return call()


def reason(error: Exception) -> str:
    """Return the beginning of an error, without a password."""
    return redacted((str(error).splitlines() or [type(error).__name__])[0])[:160]


@contextlib.contextmanager
def prompt_answers() -> Iterator[None]:
    """Let MLflow fail within seconds where it would retry for minutes; what the environment sets holds."""
    with (
        quiet({"mlflow.store.db.utils": logging.CRITICAL}),  # prints a traceback of each error that it raises
        _environment({name: value for name, value in _PROMPT.items() if name not in os.environ}),
    ):
        yield


@contextlib.contextmanager
def quiet(levels: Mapping[str, int]) -> Iterator[None]:
    """Set the levels of loggers."""
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def mlflow_environment() -> contextlib.AbstractContextManager[None]:
    """Set what MLflow reads when it is imported and when it opens a database."""
    return _environment(_MLFLOW)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
