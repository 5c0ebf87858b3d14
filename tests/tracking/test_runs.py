"""What real ``kedro run`` processes leave in a real MLflow store."""

from __future__ import annotations

import hashlib
import json
import re
import signal
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Run

from everytoken.cli.differences import comparison_lines
from everytoken.tracking.compare import compare_runs, read_recorded
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.opening import TrackingSettings, open_store
from tests.tracking.toy_project import ToyProject


class Runs:
    """The runs of a project, newest first."""

    def __init__(self, toy: ToyProject) -> None:
        self.client = MlflowClient(f"sqlite:///{toy.folder}/mlflow.db")

    def all(self) -> list[Run]:
        experiment = self.client.get_experiment_by_name("toy")
        assert experiment is not None
        return list(self.client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"]))

    def count(self) -> int:
        return len(self.all())

    def latest(self) -> Run:
        return self.all()[0]

    def text(self, run: Run, file: str) -> str:
        return (Path(run.info.artifact_uri.removeprefix("file://")) / file).read_text()


@pytest.fixture(scope="session")
def runs(toy: ToyProject, finished: Run) -> Runs:
    return Runs(toy)


@pytest.fixture(scope="session")
def finished(toy: ToyProject) -> Run:
    done = toy.python("-m", "kedro", "run", "--params", "sampling.rate=0.25")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alembic" not in done.stderr + done.stdout and "database tables" not in done.stderr + done.stdout
    return Runs(toy).latest()


def test_a_run_has_every_parameter_and_seed_that_its_nodes_read(finished: Run) -> None:
    parameters = {k: v for k, v in finished.data.params.items() if not k.startswith("digest.")}
    assert parameters == {
        "sampling.rate": "0.25",
        "sampling.seed": "7",
        "training.mode": "normal",
        "training.optimizer.lr": "0.01",
        "training.optimizer.betas": "[0.9, 0.95]",
        "training.seeds.init": "1",
        "training.seeds.order": "2",
    }


def test_parameters_json_is_complete(finished: Run, runs: Runs) -> None:
    recorded = json.loads(runs.text(finished, "parameters.json"))
    assert recorded["training"]["seeds"] == {"init": 1, "order": 2}
    assert recorded["training"]["optimizer"]["betas"] == [0.9, 0.95]
    assert "unrelated" not in recorded


def test_a_run_says_how_it_was_made(finished: Run, runs: Runs, toy: ToyProject) -> None:
    tags = finished.data.tags
    assert finished.info.status == "FINISHED"
    assert tags["kedro.command"].endswith(" -m kedro run --params sampling.rate=0.25")
    assert tags["mlflow.source.name"] == tags["kedro.command"]
    assert tags["mlflow.runName"] == "local · __default__ · sampling.rate=0.25"
    assert tags["kedro.pipelines"] == "__default__"
    assert tags["kedro.env"] == "local"
    assert json.loads(tags["kedro.runtime_params"]) == {"sampling": {"rate": 0.25}}
    assert tags["git.commit"] == tags["git.dirty"] == "unknown"
    assert "not a git repository" in tags["git.reason"]
    assert tags["version.kedro"].startswith("1.") and tags["version.python"].startswith("3.")
    assert int(tags["host.cores"]) >= int(tags["host.cores_usable"]) >= 1
    assert tags["host.cpu"] and tags["mlflow.user"]
    assert "host.name" not in tags  # what is kept names no machine
    assert re.search(r"^mlflow==3\.", runs.text(finished, "requirements.txt"), re.MULTILINE)


def test_every_dataset_is_recorded_with_digest_rows_and_bytes(finished: Run, toy: ToyProject, runs: Runs) -> None:
    files = {"documents", "sampling_metrics", "sampling_report", "training_history", "training_plot"}
    listed = runs.client.download_artifacts(finished.info.run_id, "datasets.json")
    datasets = json.loads(Path(listed).read_text())
    assert set(datasets) == files | {"sample"}, "nothing of what was not made"
    assert not [key for key in [*finished.data.params, *finished.data.tags] if "never_made" in key]
    assert {name for name, held in datasets.items() if held["was"] == "input"} == {"documents"}
    sample = (toy.folder / "data/sample/part").read_bytes()
    digest = hashlib.sha256(sample).hexdigest()
    # made here: that training then reads it changes nothing
    assert datasets["sample"] == {"was": "output", "digest": digest, "rows": 10, "bytes": len(sample)}
    assert finished.data.tags["made.sample"] == digest


def test_inputs_are_the_data_that_a_run_read_and_did_not_make(finished: Run, toy: ToyProject) -> None:
    assert finished.inputs is not None
    (read,) = finished.inputs.dataset_inputs
    documents = hashlib.sha256((toy.folder / "data/documents.json").read_bytes()).hexdigest()
    assert (read.dataset.name, read.dataset.digest) == ("documents", documents[:36])
    assert json.loads(read.dataset.source) == {"uri": "data/documents.json"}
    assert finished.data.params["digest.documents"] == documents[:16]


def test_seed_and_environment_are_tags(finished: Run) -> None:
    assert finished.data.tags["seed"] == "sampling.seed=7" and finished.data.tags["environment"] == "local"


def test_metrics_and_series_are_recorded(finished: Run, runs: Runs) -> None:
    assert finished.data.metrics["sampling.documents.in"] == 40
    assert finished.data.metrics["sampling.documents.kept"] == 10
    points = runs.client.get_metric_history(finished.info.run_id, "training.loss")
    assert {point.step: point.value for point in points} == {step: 1 / (step + 1) for step in range(1500)}
    assert len(points) == 1500, "what was announced while the node ran is not recorded again"


def test_reports_and_figures_are_artifacts(finished: Run, runs: Runs) -> None:
    assert json.loads(runs.text(finished, "reports/sampling_report.json")) == {"kept": 10}
    page = runs.text(finished, "figures.html")
    assert 'id="training_plot"' in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page), "the page must work without a network"
    assert json.loads(runs.text(finished, "figures/training_plot.json"))["data"][0]["type"] == "scatter"


@pytest.fixture(scope="session")
def reseeded(toy: ToyProject, finished: Run) -> Run:
    assert toy.kedro("--params", "sampling.rate=0.25,sampling.seed=8").returncode == 0
    return Runs(toy).latest()


def test_a_changed_seed_changes_that_parameter_and_the_digests_that_depend_on_it(finished: Run, reseeded: Run) -> None:
    one, two = finished.data.params, reseeded.data.params
    assert set(one) == set(two)
    assert {key for key in one if one[key] != two[key]} == {"sampling.seed", "digest.sample"}


def test_compare_prints_what_differs_between_two_runs(toy: ToyProject, finished: Run, reseeded: Run) -> None:
    settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
    lines = list(comparison_lines(compare_runs(toy.folder, settings, finished.info.run_id, reseeded.info.run_id[:12])))
    assert [line for line in lines if line.startswith("seeds:")] == ["seeds: 1 differ, 2 are equal"]
    assert "  sampling.seed  7  |  8" in lines
    assert "parameters: all 4 are equal" in lines
    assert any(re.match(r"  sample +[0-9a-f]{16}  \|  [0-9a-f]{16}$", line) for line in lines)
    assert "metrics: all 4 are equal" in lines
    with_last = compare_runs(toy.folder, settings, None, reseeded.info.run_id)
    assert with_last["A"][0] != reseeded.info.run_id and len(with_last["kinds"]["seeds"][0]) == 3
    with pytest.raises(TrackingError, match="no run begins with 'zzz'"):
        compare_runs(toy.folder, settings, "zzz", "last")
    with pytest.raises(TrackingError, match="there are only"):
        compare_runs(toy.folder, settings, "last", "last~999")


def test_compare_reads_a_run_that_died_before_its_parameters_were_written(toy: ToyProject, finished: Run) -> None:
    settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
    store = open_store(toy.folder, settings)
    half = store.client.create_run(store.experiment_id, run_name="half").info.run_id
    store.client.set_terminated(half, "KILLED")
    lines = list(comparison_lines(compare_runs(toy.folder, settings, half, finished.info.run_id)))
    assert lines[0].endswith("half  KILLED") and "parameters: all 0 are equal" in lines
    assert "  only B has 4 (--all)" in lines and not any(line.startswith("  sampling.rate") for line in lines)
    lines = list(comparison_lines(compare_runs(toy.folder, settings, half, finished.info.run_id), show_all=True))
    assert any(re.match(r"  sampling.rate +-  \|  0.25$", line) for line in lines)
    with pytest.raises(TrackingError, match="ran the same pipelines"):
        compare_runs(toy.folder, settings, None, half)
    store.client.delete_run(half)


@pytest.mark.sensitive
def test_what_a_run_announced_before_it_died_is_recorded(toy: ToyProject, runs: Runs) -> None:
    process = toy.asleep()
    assert toy.end(process, signal.SIGKILL) == -signal.SIGKILL
    points = runs.client.get_metric_history(runs.latest().info.run_id, "training.loss")
    assert [(point.step, point.value) for point in points] == [(0, 1.0), (1, 0.5)]


def test_a_parameter_that_no_node_reads_is_refused_before_a_run_is_opened(runs: Runs, toy: ToyProject) -> None:
    before = runs.count()
    refused = toy.kedro("--pipelines", "sampling", "--params", "samplng.seed=1,unrelated.seed=2,sampling.rate=0.1")
    assert refused.returncode != 0
    said = " ".join((refused.stdout + refused.stderr).split())
    assert "--params sets samplng.seed, unrelated.seed, which no node of this run reads. It reads: sampling." in said
    assert runs.count() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sampling.sede=1", ["sampling", "sede", "Extra inputs are not permitted"]),
        ("sampling.seed=x", ["sampling", "seed", "integer"]),
    ],
)
def test_a_typed_model_refuses_a_wrong_name_or_type(runs: Runs, toy: ToyProject, given: str, said: list[str]) -> None:
    before = runs.count()
    refused = toy.kedro("--params", given)
    assert refused.returncode != 0
    assert all(word in refused.stdout + refused.stderr for word in said)
    assert runs.count() == before


def test_a_failing_node_ends_the_run_as_failed_with_its_traceback(runs: Runs, toy: ToyProject) -> None:
    failed = toy.kedro("--params", "training.mode=fail")
    run = runs.latest()
    assert failed.returncode != 0 and "the loss is a banana" in failed.stdout + failed.stderr
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == "RuntimeError: the loss is a banana"
    assert "in train" in runs.text(run, "traceback.txt")
    assert run.data.params["training.seeds.order"] == "2", "a run that fails has all its seeds"


@pytest.mark.sensitive
def test_signals_end_runs_as_killed_and_the_dead_are_found(runs: Runs, toy: ToyProject) -> None:
    toy.end(toy.asleep(), signal.SIGKILL)
    dead = runs.latest().info.run_id
    assert runs.client.get_run(dead).info.status == "RUNNING"

    living = toy.asleep()  # finds the dead run
    alive = runs.latest().info.run_id
    found = runs.client.get_run(dead)
    assert found.info.status == "KILLED" and "without a word" in found.data.tags["error"]

    assert toy.end(toy.asleep(), signal.SIGINT) == 1
    interrupted = runs.latest()
    assert interrupted.info.status == "KILLED" and interrupted.data.tags["error"] == "SIGINT"

    assert runs.client.get_run(alive).info.status == "RUNNING", "another run's process lives: it is left alone"
    assert toy.end(living, signal.SIGTERM) == 128 + signal.SIGTERM
    terminated = runs.client.get_run(alive)
    assert terminated.info.status == "KILLED" and terminated.data.tags["error"] == "SIGTERM"


@pytest.mark.sensitive
def test_ctrl_c_ends_a_project_with_our_commands_in_one_line_and_exit_code_130(runs: Runs, toy: ToyProject) -> None:
    commands = toy.folder / "src/toy/cli.py"
    commands.write_text("from everytoken.cli import cli\n")
    try:
        process = toy.asleep()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    finally:
        commands.unlink()
    lines = output.splitlines()
    assert process.returncode == 130 and lines[-1] == "Interrupted. The same command resumes."
    assert "Traceback" not in output and "Aborted" not in output
    assert runs.latest().info.status == "KILLED" and runs.latest().data.tags["error"] == "SIGINT"


SESSIONS = """
import os, signal
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.runner import ParallelRunner
from everytoken.tracking import TrackingError

bootstrap_project(os.getcwd())
environment = dict(os.environ)
handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
for seed, mode in ((21, "normal"), (22, "fail"), (23, "word")):
    with KedroSession.create(runtime_params={"sampling": {"seed": seed}, "training": {"mode": mode}}) as session:
        try:
            session.run()
        except Exception as error:
            print(mode, "->", error)
with KedroSession.create() as session:
    try:
        session.run(runner=ParallelRunner())
    except TrackingError as error:
        print("parallel ->", error)
changed = dict(set(os.environ.items()) ^ set(environment.items()))
assert not changed, changed
assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
"""


@pytest.mark.sensitive
def test_sessions_in_one_process_are_separate_runs_and_nothing_stays_behind(runs: Runs, toy: ToyProject) -> None:
    before = runs.count()
    done = toy.python("-c", SESSIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = reversed(runs.all()[: runs.count() - before])
    assert [run.data.params["sampling.seed"] for run in (first, second, third)] == ["21", "22", "23"]
    assert [run.info.status for run in (first, second, third)] == ["FINISHED", "FAILED", "FAILED"]
    assert "parallel -> ParallelRunner runs nodes in processes of their own" in done.stdout
    assert "fail -> the loss is a banana" in done.stdout
    what = "column loss, row 3: expected a number, found str 'much'"
    assert what in third.data.tags["error"] and what in done.stdout, "what cannot be recorded is an error"


OPTIONS = """
import os, shutil, sys
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.runner import SequentialRunner, ThreadRunner
from everytoken.tracking import TrackingError

bootstrap_project(os.getcwd())
shutil.copytree("conf", "other_conf", dirs_exist_ok=True)
text = open("conf/base/parameters.yml").read()
open("other_conf/base/parameters.yml", "w").write(text.replace("seed: 7", "seed: 70"))
for conf, options in (
    (None, dict(to_outputs=["sample"])),
    (None, dict(to_nodes=["draw"])),
    (None, dict(node_names=["draw"])),
    ("other_conf", dict(pipeline_names=["sampling"])),
    (None, dict(pipeline_names=["sampling"], runner=SequentialRunner(is_async=True))),
    (None, dict(from_inputs=["sample"])),
    (None, dict(from_nodes=["training.t"])),
    (None, dict(tags=["late"])),
    (None, dict(namespaces=["training"])),
    (None, dict(only_missing_outputs=True)),
    (None, dict(load_versions={"documents": "2026-01-01T00.00.00.000Z"})),
    (None, dict(runner=ThreadRunner())),
):
    with KedroSession.create(conf_source=conf, runtime_params={}) as session:
        try:
            session.run(**options)
        except TrackingError as error:
            print("refused:", error)
"""


@pytest.mark.slow
def test_options_that_choose_what_runs_are_recorded_with_what_ran_or_refused(runs: Runs, toy: ToyProject) -> None:
    before = runs.count()
    done = toy.python("-c", OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    made = list(reversed(runs.all()[: runs.count() - before]))
    sampling = {"sampling.rate", "sampling.seed"}
    training = {key for key in made[-1].data.params if key.startswith("training.")}
    assert len(training) == 5
    for number, run in enumerate(made):
        read = {key for key in run.data.params if not key.startswith("digest.")}
        assert read == (sampling if number < 5 else training), run.data.tags["kedro.selection"]
        assert run.info.status == "FINISHED" and run.data.params["digest.sample"]
    assert [run.data.params["sampling.seed"] for run in made[:5]] == ["7", "7", "7", "70", "7"]
    assert len(made) == 9
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    for line, option in zip(refused, ("--only-missing-outputs", "--load-versions", "ThreadRunner"), strict=True):
        assert option in line and ("Leave it out" in line or "use the default" in line)


def test_kedro_without_a_run_loads_no_mlflow(toy: ToyProject) -> None:
    code = "import sys; sys.path.insert(0, 'src'); import toy.settings; print('mlflow' in sys.modules)"
    assert toy.python("-c", code).stdout.split()[-1] == "False"


def test_the_last_run_that_made_a_dataset_is_found_behind_those_that_did_not(runs: Runs, toy: ToyProject) -> None:
    settings = TrackingSettings(experiment="toy", tracking_uri="sqlite:///mlflow.db", artifacts="mlartifacts")
    made = [run for run in runs.all() if _made(run, "training_plot") and run.info.status == "FINISHED"]
    store = open_store(toy.folder, settings)
    reader = store.client.create_run(store.experiment_id, run_name="evaluation").info.run_id
    given = DatasetInput(Dataset("training_plot", "0", "local", "{}"), [InputTag("mlflow.data.context", "input")])
    store.client.log_inputs(reader, [given])
    try:
        newest = read_recorded(toy.folder, settings, "last", made={"training_plot"})
        assert runs.latest().info.run_id == reader and newest.id == made[0].info.run_id
        with pytest.raises(TrackingError, match=r"only \d+ runs that made one of \['training_plot'\]"):
            read_recorded(toy.folder, settings, f"last~{runs.count()}", made={"training_plot"})
    finally:
        store.client.delete_run(reader)


def _made(run: Run, name: str) -> bool:
    return f"made.{name}" in run.data.tags
