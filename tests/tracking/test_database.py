"""Rows that we write into MLflow's SQLite file are those that MLflow's own client writes."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everytoken.tracking import TrackingError
from everytoken.tracking.database import SCHEMA, DatabaseStore, has_known_tables
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.store import DISCARDED, TrackingStore

SETTINGS = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")

DATASET = {"name": "documents", "digest": "d" * 36, "source_type": "local", "source": '{"uri": "x"}', "profile": "{}"}

RECORDS: list[dict[str, Any]] = [
    {"params": {"seed": "1", "note": "é ' \n"}},
    {"tags": {"a": "1", "b": "2"}},
    {"tags": {"a": "3"}},
    {"metrics": [["loss", 2.0, 10, 0], ["loss", 1.0, 10, 1], ["rate", math.nan, 10, 0], ["rate", math.inf, 11, 0]]},
    {"metrics": [["loss", 5.0, 9, 1], ["loss", 0.5, 12, 0], ["down", -math.inf, 1, 1], ["nan", math.nan, 3, 2]]},
    {"metrics": [["tie", 1.0, 1, 1], ["tie", 2.0, 1, 1], ["tie", 0.0, 1, 1], ["whole", 3, 1, 1]]},
    {"dataset": DATASET, "tags_of_dataset": {"mlflow.data.context": "input", "digest": "d" * 64}},
    {"dataset": {**DATASET, "name": "other"}, "tags_of_dataset": {"mlflow.data.context": "output"}},
    {"file": "page.html"},
    {"file": "reports/one two/é.json"},
    {"end": "FINISHED", "time": 1234},
]

TABLES = {
    "runs": "name, source_type, source_name, entry_point_name, user_id, status, end_time, source_version,"
    " lifecycle_stage, replace(artifact_uri, run_uuid, ''), experiment_id, deleted_time",
    "metrics": "key, value, typeof(value), timestamp, step, is_nan, typeof(is_nan)",
    "latest_metrics": "key, value, typeof(value), timestamp, step, is_nan, typeof(is_nan)",
    "params": "key, value",
    "tags": "key, value",
}
INPUTS = (
    "SELECT datasets.name, digest, dataset_source_type, dataset_source, dataset_schema, dataset_profile, experiment_id,"
    " source_type, destination_type, step, input_tags.name, value FROM datasets JOIN inputs ON source_id = dataset_uuid"
    " JOIN input_tags USING (input_uuid) WHERE destination_id = ?"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("database")


@pytest.fixture
def store(project: Path, monkeypatch: pytest.MonkeyPatch) -> TrackingStore:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return open_store(project, SETTINGS)


@pytest.fixture
def client(store: TrackingStore) -> TrackingStore:
    """The same store behind MLflow's client."""
    return TrackingStore(store.uri, store.shown, store.experiment_id, store.backlogs)


def rows_of(project: Path, run: str) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(project / "mlflow.db")) as connection:
        found = {
            table: sorted(map(repr, connection.execute(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (run,))))
            for table, columns in TABLES.items()
        }
        return {**found, "inputs": sorted(map(repr, connection.execute(INPUTS, (run,))))}


def files_of(project: Path, run: str) -> dict[str, str]:
    root = project / "mlartifacts" / run / "artifacts"
    return {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}


def written(store: TrackingStore, files: Path, times: int) -> str:
    run = store.create_run("a run", {"mlflow.user": "me", "host.cpu": "one"})
    for record in [one for one in RECORDS for _ in range(times)]:
        store.send(run, record, files)
    return run


@pytest.mark.parametrize("times", [1, 2])
def test_our_rows_are_those_of_mlflows_client_also_when_sent_twice(
    store: TrackingStore, client: TrackingStore, project: Path, tmp_path: Path, times: int
) -> None:
    (tmp_path / "reports/one two").mkdir(parents=True)
    (tmp_path / "page.html").write_text("page")
    (tmp_path / "reports/one two/é.json").write_text("report")
    ours, theirs = written(store, tmp_path, times), written(client, tmp_path, times)
    found = rows_of(project, ours)
    assert found == rows_of(project, theirs)
    assert all(found.values()) and len(found["metrics"]) == 12
    assert (
        files_of(project, ours)
        == files_of(project, theirs)
        == {"page.html": "page", "reports/one two/é.json": "report"}
    )
    assert [file.path for file in store.client.list_artifacts(ours)] == ["page.html", "reports"]
    assert {kind.status(run) for kind in (store, client) for run in (ours, theirs)} == {"FINISHED"}


def test_the_status_of_a_run_is_that_which_the_client_finds(store: TrackingStore, client: TrackingStore) -> None:
    running, deleted = store.create_run("a run", {}), client.create_run("deleted", {})
    store.client.delete_run(deleted)
    for kind in (store, client):
        assert [kind.status(run) for run in (running, deleted, "0" * 32)] == ["RUNNING", "deleted", None]
    assert store.experiment("toy") == client.experiment("toy") and store.experiment("none") is None


def test_a_run_that_was_deleted_takes_no_record(store: TrackingStore, tmp_path: Path) -> None:
    run = store.create_run("a run", {})
    store.client.delete_run(run)
    with pytest.raises(TrackingError, match=f"{run} is deleted in sqlite:///mlflow.db"):
        store.send(run, {"tags": {"a": "b"}}, tmp_path)


def test_a_parameter_keeps_its_value(store: TrackingStore, client: TrackingStore, tmp_path: Path) -> None:
    for kind in (store, client):
        run = kind.create_run("a run", {})
        kind.send(run, {"params": {"seed": "1"}}, tmp_path)
        with pytest.raises(Exception, match=r"seed.*1.*2"):
            kind.send(run, {"params": {"new": "1", "seed": "2"}}, tmp_path)
        assert store.client.get_run(run).data.params == {"seed": "1"}


RECORD = """
import sys
from pathlib import Path
from everytoken.tracking.run import Contents
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import TrackedRun

settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
run = TrackedRun(open_store(Path(sys.argv[1]), settings), "without", {})
run.log_parameters({"seed": 1})
run.log_dataset("documents", Contents("a" * 64, 1, 2), "output", "data/x")
run.log_points([("loss", 0, 1.0)], "history")
run.end("FINISHED")
print([name for name in ("mlflow", "sqlalchemy", "pandas") if name in sys.modules], run.id)
"""


def test_a_run_is_recorded_without_importing_mlflow(store: TrackingStore, project: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RECORD, str(project)], capture_output=True, text=True, check=True)
    imported, run = done.stdout.rsplit(maxsplit=1)
    assert imported == "[]" and store.client.get_run(run).info.status == "FINISHED"


def test_tables_of_another_version_are_left_to_mlflow(store: TrackingStore, project: Path) -> None:
    database = project / "mlflow.db"
    assert type(store) is DatabaseStore, "the tables of the installed MLflow are not those of SCHEMA"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'other'")
    try:
        assert not has_known_tables(database)
        assert type(open_store(project, SETTINGS)) is TrackingStore, "which refuses them, unless it knows them already"
    finally:
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (SCHEMA,))


def test_workspaces_are_left_to_mlflow(store: TrackingStore, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    assert not has_known_tables(project / "mlflow.db")


MODEL: dict[str, Any] = {
    "name": "checkpoint",
    "step": 8,
    "time": 1_000,
    "params": {"step": "8"},
    "tags": {"root_digest": "a" * 64},
    "metrics": [
        ("held_out_bits_per_byte.wikipedia", 4.2, 1_000, 2),
        ("held_out_bits_per_byte.wikipedia", 4.1, 1_000, 8),
    ],
    "dataset": ["held_out_documents", "b" * 36],
}


def test_a_model_is_recorded_once_with_step_digests_and_metrics_on_the_held_out_documents(
    store: TrackingStore, client: TrackingStore, tmp_path: Path
) -> None:
    for kind in (store, client):
        run = kind.create_run("a run", {})
        for _ in range(2):
            kind.send(run, {"model": MODEL}, tmp_path)
        (model,) = store.client.search_logged_models([store.experiment_id], filter_string=f"source_run_id = '{run}'")
        assert (model.name, str(model.status), model.params["step"]) == ("checkpoint", "READY", "8")
        assert model.tags["root_digest"] == "a" * 64
        found = {(one.step, one.value, one.dataset_name, one.dataset_digest) for one in model.metrics}
        assert found == {(2, 4.2, "held_out_documents", "b" * 36), (8, 4.1, "held_out_documents", "b" * 36)}
        found_run = store.client.get_run(run)
        assert [(one.model_id, one.step) for one in found_run.outputs.model_outputs] == [(model.model_id, 8)]
        assert found_run.data.metrics == {"held_out_bits_per_byte.wikipedia": 4.1}


def test_a_model_whose_sender_was_killed_midway_is_completed(client: TrackingStore, tmp_path: Path) -> None:
    run = client.create_run("a run", {})
    half = client.client.create_logged_model(client.experiment_id, "checkpoint", run, MODEL["tags"], MODEL["params"])
    client.send(run, {"model": MODEL}, tmp_path)
    whole = client.client.get_logged_model(half.model_id)
    assert str(whole.status) == "READY" and {one.value for one in whole.metrics} == {4.1, 4.2}
    assert [one.model_id for one in client.client.get_run(run).outputs.model_outputs] == [half.model_id]


def test_a_run_that_made_nothing_is_deleted_however_often_it_is_said(
    store: TrackingStore, client: TrackingStore, tmp_path: Path
) -> None:
    for kind in (store, client):
        run = kind.create_run("a run", {})
        for _ in range(2):
            kind.send(run, {"end": DISCARDED, "time": 2_000}, tmp_path)
        assert store.client.get_run(run).info.end_time == 2_000
        assert {one.status(run) for one in (store, client)} == {"deleted"}
