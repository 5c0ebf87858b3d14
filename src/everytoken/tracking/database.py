"""MLflow's SQLite file, written directly: the rows that its client writes, without the import of MLflow (3 seconds).

A record is one transaction, so two processes that write at once wait for each other.
MLflow creates and upgrades the tables; a file with other tables than those of `SCHEMA` is left to its client.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from everytoken.shards import atomic_file, fsync_file, fsync_folder
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.store import Experiment, TrackingStore, mlflow_environment

SQLITE = "sqlite:///"
_SQLITE_AS_IT_IS = "sqlite+pysqlite:///"

SCHEMA = "dc11669786a5"
"""The version of the tables that MLflow 3.17 creates, in its ``alembic_version``."""

_NEW_ID = "lower(hex(randomblob(16)))"  # as MLflow's uuid4().hex
_LOCK_SECONDS = 60.0  # another process may be writing
_SEND_SECONDS = 5.0


class DatabaseStore(TrackingStore):
    """A store in a SQLite file with the tables of `SCHEMA`."""

    @property
    def _database(self) -> Path:
        database = sqlite_file(self.uri)
        assert database is not None, "a `TrackingStore` takes any other address"
        return database

    def experiment(self, name: str) -> Experiment | None:
        """Return the experiment of a name, or None."""
        query = "SELECT experiment_id, artifact_location, lifecycle_stage FROM experiments WHERE name = ?"
        with transaction(self._database, _LOCK_SECONDS) as rows:
            found = rows.execute(query, (name,)).fetchone()
        return None if found is None else Experiment(str(found[0]), *found[1:])

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a RUNNING run and return its id."""
        user = tags.get("mlflow.user", "unknown")
        with transaction(self._database, _LOCK_SECONDS) as rows:
            run_id: str = rows.execute(f"SELECT {_NEW_ID}").fetchone()[0]
            rows.execute(
                "INSERT INTO runs (run_uuid, name, user_id, start_time, experiment_id, artifact_uri, source_type,"
                " source_name, entry_point_name, source_version, status, lifecycle_stage)"
                " SELECT ?, ?, ?, ?, experiment_id, artifact_location || ?, 'UNKNOWN', '', '', '', 'RUNNING', 'active'"
                " FROM experiments WHERE experiment_id = ?",
                (run_id, name, user, int(time.time() * 1000), f"/{run_id}/artifacts", self.experiment_id),
            )
            _set_tags(rows, run_id, {**tags, "mlflow.runName": name})
        return run_id

    def has(self, run_id: str) -> bool:
        """Return whether the store has a run."""
        with transaction(self._database, _SEND_SECONDS) as rows:
            return rows.execute("SELECT 1 FROM runs WHERE run_uuid = ?", (run_id,)).fetchone() is not None

    def running(self, host: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield id and tags of every RUNNING run of a host."""
        query = (
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) WHERE experiment_id = ? AND status = 'RUNNING'"
            " AND lifecycle_stage = 'active' AND key = 'host.name' AND value = ?"
        )
        with transaction(self._database, _LOCK_SECONDS) as rows:
            found = rows.execute(query, (self.experiment_id, host)).fetchall()
            tags = [dict(rows.execute("SELECT key, value FROM tags WHERE run_uuid = ?", run)) for run in found]
        yield from zip((run for (run,) in found), tags, strict=True)

    def send(self, run_id: str, record: Mapping[str, Any], files: Path) -> None:
        """Write the rows of one record, or copy its file."""
        with transaction(self._database, _SEND_SECONDS) as rows:
            query = "SELECT lifecycle_stage, artifact_uri, experiment_id FROM runs WHERE run_uuid = ?"
            stage, artifacts, experiment = rows.execute(query, (run_id,)).fetchone() or ("missing", "", 0)
            if stage != "active":
                raise TrackingError(f"the run {run_id} is {stage} in {self.shown}")
            match record:
                case {"metrics": points}:
                    _add_points(rows, run_id, points)
                case {"params": values}:
                    _add_parameters(rows, run_id, values)
                case {"tags": values}:
                    _set_tags(rows, run_id, values)
                case {"dataset": dataset, "tags_of_dataset": values}:
                    _add_input(rows, run_id, experiment, dataset, values)
                case {"end": status, "time": end}:
                    rows.execute("UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", (status, end, run_id))
        if "file" in record:
            self._send_file(run_id, record, files, urlsplit(artifacts))

    def _send_file(self, run_id: str, record: Mapping[str, Any], files: Path, artifacts: Any) -> None:
        if artifacts.scheme != "file":  # in a bucket
            super().send(run_id, record, files)
        elif (file := files / record["file"]).exists():
            copy = Path(unquote(artifacts.path)) / record["file"]
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(copy) as temporary:
                shutil.copyfile(file, temporary)


def _set_tags(rows: sqlite3.Connection, run_id: str, tags: Mapping[str, str]) -> None:
    pairs = [(run_id, *pair) for pair in tags.items()]
    rows.executemany("INSERT OR REPLACE INTO tags (run_uuid, key, value) VALUES (?, ?, ?)", pairs)


def _add_parameters(rows: sqlite3.Connection, run_id: str, values: Mapping[str, str]) -> None:
    pairs = [(run_id, *pair) for pair in values.items()]
    rows.executemany("INSERT OR IGNORE INTO params (run_uuid, key, value) VALUES (?, ?, ?)", pairs)
    other = "SELECT value FROM params WHERE run_uuid = ? AND key = ? AND value <> ?"
    for _, key, value in pairs:
        if (kept := rows.execute(other, (run_id, key, value)).fetchone()) is not None:
            raise TrackingError(f"the parameter {key} of run {run_id} is {kept[0]!r} already, not {value!r}")


def _add_points(rows: sqlite3.Connection, run_id: str, points: list[tuple[str, float, int, int]]) -> None:
    """Add points of series, and make the last of each series its latest: by step, then time, then value."""
    cells = [(run_id, key, _stored(value), math.isnan(value), time, step) for key, value, time, step in points]
    columns = "(run_uuid, key, value, is_nan, timestamp, step) VALUES (?, ?, ?, ?, ?, ?)"
    rows.executemany(f"INSERT OR IGNORE INTO metrics {columns}", cells)
    rows.executemany(
        f"INSERT INTO latest_metrics {columns} ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value,"
        " is_nan = excluded.is_nan, timestamp = excluded.timestamp, step = excluded.step"
        " WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)",
        cells,
    )


def _stored(value: float) -> float:
    """Return a value as MLflow stores it: NaN as 0 beside its flag, an infinity as the largest double."""
    return 0.0 if math.isnan(value) else max(-sys.float_info.max, min(value, sys.float_info.max))


def _add_input(
    rows: sqlite3.Connection, run_id: str, experiment: int, dataset: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Add a dataset to the inputs of a run; an experiment has it once, whichever runs read it."""
    name, digest = dataset["name"], dataset["digest"]
    rows.execute(
        "INSERT OR IGNORE INTO datasets (dataset_uuid, experiment_id, name, digest, dataset_source_type,"
        f" dataset_source, dataset_profile) VALUES ({_NEW_ID}, ?, ?, ?, ?, ?, ?)",
        (experiment, name, digest, dataset["source_type"], dataset["source"], dataset["profile"]),
    )
    added = rows.execute(
        "INSERT OR IGNORE INTO inputs (input_uuid, source_type, source_id, destination_type, destination_id)"
        f" SELECT {_NEW_ID}, 'DATASET', dataset_uuid, 'RUN', ? FROM datasets"
        " WHERE experiment_id = ? AND name = ? AND digest = ? RETURNING input_uuid",
        (run_id, experiment, name, digest),
    ).fetchall()
    pairs = [(added_id, *pair) for (added_id,) in added for pair in tags.items()]
    rows.executemany("INSERT INTO input_tags (input_uuid, name, value) VALUES (?, ?, ?)", pairs)


@contextlib.contextmanager
def transaction(database: Path, seconds: float) -> Iterator[sqlite3.Connection]:
    """Give a connection that holds the lock of the file; what was written is kept unless an error ends it.

    Raises:
        FileNotFoundError: the file is gone; SQLite would create an empty one.
        sqlite3.Error: it is locked for ``seconds``, or no database.
    """
    if not database.exists():
        raise FileNotFoundError(f"{database.name} is no longer in its folder")
    uri = f"{database.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, timeout=seconds, isolation_level=None, uri=True)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield connection


def has_known_tables(database: Path) -> bool:
    """Return whether the tables are those of `SCHEMA`; workspaces are left to MLflow."""
    if os.environ.get("MLFLOW_ENABLE_WORKSPACES") or not database.is_file() or database.stat().st_size == 0:
        return False
    with transaction(database, _LOCK_SECONDS) as rows:
        if rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
            return False
        versions: list[tuple[str]] = rows.execute("SELECT version_num FROM alembic_version").fetchall()
    return versions == [(SCHEMA,)]


def create_database(database: Path) -> None:
    """Let MLflow create its tables in a temporary folder, then take the file: a kill leaves no half-made database."""
    with mlflow_environment():
        from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    place = database.resolve()  # a link stays one
    folder = place.with_name(place.name + ".tmp")  # a folder: SQLite puts its journals next to the file
    shutil.rmtree(folder, ignore_errors=True)  # of a creation that was killed; we hold the lock
    folder.mkdir()
    try:
        new = folder / place.name
        with mlflow_environment():  # and without MLflow's registry, which keeps one store for each address for ever
            SqlAlchemyStore(sqlite_uri(new, ""), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        fsync_file(new)
        new.replace(place)
        fsync_folder(place.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_half_made(database: Path) -> bool:
    """Return whether MLflow began to create its tables, but did not come to the end, where it adds an experiment."""
    try:
        with transaction(database, _LOCK_SECONDS) as rows:
            return bool(rows.execute("SELECT count(*) FROM experiments").fetchone()[0] == 0)
    except (sqlite3.Error, OSError):  # no database of MLflow
        return False


def require_writable(database: Path) -> None:
    """Check that a SQLite file is one, and can be written: a write that is taken back. A missing one is created empty.

    Raises:
        TrackingError: if it cannot.
    """
    try:
        if not database.exists():
            database.touch()
        with transaction(database, _LOCK_SECONDS) as rows:
            version = rows.execute("PRAGMA user_version").fetchone()[0]
            rows.execute(f"PRAGMA user_version = {version}")  # opens the journal too, which needs the folder
            rows.execute("SELECT count(*) FROM sqlite_master").fetchone()
            rows.rollback()
    except (sqlite3.DatabaseError, OSError) as error:
        raise TrackingError(
            f"{database}: runs cannot be recorded in this database: {error}. {_remedy(error)}"
        ) from error


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "It is damaged: put a backup in its place, or move it away and a new one is made."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "Another process holds it: end that, and run again."
    return "Make the file and its folder writable and see that the disk is not full, or name another in mlflow.yml."


def follow_moved_project(database: Path, experiment: Experiment, location: str, folder: Path) -> None:
    """Rewrite the artifact locations of an experiment after the project folder was moved or copied.

    That is what happened if the old place ends as the new one does (``/mlartifacts``) and the artifacts came along.

    Raises:
        TrackingError: it is not what happened.
    """
    old = experiment.artifacts
    if not old.endswith("/" + location.rpartition("/")[2]) or not folder.is_dir():
        raise TrackingError(
            f"{database}: the experiment keeps its artifacts in {old}, mlflow.yml says {location}. MLflow fixes the "
            f"place when an experiment is created: set 'artifacts' back, bring the artifacts to {folder}, or name "
            f"another experiment."
        )
    with transaction(database, _LOCK_SECONDS) as rows:
        rows.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (location, experiment.id))
        rows.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
            (location, len(old) + 1, experiment.id, len(old) + 1, old + "/"),
        )


def sqlite_uri(folder: Path, configured: str) -> str:
    """Return the URI of a database that is named relative to ``folder`` (an absolute name wins over it).

    SQLAlchemy decodes ``%20`` in a path and ends it at ``?``, so these two are encoded in the folder;
    ``configured`` is a part of a URI already. MLflow would create the parent folder of a ``sqlite:///`` path
    without decoding it; naming the driver as well keeps it from that.
    """
    encoded = str(folder).replace("%", "%25").replace("?", "%3F")
    path = str(Path(encoded) / configured)
    return f"{_SQLITE_AS_IT_IS if '%' in path else SQLITE}{path}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite URI, or None for one in memory, one with SQLite's own options, and any other URI."""
    prefix = next((prefix for prefix in (SQLITE, _SQLITE_AS_IT_IS) if uri.startswith(prefix)), None)
    if prefix is None:
        return None
    path = unquote(uri.removeprefix(prefix).partition("?")[0])
    return None if path in ("", ":memory:") or path.startswith("file:") else Path(path)
