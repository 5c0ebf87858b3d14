"""Opening the store: by several processes at once, after a change of mind, and what became of dead runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from kedro.pipeline import Node, Pipeline
from mlflow import MlflowClient

from everytoken.tracking import TrackingError, TrackingHook, delivery, environment
from everytoken.tracking.delivery import FOLDER, LEFT_OUT, Header, created, deliver
from everytoken.tracking.hook import refuse_unread
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import Contents, TrackedRun
from everytoken.tracking.store import TrackingStore
from tests.tracking.toy_project import ToyProject

SETTINGS = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")

RACE = """
import multiprocessing
import sys
from pathlib import Path
import alembic.migration  # once, before the fork: the imports cost far more than what is tried here
import mlflow.store.tracking.sqlalchemy_store
from everytoken.tracking.run import Contents
from everytoken.tracking.run import TrackedRun
from everytoken.tracking.opening import TrackingSettings, open_store

settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
context = multiprocessing.get_context("fork")
start = context.Barrier(4)

def record():
    start.wait()
    run = TrackedRun(open_store(Path(sys.argv[1]), settings), "race", {})
    try:
        for number in range(5):
            start.wait()  # equal content at once: each finds that it is not recorded yet
            run.log_dataset(f"dataset {number}", Contents("a" * 64, 1, 2), "input", "data/x")
    except BaseException:
        start.abort()  # the others would wait for this one
        raise
    run.log_points([("loss", step, 1.0) for step in range(2500)], "history")
    run.end("FINISHED")

children = [context.Process(target=record) for _ in range(4)]
for child in children:
    child.start()
for child in children:
    child.join()
print([child.exitcode for child in children])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def raced(project: Path, toy: ToyProject) -> str:
    """Exit codes of four processes that began with no store."""
    return toy.python("-c", RACE, str(project)).stdout.splitlines()[-1]


@pytest.fixture
def store(project: Path, raced: str, monkeypatch: pytest.MonkeyPatch) -> TrackingStore:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return open_store(project, SETTINGS)


def test_four_processes_at_once_create_one_store(raced: str, store: TrackingStore) -> None:
    assert raced == "[0, 0, 0, 0]"
    runs = store.client.search_runs([store.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    for run in runs:
        assert len(store.client.get_metric_history(run.info.run_id, "loss")) == 2500
        assert run.inputs is not None and len(run.inputs.dataset_inputs) == 5


KILLED = """
import os
import signal
import sys
from pathlib import Path
import mlflow  # once, before the forks
from sqlalchemy import event
from sqlalchemy.engine import Engine
from everytoken.tracking.opening import TrackingSettings, open_store

settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")

def create_until(statement, number):
    begun = 0

    @event.listens_for(Engine, "before_cursor_execute")
    def count(connection, cursor, sql, *_):
        nonlocal begun
        begun += sql.lstrip().upper().startswith(("CREATE", "ALTER", "INSERT"))
        if begun == statement:
            os.kill(os.getpid(), number)

    open_store(Path(sys.argv[1]), settings)

for statement, number in ((2, signal.SIGKILL), (40, signal.SIGKILL), (120, signal.SIGTERM)):
    child = os.fork()
    if child == 0:
        create_until(statement, number)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_kill_while_the_database_is_created_leaves_none_half_made(tmp_path: Path, toy: ToyProject) -> None:
    project = tmp_path / "a%20b"
    project.mkdir()
    killed = toy.python("-c", KILLED, str(project))
    assert killed.stdout.splitlines()[-3:] == ["-9", "-9", "-15"], killed
    database = project / "mlflow.db"
    assert not database.exists()
    assert list((project / "mlflow.db.tmp").iterdir()), "it was killed while it created"
    run = TrackedRun(open_store(project, SETTINGS), "after", {})
    run.end("FINISHED")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT run_uuid, status FROM runs").fetchall() == [(run.id, "FINISHED")]
    assert {file.name for file in project.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_a_database_that_another_program_left_half_made_is_refused_with_the_way_out(tmp_path: Path) -> None:
    from mlflow.store.db.utils import InitialBase, create_sqlalchemy_engine

    database = tmp_path / "mlflow.db"
    engine = create_sqlalchemy_engine(f"sqlite:///{database}")
    InitialBase.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE experiment_tags (key TEXT)")  # of a migration that was killed
    engine.dispose()
    with pytest.raises(TrackingError, match=r"mlflow\.db, from .*MLflow cannot open it.*replaced by a backup or moved"):
        open_store(tmp_path, SETTINGS)
    for _ in range(2):  # it is deleted in the same process too
        database.unlink()
        run = TrackedRun(open_store(tmp_path, SETTINGS), "here", {})
        run.end("FINISHED")
        with contextlib.closing(sqlite3.connect(database)) as connection:
            assert connection.execute("SELECT run_uuid FROM runs").fetchall() == [(run.id,)]


def kept_of(store: TrackingStore, *records: dict[str, object]) -> tuple[str, Path]:
    """A run, and its backlog as a kill leaves it."""
    run = store.client.create_run(store.experiment_id).info.run_id
    kept = created(store.backlogs, Header(store.shown, run))
    for record in records:
        kept.append(record)
    kept._lock.close()
    return run, store.backlogs / f"{run}.jsonl"


@pytest.mark.parametrize(
    "content",
    [
        b"junk\n",
        b"junk",
        bytes(5000),
        bytes(50) + b"\n",
        b"\xff\xfe\n",
        b'{"store": 1, "run": "a"}\n',
        b"[" * 99_999 + b"\n",
        None,
    ],
)
def test_a_file_that_is_no_backlog_is_named_and_blocks_no_other(store: TrackingStore, content: bytes | None) -> None:
    run, path = kept_of(store, {"tags": {"a": "b"}})
    bad = store.backlogs / "0.jsonl"
    bad.mkdir() if content is None else bad.write_bytes(content)
    first, second = deliver(store)
    assert first.left is None and f"{FOLDER}/0.jsonl cannot be delivered" in str(first)
    assert "Move the file out of the folder, or delete it" in str(first)
    assert (second.run, second.sent, second.left) == (run, 1, 0) and not path.exists()
    assert content is None or bad.read_bytes() == content
    bad.rmdir() if content is None else bad.unlink()
    assert not list(deliver(store))


def test_a_backlog_of_a_newer_version_is_delivered_by_an_older_one(store: TrackingStore) -> None:
    run, path = kept_of(store, {"tags": {"a": "b"}})
    header, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(header), "more": 1}).encode() + b"\n" + rest)
    assert [str(delivered) for delivered in deliver(store)] == [f"run {run}: 1 records delivered"]


@pytest.mark.parametrize("line", ["junk", "\0\0", "[]", "5", '{"unknown": 1}', '{"metrics": 5}', '{"metrics": [5]}'])
def test_a_bad_line_is_named_and_what_comes_before_it_is_delivered(store: TrackingStore, line: str) -> None:
    run, path = kept_of(store, {"tags": {"a": "b"}}, {"metrics": [["loss", 1.0, 1, 1]]})
    with path.open("a") as file:
        file.write(line + "\n" + '{"tags": {"c": "d"}}\n')
    (delivered,) = deliver(store)
    assert (delivered.sent, delivered.left) == (2, 2)
    assert f"{FOLDER}/{path.name}, line 2: no record of a run: " in delivered.problem
    found = store.client.get_run(run).data
    assert (found.tags["a"], found.metrics["loss"]) == ("b", 1.0) and "c" not in found.tags
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))  # as the message says
    assert [str(delivered) for delivered in deliver(store)] == [f"run {run}: 1 records delivered"]
    assert store.client.get_run(run).data.tags["c"] == "d"


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../../outside", "link", "..", ".", "a\0b"])
def test_a_backlog_uploads_only_what_its_own_folder_contains(store: TrackingStore, name: str, project: Path) -> None:
    run, path = kept_of(store, {"file": name})
    files = path.with_suffix(".files")
    files.mkdir()
    for outside in (store.backlogs / "outside", project / "outside"):
        outside.write_text("secret")
    (files / "link").symlink_to(project / "outside")
    (delivered,) = deliver(store)
    assert (delivered.sent, delivered.left) == (0, 1) and ", line 2: no record of a run" in delivered.problem
    assert not store.client.list_artifacts(run)
    shutil.rmtree(store.backlogs)


@pytest.mark.sensitive
@pytest.mark.parametrize("blocked", [False, True])
def test_a_backlog_folder_that_is_removed_ends_no_run(
    store: TrackingStore, project: Path, blocked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = TrackedRun(store, "removed", {})
    run.set_tag("before", "1")
    moved = (project / "mlflow.db").rename(project / "elsewhere.db")
    run.set_tag("lost", "1")
    shutil.rmtree(store.backlogs)
    if blocked:
        store.backlogs.write_text("no folder")
    run.end("FINISHED")
    moved.rename(project / "mlflow.db")
    if blocked:
        assert f"{FOLDER} cannot be written at the end of run {run.id}" in caplog.text
        assert f"2 records of run {run.id} are lost" in caplog.text
        store.backlogs.unlink()
    else:
        assert [str(delivered) for delivered in deliver(store)] == [f"run {run.id}: 2 records delivered"]
        found = store.client.get_run(run.id)
        assert found.info.status == "FINISHED" and found.data.tags["lost"] == "1"


def test_a_run_whose_backlog_cannot_be_created_is_failed_with_the_reason(store: TrackingStore) -> None:
    store.backlogs.write_text("no folder")
    with pytest.raises(TrackingError, match=r"mlflow\.backlog: the run cannot begin: .*File exists"):
        TrackedRun(store, "no backlog", {})
    store.backlogs.unlink()
    found = store.client.search_runs([store.experiment_id], "attributes.run_name = 'no backlog'")
    assert [run.info.status for run in found] == ["FAILED"]
    assert "the run cannot begin" in found[0].data.tags["error"]


@pytest.mark.sensitive
def test_what_the_backlog_cannot_take_is_sent_at_once_and_counted_when_that_fails_too(
    store: TrackingStore, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "_WAIT_SECONDS", 120.0)  # a busy machine is slow
    monkeypatch.setattr(delivery, "_PAUSE_SECONDS", 0.0)
    run = TrackedRun(store, "full", {})
    kept = run._sender._backlog
    unwritable = os.open(kept._path, os.O_RDONLY)
    os.dup2(unwritable, kept._descriptor)
    kept.files.write_text("no folder")
    run.set_tag("a", "b")
    run.log_text("text", "folder/page.html")
    assert store.client.get_run(run.id).data.tags["a"] == "b"
    moved = (project / "mlflow.db").rename(project / "elsewhere.db")
    run.set_tag("lost", "1")
    moved.rename(project / "mlflow.db")
    run.end("FINISHED")
    os.close(unwritable)
    found = store.client.get_run(run.id)
    assert found.info.status == "FINISHED" and "lost" not in found.data.tags
    assert found.data.tags[LEFT_OUT] == "1 records"
    assert [file.path for file in store.client.list_artifacts(run.id, "folder")] == ["folder/page.html"]
    page = project / "mlartifacts" / run.id / "artifacts/folder/page.html"
    assert page.read_text() == "text" and not page.is_symlink()
    assert "records are sent without being kept" in caplog.text and "records are left out" in caplog.text
    kept.files.unlink()


def test_a_dataset_that_changes_during_the_run_is_refused(store: TrackingStore) -> None:
    run = TrackedRun(store, "changing", {})
    run.log_dataset("documents", Contents("a" * 64, 1, 2), "input", "x")
    run.log_dataset("documents", Contents("a" * 64, 1, 2), "input", "x")
    with pytest.raises(TrackingError, match="documents changed during the run"):
        run.log_dataset("documents", Contents("b" * 64, 1, 2), "input", "x")
    run.end("FAILED")


def test_two_datasets_may_not_give_one_metric(store: TrackingStore) -> None:
    run = TrackedRun(store, "twice", {})
    run.log_metrics({"training.loss": 1.0}, "training_metrics")
    with pytest.raises(TrackingError, match="both training_metrics and training_history give it"):
        run.log_points([("training.loss", 1, 1.0)], "training_history")
    run.end("FAILED")


def test_a_moved_project_finds_its_artifacts_and_writes_new_ones_beside_them(
    store: TrackingStore, project: Path, tmp_path: Path
) -> None:
    old = TrackedRun(store, "before the move", {})
    old.log_parameters({"seed": 1})
    old.end("FINISHED")
    moved = tmp_path / "a moved project"
    shutil.copytree(project, moved)
    there = open_store(moved, SETTINGS)
    new = TrackedRun(there, "after the move", {})
    new.log_parameters({"seed": 2})
    for run, seed in ((old, 1), (new, 2)):
        uri = there.client.get_run(run.id).info.artifact_uri
        assert uri == f"{(moved / 'mlartifacts').as_uri()}/{run.id}/artifacts"
        assert json.loads((moved / "mlartifacts" / run.id / "artifacts/parameters.json").read_text()) == {"seed": seed}
        there.client.download_artifacts(run.id, "parameters.json", str(tmp_path))
    assert not (project / "mlartifacts" / new.id).exists()


def test_a_failure_to_track_does_not_hide_the_error_of_a_node(
    store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    hook = TrackingHook()
    hook._run = TrackedRun(store, "broken", {})
    monkeypatch.setattr(hook._run, "log_text", broken)
    monkeypatch.setattr(hook._run, "end", broken)
    error = RuntimeError("the loss is a banana")
    hook.on_pipeline_error(error)
    assert [note.partition(":")[0] for note in error.__notes__] == [
        "Tracking failed as well, the traceback is not recorded",
        f"Tracking failed as well, run {store.client.search_runs([store.experiment_id])[0].info.run_id} may look alive",
    ]


def test_another_artifact_folder_for_an_old_experiment_is_refused(store: TrackingStore, project: Path) -> None:
    other = SETTINGS.model_copy(update={"artifacts": "elsewhere"})
    with pytest.raises(TrackingError, match=r"mlflow\.yml says"):
        open_store(project, other)


def test_a_deleted_experiment_is_refused_with_the_way_back(store: TrackingStore, project: Path) -> None:
    settings = SETTINGS.model_copy(update={"experiment": "old"})
    old = open_store(project, settings)
    old.client.delete_experiment(old.experiment_id)
    with pytest.raises(TrackingError, match="mlflow experiments restore"):
        open_store(project, settings)


def test_the_environment_variable_comes_first(
    store: TrackingStore, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "other.db"
    (tmp_path / "other.db").write_bytes((project / "mlflow.db").read_bytes())  # spares the creation of the tables
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    assert open_store(project, SETTINGS).uri == f"sqlite:///{elsewhere}"
    assert MlflowClient(f"sqlite:///{elsewhere}").get_experiment_by_name("toy") is not None


def test_git_state_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    assert environment.git_state(tmp_path).reason
    git("init", "--initial-branch=main")
    assert environment.git_state(tmp_path).commit == "unknown", "a repository without a commit"
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-m", "first")
    state = environment.git_state(tmp_path)
    assert (len(state.commit), state.branch, state.dirty, state.reason) == (40, "main", "false", "")
    (tmp_path / "b").write_text("b")
    assert environment.git_state(tmp_path).dirty == "true"


def one(value: object) -> None:
    """A node that reads one value."""


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        ({"training": {"lr": 1}}, None),
        ({"training": {"lr": {"max": 1}}}, None),
        ({"training": {"lr": 1, "seed": 2}}, "training.seed"),
        ({"training": 3}, "training"),
        ({"train": {"lr": 1}}, "train.lr"),
        ({}, None),
        (None, None),
    ],
)
def test_a_runtime_parameter_must_lie_within_one_that_is_read(given: dict[str, object], unread: str | None) -> None:
    pipeline = Pipeline([Node(one, "params:training.lr", None, name="train")])
    if unread is None:
        refuse_unread(given, pipeline)
    else:
        with pytest.raises(
            TrackingError, match=f"sets {unread}, which no node of this run reads. It reads: training.lr"
        ):
            refuse_unread(given, pipeline)
    refuse_unread(given, Pipeline([Node(one, "parameters", None, name="all")]))


def test_a_parameter_that_decides_others_belongs_to_every_run() -> None:
    pipeline = Pipeline([Node(one, "params:training.lr", None, name="train")])
    refuse_unread({"replay": {"release": "here"}}, pipeline, ("replay.release",))
    with pytest.raises(TrackingError, match=r"sets replay.allow, .* It reads: replay.release, training.lr"):
        refuse_unread({"replay": {"release": "here", "allow": "moved"}}, pipeline, ("replay.release",))
