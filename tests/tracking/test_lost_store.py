"""A store that is lost while a run runs: the run ends as it would have, and the store gets every record once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from everytoken.tracking.delivery import Header, created
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import TrackedRun
from everytoken.tracking.store import mlflow_environment
from tests.tracking.toy_project import ToyProject
from tests.warm_kedro import Started, run_everytoken

pytestmark = [pytest.mark.sensitive, pytest.mark.slow]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    """A project with a sample, an empty backlog and a database."""
    toy = ToyProject(tmp_path_factory.mktemp("lost") / "project")
    done = toy.kedro("--pipelines", "sampling")
    assert done.returncode == 0, done.stdout
    return toy


def deliver(toy: ToyProject, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_everytoken(
        ["tracking", "deliver"], folder=toy.folder, environment={**toy.environment, **environment}, timeout=120
    )


def go(toy: ToyProject) -> None:
    (toy.folder / "data" / "go").touch()


def backlog(toy: ToyProject) -> list[Path]:
    return sorted((toy.folder / "mlflow.backlog").glob("*"))


def newest(uri: str) -> Run:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("toy")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"], max_results=1)
    return found[0]


def require_complete(uri: str, run: Run) -> None:
    """Check that a run has all that it has when its store is never lost, once."""
    client = MlflowClient(uri)
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "training.loss")
    assert sorted(point.step for point in points) == list(range(1500))
    assert all(point.value == 1 / (point.step + 1) for point in points)
    assert run.data.params["training.mode"] == "wait" and "error" not in run.data.tags
    assert run.inputs is not None
    recorded = [entry.dataset.name for entry in run.inputs.dataset_inputs]
    assert recorded == ["sample"] and "digest.sample" in run.data.params
    assert {"made.training_history", "made.training_plot"} <= set(run.data.tags)
    assert [file.path for file in client.list_artifacts(run.info.run_id, "figures")] == ["figures/training_plot.json"]


def test_a_database_that_is_locked_until_the_run_has_ended(lost: ToyProject) -> None:
    database = lost.folder / "mlflow.db"
    uri = f"sqlite:///{database}"
    process = lost.asleep("wait")
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        go(lost)
        output, _ = process.communicate()
        connection.execute("ROLLBACK")
    assert process.returncode == 0, output
    assert "does not have" in output and "everytoken tracking deliver" in output and "Traceback" not in output
    assert newest(uri).info.status == "RUNNING" and len(backlog(lost)) == 2
    first, second = deliver(lost), deliver(lost)
    assert first.returncode == second.returncode == 0, first.stderr
    assert "records delivered" in first.stdout and second.stdout.startswith("nothing to deliver")
    require_complete(uri, newest(uri))
    assert not (lost.folder / "mlflow.backlog").exists()


def test_a_database_that_was_moved_is_not_made_again_and_the_next_run_delivers(lost: ToyProject) -> None:
    database = lost.folder / "mlflow.db"
    uri = f"sqlite:///{database}"
    process = lost.asleep("wait")
    run = newest(uri).info.run_id
    moved = database.rename(lost.folder / "elsewhere.db")
    go(lost)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "mlflow.db is no longer in its folder" in output
    assert not database.exists(), "an empty database would be taken for the store"
    moved.rename(database)
    after = lost.kedro("--pipelines", "sampling")
    assert after.returncode == 0 and f"run {run}: " in after.stdout, after.stdout
    require_complete(uri, MlflowClient(uri).get_run(run))
    assert not backlog(lost)


def test_what_a_killed_run_has_kept_is_delivered_and_the_run_is_marked_killed(lost: ToyProject) -> None:
    database = lost.folder / "mlflow.db"
    uri = f"sqlite:///{database}"
    process = lost.asleep("wait")
    run = newest(uri).info.run_id
    alive = deliver(lost)
    assert alive.returncode == 0 and f"run {run}: has not ended" in alive.stdout
    moved = database.rename(lost.folder / "elsewhere.db")
    go(lost)
    file = lost.folder / "mlflow.backlog" / f"{run}.jsonl"
    while "made.training_plot" not in file.read_text():
        time.sleep(0.01)
        assert process.poll() is None, "its last record is written seconds before it ends"
    lost.end(process, signal.SIGKILL)
    moved.rename(database)
    assert deliver(lost).returncode == 0
    found = MlflowClient(uri).get_run(run)
    assert found.info.status == "KILLED" and "without a word" in found.data.tags["error"]
    assert len(MlflowClient(uri).get_metric_history(run, "training.loss")) == 1500


def free_port() -> int:
    """A port that no connection gets by itself: a server that is started again finds it free."""
    first = 10_000 + os.getpid() % 20_000
    for port in range(first, first + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no port from {first} on is free")


def test_eight_runs_that_start_together_in_a_fresh_project_all_end_well(tmp_path: Path) -> None:
    toy = ToyProject(tmp_path / "project")
    catalog = (toy.folder / "conf/base/catalog.yml").read_text()
    for number in range(8):  # two environments of equal content, each four times: in folders of their own
        folder = toy.folder / f"conf/environment_{number}"
        folder.mkdir()
        (folder / "catalog.yml").write_text(
            catalog.replace("data/", f"data/{number}/").replace(f"data/{number}/documents", "data/documents")
        )
        (folder / "parameters.yml").write_text(f"sampling: {{rate: 0.5, seed: {number % 2}}}\n")
    started = [
        Started(["kedro", "run", "--env", f"environment_{number}"], toy.folder, toy.environment) for number in range(8)
    ]
    ended = [process.run(600) for process in started]
    assert [done.returncode for done in ended] == [0] * 8, [done.stdout for done in ended if done.returncode]
    client = MlflowClient(f"sqlite:///{toy.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("toy")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in found] == ["FINISHED"] * 8
    inputs = [run.inputs.dataset_inputs for run in found if run.inputs is not None]
    assert [[entry.dataset.name for entry in of_run] for of_run in inputs] == [["documents"]] * 8
    assert len({run.data.params["digest.sample"] for run in found}) == 2
    assert not backlog(toy)


class Server:
    """A real MLflow server on loopback, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = ["--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        artifacts = ["--artifacts-destination", str(self._folder / "artifacts")]
        place = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, *artifacts, *place],
            cwd=self._folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # seven processes that nobody needs
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            assert self._process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def test_a_server_that_dies_and_comes_back(lost: ToyProject, server: Server) -> None:
    address = {"MLFLOW_TRACKING_URI": server.uri}
    process = lost.asleep("wait", **address)
    run = newest(server.uri).info.run_id
    server.kill()
    go(lost)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert f"{server.uri} is lost" in output and "Traceback" not in output
    refused = deliver(lost, **address)
    assert refused.returncode == 1 and "no MLflow server answers" in refused.stderr
    elsewhere = deliver(lost)
    assert elsewhere.returncode == 1 and f"they belong to {server.uri}" in elsewhere.stdout
    server.start()
    delivered = deliver(lost, **address)
    assert delivered.returncode == 0, delivered.stdout + delivered.stderr
    require_complete(server.uri, MlflowClient(server.uri).get_run(run))


def test_models_that_a_server_missed_are_delivered_once_with_their_dataset(
    lost: ToyProject, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
    with mlflow_environment():  # as in a run of Kedro: else MLflow alone tries for minutes
        run = TrackedRun(open_store(lost.folder, settings), "models", {})
        server.kill()
        for step, name in ((4, "checkpoint_step_4"), (8, "checkpoint")):
            tags, metrics = {"root_digest": "a" * 64}, [("checkpoint.held_out_bits_per_byte", step, 4.0 / step)]
            model = {"name": name, "step": step, "params": {"step": str(step)}, "tags": tags, "metrics": metrics}
            run.log_model(model, ("held_out_documents", "b" * 64))
        run.end("FINISHED")
    server.start()
    delivered = deliver(lost, MLFLOW_TRACKING_URI=server.uri)
    assert delivered.returncode == 0, delivered.stdout + delivered.stderr
    client = MlflowClient(server.uri)
    found = client.get_run(run.id)
    assert found.outputs is not None and found.info.status == "FINISHED"
    outputs = sorted(found.outputs.model_outputs, key=lambda output: output.step)
    models = [client.get_logged_model(output.model_id) for output in outputs]
    assert [(model.name, str(model.status), model.params) for model in models] == [
        ("checkpoint_step_4", "READY", {"step": "4"}),
        ("checkpoint", "READY", {"step": "8"}),
    ]
    for model, step in zip(models, (4, 8), strict=True):
        (metric,) = model.metrics or ()
        assert (metric.step, metric.value, metric.dataset_name) == (step, 4.0 / step, "held_out_documents")
        assert metric.dataset_digest == "b" * 36
    assert not client.list_artifacts(run.id), "no weights are uploaded"
    assert not backlog(lost)


def test_a_run_whose_server_is_back_before_it_ends_delivers_all_by_itself(lost: ToyProject, server: Server) -> None:
    process = lost.asleep("wait", MLFLOW_TRACKING_URI=server.uri)
    run = newest(server.uri).info.run_id
    server.kill()
    server.start()
    MlflowClient(server.uri).get_run(run)  # its first answer is slow, and a run waits for 2 seconds
    go(lost)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    require_complete(server.uri, MlflowClient(server.uri).get_run(run))
    assert not backlog(lost)


def test_a_delivery_that_is_killed_and_repeated_by_two_at_once_sends_each_record_once(lost: ToyProject) -> None:
    settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
    store = open_store(lost.folder, settings)
    run = store.client.create_run(store.experiment_id).info.run_id
    kept = created(store.backlogs, Header(store.shown, run))
    kept.append({"params": {"seed": "1"}})
    for step in range(400):
        kept.append({"metrics": [[f"loss.{key}", math.nan if key == 3 else step / 7, step, step] for key in range(50)]})
    kept.append_file(lost.folder / "conf/base/mlflow.yml", "reports/mlflow.yml")
    kept.append({"end": "FINISHED", "time": 1000})
    kept.close()

    def count() -> int:
        query = "SELECT count(*) FROM metrics WHERE run_uuid = ?"
        with contextlib.closing(sqlite3.connect(lost.folder / "mlflow.db", timeout=60)) as connection:
            return int(connection.execute(query, (run,)).fetchone()[0])

    def start() -> Started:
        return Started(["everytoken", "tracking", "deliver"], lost.folder, lost.environment)

    for so_many in (1, 8000):
        process = start()
        while count() < so_many and process.poll() is None:
            time.sleep(0.01)
        assert lost.end(process, signal.SIGKILL) in (-signal.SIGKILL, 0)
    both = [start(), start()]
    assert [process.wait(120) for process in both] == [0, 0]
    assert count() == 20_000
    found = store.client.get_run(run)
    assert found.data.params == {"seed": "1"} and (found.info.status, found.info.end_time) == ("FINISHED", 1000)
    assert [file.path for file in store.client.list_artifacts(run, "reports")] == ["reports/mlflow.yml"]
    assert not backlog(lost)
