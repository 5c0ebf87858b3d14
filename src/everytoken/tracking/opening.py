"""The store of a project, found by ``mlflow.yml`` or the environment, and opened before any work.

MLflow writes the absolute location of the artifacts into its database.
A project folder that was moved or copied would write to its old place, so opening corrects the location.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from everytoken.locks import locked
from everytoken.redaction import hide_secrets_of, redact_output, redacted
from everytoken.tracking.database import (
    SQLITE,
    DatabaseStore,
    create_database,
    follow_moved_project,
    has_known_tables,
    is_half_made,
    require_writable,
    sqlite_file,
    sqlite_uri,
)
from everytoken.tracking.delivery import FOLDER
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.store import Experiment, TrackingStore, quiet, reason, require_server

logger = logging.getLogger(__name__)

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_SERVERS = ("http:", "https:", "databricks")  # a server decides itself where its artifacts are


class TrackingSettings(BaseModel):
    """The whole of ``mlflow.yml``; relative paths start at the project folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    tracking_uri: str
    artifacts: str

    def uri(self, project: Path) -> str:
        """Return the address in use: ``MLFLOW_TRACKING_URI`` as MLflow itself reads it, else that of ``mlflow.yml``."""
        given = os.environ.get(URI_VARIABLE)
        if given or not self.tracking_uri.startswith(SQLITE):
            return given or self.tracking_uri
        return sqlite_uri(project, self.tracking_uri.removeprefix(SQLITE))

    def artifact_location(self, project: Path, uri: str) -> str | None:
        """Return where artifacts go, as a URI; None: the server at ``uri`` decides."""
        if uri.startswith(_SERVERS):
            return None
        return self.artifacts if "://" in self.artifacts else (project / self.artifacts).as_uri()


def open_store(project: Path, settings: TrackingSettings) -> TrackingStore:
    """Open the store and the experiment, and create what is missing; safe for several processes at once.

    Raises:
        TrackingError: if the experiment was deleted, or keeps its artifacts elsewhere than ``settings`` says, or
        if the store cannot be reached, read or written.
    """
    uri, origin = require_reachable(project, settings)
    redact_output()
    database = sqlite_file(uri)
    try:
        if database is not None and database.exists():
            require_writable(database)  # before the lock: a file that is refused gets none next to it
        with _locked(database), quiet({"alembic": logging.WARNING, "mlflow.store.db.utils": logging.WARNING}):
            return _opened(project, settings, uri, database)
    except TrackingError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, drivers and plugins each raise what they like
        said = reason(error).rstrip(".")
        if database is not None and is_half_made(database):
            raise TrackingError(
                f"{database}: the process that created this database ended before it was complete: {said}. "
                f"It contains no run: move it away or delete it, and the next run creates a complete one."
            ) from error
        raise TrackingError(
            f"{redacted(uri)}, from {origin}: MLflow cannot open it: {type(error).__name__}: {said}. "
            f"Correct the address (sqlite:///mlflow.db, or the http:// of a server), or fix what it names: file and "
            f"folder have to be writable, a damaged database to be replaced by a backup or moved away, one of another "
            f"MLflow version to be upgraded with 'mlflow db upgrade'."
        ) from error


def require_reachable(project: Path, settings: TrackingSettings) -> tuple[str, str]:
    """Check that the server answers, if runs go to one; nothing is opened. Return the address and where it is from.

    Raises:
        TrackingError: if it does not.
    """
    uri, is_given = settings.uri(project), bool(os.environ.get(URI_VARIABLE))
    origin = f"the environment variable {URI_VARIABLE}" if is_given else "tracking_uri in mlflow.yml"
    hide_secrets_of(uri)
    require_server(uri, origin)
    return uri, origin


def _opened(project: Path, settings: TrackingSettings, uri: str, database: Path | None) -> TrackingStore:
    if database is not None and not (database.exists() and database.stat().st_size):
        require_writable(database)
        create_database(database)
    kind = DatabaseStore if database is not None and has_known_tables(database) else TrackingStore
    store = kind(uri, _shown(project, uri), "", project / FOLDER)
    return replace(store, experiment_id=_experiment(store, settings, project).id)


def _experiment(store: TrackingStore, settings: TrackingSettings, project: Path) -> Experiment:
    """Return the experiment, created if it is missing, with its artifacts where the project is now."""
    location, database = settings.artifact_location(project, store.uri), sqlite_file(store.uri)
    found = store.experiment(settings.experiment) or _created(store, settings.experiment, location)
    if found.stage != "active":
        raise TrackingError(
            f"experiment {settings.experiment!r} is deleted in {redacted(store.uri)}. Restore it with "
            f"'mlflow experiments restore --experiment-id {found.id}', or name another in mlflow.yml."
        )
    is_ours = location is not None and database is not None and database.is_relative_to(project)
    if is_ours and found.artifacts != location:
        assert location is not None and database is not None
        follow_moved_project(database, found, location, project / settings.artifacts)
        old = found.artifacts
        logger.warning("The project has moved: artifacts of its runs are now in %s, no longer in %s", location, old)
    return found


def _created(store: TrackingStore, name: str, location: str | None) -> Experiment:
    """Create an experiment, unless another process is faster: on a server no lock of ours helps."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_experiment(name, location)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = store.experiment(name)
    assert found is not None, "it is there now"
    return found


def _shown(project: Path, uri: str) -> str:
    database = sqlite_file(uri)
    if database is not None and database.is_relative_to(project):
        return f"{SQLITE}{database.relative_to(project).as_posix()}"
    return redacted(uri)


def _locked(database: Path | None) -> contextlib.AbstractContextManager[int | None]:
    """Hold ``<database>.lock``: two processes that both find no database would both create its tables."""
    if database is None:
        return contextlib.nullcontext()
    database.parent.mkdir(parents=True, exist_ok=True)
    lock = database.with_name(database.name + ".lock")
    return locked(lock, lambda: os.open(lock, os.O_RDWR | os.O_CREAT, 0o666))
