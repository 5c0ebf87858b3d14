"""MLflow's SQLite file, written directly: the rows that its client writes, without the import of MLflow (3 seconds).

Models, which only a training makes, are left to the client, and so is the look at runs of earlier processes.

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

from everytoken.locks import locked
from everytoken.shards import atomic_file, fsync_file, fsync_folder
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.store import DISCARDED, Experiment, TrackingStore

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
    def database(self) -> Path:
        """The file."""
        database = sqlite_file(self.uri)
        assert database is not None, "a `TrackingStore` takes any other address"
        return database

    def experiment(self, name: str) -> Experiment | None:
        """Return the experiment of a name, or None."""
        query = "SELECT experiment_id, artifact_location, lifecycle_stage FROM experiments WHERE name = ?"
        with transaction(self.database, _LOCK_SECONDS) as rows:
            found = rows.execute(query, (name,)).fetchone()
        return found and Experiment(str(found[0]), *found[1:])

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a RUNNING run and return its id."""
        user = tags.get("mlflow.user", "unknown")
        with transaction(self.database, _LOCK_SECONDS) as rows:
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

    def send(self, run_id: str, record: Mapping[str, Any], files: Path) -> None:
        """Write the rows of one record, or copy its file."""
        with transaction(self.database, _SEND_SECONDS) as rows:
            query = "SELECT lifecycle_stage, artifact_uri, experiment_id FROM runs WHERE run_uuid = ?"
            stage, artifacts, experiment = rows.execute(query, (run_id,)).fetchone() or ("missing", "", 0)
            if stage == "deleted" and record.get("end") == DISCARDED:
                return  # it was sent before
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
                case {"end": str(status), "time": end} if status == DISCARDED:
                    gone = "status = 'FINISHED', lifecycle_stage = 'deleted', end_time = ?, deleted_time = ?"
                    rows.execute(f"UPDATE runs SET {gone} WHERE run_uuid = ?", (end, end, run_id))
                case {"end": status, "time": end}:
                    rows.execute("UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", (status, end, run_id))
        folder = urlsplit(artifacts)
        if "model" in record or ("file" in record and folder.scheme != "file"):  # rare, or in a bucket
            super().send(run_id, record, files)
        elif "file" in record and (file := files / record["file"]).exists():
            copy = Path(unquote(folder.path)) / record["file"]
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(copy) as temporary:
                shutil.copyfile(file, temporary)

    def move_artifacts(self, experiment: Experiment, location: str) -> None:
        """Let an experiment and its runs have their artifacts at ``location``: MLflow writes absolute paths."""
        old = experiment.artifacts
        columns = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}
        with transaction(self.database, _LOCK_SECONDS) as rows:
            for table, column in columns.items():
                rows.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                    f" WHERE experiment_id = ? AND instr({column} || '/', ?) = 1",
                    (location, len(old) + 1, experiment.id, old + "/"),
                )


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
    """Return whether the tables are those of `SCHEMA`; workspaces are left to MLflow.

    Raises:
        TrackingError: if it is no database that can be written; it is left untouched.
    """
    try:
        with transaction(database, _LOCK_SECONDS) as rows:
            tables = rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchall()
            versions = rows.execute("SELECT version_num FROM alembic_version").fetchall() if tables else []
    except (sqlite3.Error, OSError) as error:
        raise TrackingError(
            f"{database}: runs cannot be recorded in this database: {error}. If it is damaged, put a backup in its "
            f"place, or move it away and a new one is made. If another process holds it, end that. Make the file and "
            f"its folder writable and see that the disk is not full, or name another in mlflow.yml."
        ) from error
    return versions == [(SCHEMA,)] and not os.environ.get("MLFLOW_ENABLE_WORKSPACES")


def create_missing(database: Path) -> None:
    """Let MLflow create its tables in a temporary folder, then take the file: a kill leaves no half-made database."""

    def is_there() -> bool:
        return database.exists() and database.stat().st_size > 0

    if is_there():  # a file that is refused gets no lock next to it
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    lock = database.with_name(database.name + ".lock")
    with locked(lock, lambda: os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)):
        if is_there():  # another process was faster
            return
        from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        place = database.resolve()  # a link stays one
        folder = place.with_name(place.name + ".tmp")  # a folder: SQLite puts its journals next to the file
        shutil.rmtree(folder, ignore_errors=True)  # of a creation that was killed
        folder.mkdir()
        new = folder / place.name
        # without MLflow's registry, which keeps one store for each address for ever
        SqlAlchemyStore(sqlite_uri(new, ""), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        fsync_file(new)
        new.replace(place)
        fsync_folder(place.parent)
        shutil.rmtree(folder)


def sqlite_uri(folder: Path, configured: str) -> str:
    """Return the URI of a database that is named relative to ``folder`` (an absolute name wins over it).

    SQLAlchemy decodes ``%20`` in a path and ends it at ``?``, so these two are encoded in the folder;
    ``configured`` is a part of a URI already. MLflow would create the parent folder of a ``sqlite:///`` path
    without decoding it; naming the driver as well keeps it from that.
    """
    path = str(Path(str(folder).replace("%", "%25").replace("?", "%3F")) / configured)
    return f"{_SQLITE_AS_IT_IS if '%' in path else SQLITE}{path}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite URI, or None for one in memory, one with SQLite's own options, and any other URI."""
    scheme, _, rest = uri.partition(":///")
    path = unquote(rest.partition("?")[0])
    if f"{scheme}:///" not in (SQLITE, _SQLITE_AS_IT_IS) or path in ("", ":memory:") or path.startswith("file:"):
        return None
    return Path(path)
