"""A store that cannot take runs is refused at once and by name, and no other is written instead."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline
from mlflow import MlflowClient

from everytoken.redaction import redacted
from everytoken.tracking import TrackingError, TrackingHook, database
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import TrackedRun

SETTINGS = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
DEAD = "http://127.0.0.1:1"

pytestmark = pytest.mark.sensitive


@pytest.fixture(autouse=True)
def no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a database: its tables cost seconds."""
    project = tmp_path_factory.mktemp("made")
    before = os.environ.pop("MLFLOW_TRACKING_URI", None)
    open_store(project, SETTINGS)
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before
    return project


@pytest.fixture
def answering() -> Iterator[Any]:
    """Start servers that answer everything with one status."""
    servers = []

    def start(status: int) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def hook_in(project: Path, settings: TrackingSettings) -> TrackingHook:
    hook = TrackingHook()
    hook._context = SimpleNamespace(  # type: ignore[assignment]
        project_path=project, config_loader={"mlflow": settings.model_dump()}
    )
    return hook


def read(value: object) -> None:
    """A node that reads one value."""


def before_run(hook: TrackingHook, value: object) -> Any:
    pipeline = Pipeline([Node(read, "params:training.note", None, name="read")])
    catalog = DataCatalog({"params:training.note": MemoryDataset(value)})
    run_params = {"runtime_params": {}, "runner": "SequentialRunner", "pipeline_names": None}
    return hook.before_pipeline_run(run_params, pipeline, catalog)


def test_a_dead_server_of_the_environment_variable_is_refused_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    begin = time.monotonic()
    with pytest.raises(
        TrackingError, match=r"^http://127\.0\.0\.1:1, from the environment variable MLFLOW_TRACKING_URI.*Start the"
    ):
        open_store(tmp_path, SETTINGS)
    assert time.monotonic() - begin < 60, "MLflow alone tries for minutes"
    assert not list(tmp_path.iterdir())


def test_a_dead_server_of_mlflow_yml_is_refused_before_other_hooks_begin(tmp_path: Path) -> None:
    hook = hook_in(tmp_path, SETTINGS.model_copy(update={"tracking_uri": DEAD}))
    with pytest.raises(TrackingError, match=r"^http://127\.0\.0\.1:1, from tracking_uri in mlflow\.yml: no MLflow"):
        next(before_run(hook, 1))  # up to its yield, where the other hooks are called


def test_a_server_that_accepts_and_says_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TrackingError, match="no MLflow server answers"):
            open_store(tmp_path, SETTINGS.model_copy(update={"tracking_uri": uri}))


@pytest.mark.parametrize("status", [503, 401])
def test_a_server_that_takes_no_runs_is_refused_with_its_answer(answering: Any, tmp_path: Path, status: int) -> None:
    with pytest.raises(TrackingError, match=f"no MLflow server answers: .*{status}"):
        open_store(tmp_path, SETTINGS.model_copy(update={"tracking_uri": answering(status)}))
    assert not list(tmp_path.iterdir())


def test_a_password_in_the_address_is_not_shown(tmp_path: Path) -> None:
    uri = "http://me:secret@127.0.0.1:1"
    with pytest.raises(TrackingError, match=r"^http://me:\*\*\*@127\.0\.0\.1:1, from tracking_uri") as caught:
        open_store(tmp_path, SETTINGS.model_copy(update={"tracking_uri": uri}))
    assert "secret" not in str(caught.value)
    assert redacted("sqlite:////a:b/c@d.db") == "sqlite:////a:b/c@d.db"


def test_a_damaged_database_is_refused_at_once_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database " * 1000)
    begin = time.monotonic()
    with pytest.raises(TrackingError, match=r"mlflow\.db: .*not a database.*put a backup in its place") as caught:
        open_store(tmp_path, SETTINGS)
    assert caught.value.__cause__ is not None
    assert time.monotonic() - begin < 60, "MLflow alone tries for minutes"


def _of_the_future(database: Path) -> bytes:
    """Return a database that SQLite reads only, for root as well, by its write version."""
    content = bytearray(database.read_bytes())
    content[18] = 3
    return bytes(content)


def test_a_read_only_database_is_refused_although_it_could_be_opened(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(_of_the_future(made / "mlflow.db"))
    with pytest.raises(TrackingError, match=r"mlflow\.db: .*readonly database.*Make the file and its folder writable"):
        open_store(tmp_path, SETTINGS)


@pytest.mark.parametrize("kind", ["text", "read-only", "folder"])
def test_a_store_that_is_refused_is_left_untouched(made: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "mlflow.db"
    if kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"root:x:0:0\n" if kind == "text" else _of_the_future(made / "mlflow.db"))
    os.utime(place, ns=(1, 1))
    before = place.stat()
    with pytest.raises(TrackingError, match=r"mlflow\.db: runs cannot be recorded"):
        open_store(tmp_path, SETTINGS)
    after = place.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert list(tmp_path.rglob("*")) == [place]


def test_the_check_of_a_database_leaves_every_byte(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(made / "mlflow.db", tmp_path))
    assert database.has_known_tables(copy)
    assert copy.read_bytes() == (made / "mlflow.db").read_bytes()
    assert list(tmp_path.iterdir()) == [copy]


@pytest.mark.parametrize("uri", ["carrier-pigeon://loft/7", "sqlite:/mlflow.db", "oracle://me:secret@host/runs"])
def test_an_address_that_mlflow_does_not_know_is_refused_by_name(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrackingError, match=r", from tracking_uri in mlflow\.yml: MLflow cannot open it") as caught:
        open_store(tmp_path, SETTINGS.model_copy(update={"tracking_uri": uri}))
    assert caught.value.__cause__ is not None
    assert uri.partition(":")[0] in str(caught.value) and "secret" not in str(caught.value)


def test_any_folder_name_keeps_its_runs_to_itself(tmp_path: Path) -> None:
    project = tmp_path / "a%20b?c d#é"
    project.mkdir()
    store = open_store(project, SETTINGS)
    run = TrackedRun(store, "here", {})
    run.log_parameters({"seed": 1})
    run.end("FINISHED")
    assert open_store(project, SETTINGS).experiment_id == store.experiment_id
    assert list(tmp_path.iterdir()) == [project]
    assert {file.name for file in project.iterdir()} == {"mlflow.db", "mlflow.db.lock", "mlartifacts"}
    assert (project / "mlartifacts" / run.id / "artifacts/parameters.json").is_file()
    plain_name = tmp_path / "plain"
    plain_name.mkdir()
    shutil.copy(project / "mlflow.db", plain_name)
    assert MlflowClient(f"sqlite:///{plain_name}/mlflow.db").get_run(run.id).data.params == {"seed": "1"}


def test_half_a_character_in_a_parameter_is_refused_before_the_run_is_opened(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "mlflow.db", tmp_path)
    steps = before_run(hook_in(tmp_path, SETTINGS), "a\udc80")
    next(steps)
    with pytest.raises(TrackingError, match=r"^training\.note: "):
        steps.send(None)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("toy")
    assert experiment is not None and not client.search_runs([experiment.experiment_id])
