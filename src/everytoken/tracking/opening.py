"""The store of a project, found by ``mlflow.yml`` or the environment, and opened before any work."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from everytoken.redaction import hide_secrets_of, redact_output, redacted
from everytoken.tracking.database import (
    SQLITE,
    DatabaseStore,
    create_missing,
    has_known_tables,
    sqlite_file,
    sqlite_uri,
)
from everytoken.tracking.delivery import FOLDER
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.store import Experiment, TrackingStore, mlflow_environment, reason

logger = logging.getLogger(__name__)

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_SERVERS = ("http:", "https:", "databricks")  # a server decides itself where its artifacts are


class TrackingSettings(BaseModel):
    """The whole of ``mlflow.yml``; relative paths start at the project folder.

    ``metrics``: which numbers of ``*_metrics`` are metrics of a run, at most 15; the others are in its reports alone.
    None: all are. ``system_metrics``: whether the use of CPU and memory is recorded every 10 seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    tracking_uri: str
    artifacts: str
    metrics: Annotated[tuple[str, ...], Field(max_length=15)] | None = None
    system_metrics: bool = False

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
    uri, is_given = settings.uri(project), bool(os.environ.get(URI_VARIABLE))
    origin = f"the environment variable {URI_VARIABLE}" if is_given else "tracking_uri in mlflow.yml"
    hide_secrets_of(uri)
    redact_output()
    try:
        with mlflow_environment():
            store = _store(project, uri)
            return replace(store, experiment_id=_experiment(store, settings, project).id)
    except TrackingError:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, drivers and plugins each raise what they like
        what = "no MLflow server answers" if uri.startswith(_SERVERS) else "MLflow cannot open it"
        raise TrackingError(
            f"{redacted(uri)}, from {origin}: {what}: {type(error).__name__}: {reason(error)}. Start the server, if it "
            f"is one, or correct the address (sqlite:///mlflow.db needs no server). File and folder have to be "
            f"writable. A damaged database is to be replaced by a backup or moved away, one of another MLflow version "
            f"to be upgraded with 'mlflow db upgrade'."
        ) from error


def _store(project: Path, uri: str) -> TrackingStore:
    database = sqlite_file(uri)
    if database is None:
        return TrackingStore(uri, redacted(uri), "", project / FOLDER)
    create_missing(database)
    is_ours = database.is_relative_to(project)
    shown = f"{SQLITE}{database.relative_to(project).as_posix()}" if is_ours else redacted(uri)
    return (DatabaseStore if has_known_tables(database) else TrackingStore)(uri, shown, "", project / FOLDER)


def _experiment(store: TrackingStore, settings: TrackingSettings, project: Path) -> Experiment:
    """Return the experiment, created if it is missing, with its artifacts where the project is now."""
    location = settings.artifact_location(project, store.uri)
    found = store.experiment(settings.experiment)
    if found is None:
        try:
            store.client.create_experiment(settings.experiment, location)
        except Exception:  # another process may have been faster
            if store.experiment(settings.experiment) is None:
                raise
        found = store.experiment(settings.experiment)
        assert found is not None, "it exists now"
    if found.stage != "active":
        raise TrackingError(
            f"experiment {settings.experiment!r} is deleted in {store.shown}. Restore it with "
            f"'mlflow experiments restore --experiment-id {found.id}', or name another in mlflow.yml."
        )
    if not isinstance(store, DatabaseStore) or not store.database.is_relative_to(project):
        return found
    if location is not None and found.artifacts != location:
        if Path(found.artifacts).name != Path(location).name:
            raise TrackingError(
                f"{store.shown}: the experiment keeps its artifacts in {found.artifacts}, mlflow.yml says {location}. "
                f"MLflow fixes the place when an experiment is created: set 'artifacts' back, or name another "
                f"experiment."
            )
        store.move_artifacts(found, location)
        logger.warning("The project has moved: artifacts are looked for in %s, not in %s", location, found.artifacts)
    return found
