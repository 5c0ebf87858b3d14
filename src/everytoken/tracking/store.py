"""Where runs are kept: the MLflow store of the project, opened once under a lock, and tidied of runs that died.

By default a SQLite file and a folder of artifacts in the project (both named in ``conf/base/mlflow.yml``);
the environment variable ``MLFLOW_TRACKING_URI`` sends runs elsewhere. MLflow writes the absolute location of
the artifacts into its database, so a project folder that was moved or copied would go on writing to its old
place; opening the store notices and corrects that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from everytoken.redaction import hide_secrets_of, redact_output
from everytoken.shards import fsync_file, fsync_folder
from everytoken.tracking import environment
from everytoken.tracking.backlog import FOLDER, waiting
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.store_health import (
    SQLITE,
    persistent,
    require_server,
    require_writable,
    sqlite_file,
    sqlite_uri,
    without_password,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_PROMPT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print a password that is in the URL
}
_SERVERS = ("http:", "https:", "databricks")  # a server decides itself where its artifacts lie


class TrackingSettings(BaseModel):
    """The whole of ``mlflow.yml``; relative paths start at the project folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    tracking_uri: str
    artifacts: str


@dataclass(frozen=True)
class TrackingStore:
    """An open store: the client, its address, and the experiment that takes the runs.

    Attributes:
        client: of MLflow.
        uri: the address, with the password that may be in it.
        shown: the address without it, relative to the project where it contains the database.
        experiment_id: of the experiment.
        backlogs: folder of what runs could not deliver.
    """

    client: MlflowClient
    uri: str
    shown: str
    experiment_id: str
    backlogs: Path


def open_store(project: Path, settings: TrackingSettings) -> TrackingStore:
    """Open the store and the experiment, and create what is missing; safe for several processes at once.

    Raises:
        TrackingError: if the experiment was deleted, or keeps its artifacts elsewhere than ``settings`` says, or
        if the store cannot be reached, read or written.
    """
    uri = tracking_uri(project, settings)
    hide_secrets_of(uri)
    redact_output()
    _import_mlflow()
    require_server(uri, uri_origin())
    try:
        return _open(project, settings, uri)
    except TrackingError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, drivers and plugins each raise what they like
        said = without_password((str(error).splitlines() or [""])[0].rstrip("."))
        if (database := sqlite_file(uri)) and _is_half_made(database):
            raise TrackingError(
                f"{database}: the process that created this database ended before it was complete: {said}. "
                f"It contains no run: move it away or delete it, and the next run creates a complete one."
            ) from error
        raise TrackingError(
            f"{without_password(uri)}, from {uri_origin()}: MLflow cannot open it: {type(error).__name__}: {said}. "
            f"Correct the address (sqlite:///mlflow.db, or the http:// of a server), or fix what it names: file and "
            f"folder have to be writable, a damaged database to be replaced by a backup or moved away, one of another "
            f"MLflow version to be upgraded with 'mlflow db upgrade'."
        ) from error


def require_reachable(project: Path, settings: TrackingSettings) -> None:
    """Check that the server answers, if runs go to one; nothing is opened.

    Raises:
        TrackingError: if it does not.
    """
    uri = tracking_uri(project, settings)
    hide_secrets_of(uri)
    _import_mlflow()
    require_server(uri, uri_origin())


def _open(project: Path, settings: TrackingSettings, uri: str) -> TrackingStore:
    database = sqlite_file(uri)
    with _locked(database), _quiet():
        if database is not None:
            require_writable(database)
        client = _client(uri)
        found = client.get_experiment_by_name(settings.experiment)
        location = _artifact_location(project, settings, uri)
        if found is None:
            experiment_id = _create_experiment(client, settings.experiment, location)
        elif found.lifecycle_stage != "active":
            raise TrackingError(
                f"experiment {settings.experiment!r} is deleted in {without_password(uri)}. Restore it with "
                f"'mlflow experiments restore --experiment-id {found.experiment_id}', or name another in mlflow.yml."
            )
        else:
            experiment_id = found.experiment_id
            if location and database and database.is_relative_to(project) and found.artifact_location != location:
                _relocate(database, experiment_id, found.artifact_location, location, project / settings.artifacts)
    return TrackingStore(client, uri, _shown(project, uri), experiment_id, project / FOLDER)


def _shown(project: Path, uri: str) -> str:
    database = sqlite_file(uri)
    if database is not None and database.is_relative_to(project):
        return f"{SQLITE}{database.relative_to(project).as_posix()}"
    return without_password(uri)


def tracking_uri(project: Path, settings: TrackingSettings) -> str:
    """Return the address in use: ``MLFLOW_TRACKING_URI`` as MLflow itself reads it, else that of ``mlflow.yml``."""
    given = os.environ.get(URI_VARIABLE)
    if given:
        return given
    if not settings.tracking_uri.startswith(SQLITE):
        return settings.tracking_uri
    return sqlite_uri(project, settings.tracking_uri.removeprefix(SQLITE))


def uri_origin() -> str:
    """Return where the address in use was given, for messages."""
    return f"the environment variable {URI_VARIABLE}" if os.environ.get(URI_VARIABLE) else "tracking_uri in mlflow.yml"


def close_dead_runs(store: TrackingStore) -> list[str]:
    """Mark as KILLED every RUNNING run of this host whose process is gone, and return their ids.

    Whatever became of a run with a backlog, the backlog says it.
    """
    host = environment.machine()["host.name"]
    dead, told = [], {path.stem for path in waiting(store.backlogs)}
    page_token = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id],
            f"attributes.status = 'RUNNING' and tags.`host.name` = '{host}'",
            page_token=page_token,
        )
        dead += [run.info.run_id for run in page if run.info.run_id not in told and environment.is_dead(run.data.tags)]
        page_token = page.token
        if not page_token:
            break
    for run_id in dead:
        why = "the process ended without a word (SIGKILL, out of memory or power)"
        persistent(partial(store.client.set_tag, run_id, "error", why))  # others may close it at the same time
        persistent(partial(store.client.set_terminated, run_id, "KILLED"))
        logger.warning("Run %s was left RUNNING by a process that is gone: marked KILLED", run_id)
    return dead


@contextlib.contextmanager
def prompt_answers() -> Iterator[None]:
    """Let MLflow fail within seconds where it would retry for minutes; what the environment sets holds."""
    logger_of_errors = logging.getLogger("mlflow.store.db.utils")  # prints a traceback of each error that it raises
    level = logger_of_errors.level
    logger_of_errors.setLevel(logging.CRITICAL)
    try:
        with _environment({name: value for name, value in _PROMPT.items() if name not in os.environ}):
            yield
    finally:
        logger_of_errors.setLevel(level)


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


def _import_mlflow() -> None:
    with _environment({"MLFLOW_DISABLE_TELEMETRY": "true"}):  # MLflow reads it when it is imported
        # imported here: it costs over a second, and `kedro --help` needs none of it
        import mlflow  # noqa: F401


def _client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    database = sqlite_file(uri)
    if database is None:
        return MlflowClient(uri)
    with _environment({"MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}):  # a kept connection follows a moved file
        if database.stat().st_size == 0:
            _create(database)
        return MlflowClient(uri)


def _create(database: Path) -> None:
    """Let MLflow create its tables in a temporary folder, then take the file: a kill leaves no half-made database."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    place = database.resolve()  # a link stays one
    folder = place.with_name(place.name + ".tmp")  # a folder: SQLite puts its journals next to the file
    shutil.rmtree(folder, ignore_errors=True)  # of a creation that was killed; we hold the lock
    folder.mkdir()
    try:
        new = folder / place.name
        # without MLflow's registry, which keeps one store for each address for ever
        SqlAlchemyStore(sqlite_uri(new, ""), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        fsync_file(new)
        new.replace(place)
        fsync_folder(place.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_half_made(database: Path) -> bool:
    """Return whether MLflow began to create its tables, but did not come to the end, where it adds an experiment."""
    if not database.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
            return bool(connection.execute("SELECT count(*) FROM experiments").fetchone()[0] == 0)
    except sqlite3.Error:  # no database of MLflow
        return False


def _create_experiment(client: MlflowClient, name: str, location: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return client.create_experiment(name, location)
    except MlflowException as error:
        found = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return found.experiment_id  # on a server, where no lock of ours helps, another process was faster


def _artifact_location(project: Path, settings: TrackingSettings, uri: str) -> str | None:
    if uri.startswith(_SERVERS):
        return None
    if "://" in settings.artifacts:
        return settings.artifacts
    return (project / settings.artifacts).as_uri()


def _relocate(database: Path, experiment_id: str, old: str, new: str, folder: Path) -> None:
    """Rewrite the artifact locations of one experiment after the project folder was moved or copied.

    That is what happened if the old place ends as the new one does (``/mlartifacts``) and the artifacts came along.
    """
    if not old.endswith("/" + new.rpartition("/")[2]) or not folder.is_dir():
        raise TrackingError(
            f"{database}: the experiment keeps its artifacts in {old}, mlflow.yml says {new}. MLflow fixes the place "
            f"when an experiment is created: set 'artifacts' back, bring the artifacts to {folder}, or name another "
            f"experiment."
        )
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (new, experiment_id))
        connection.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
            (new, len(old) + 1, experiment_id, len(old) + 1, old + "/"),
        )
    logger.warning("The project has moved: artifacts of its runs are now looked for in %s, no longer in %s", new, old)


@contextlib.contextmanager
def _locked(database: Path | None) -> Iterator[None]:
    """Hold ``<database>.lock``: two processes that both find no database would both create its tables."""
    if database is None:
        yield
        return
    import fcntl

    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(database.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by the death of the process
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep quiet about the tables of the database: forty lines of migrations at the first run."""
    names = ("alembic", "mlflow.store.db.utils")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
