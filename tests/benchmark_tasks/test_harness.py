"""The harness on a local task, with our model and with transformers' of the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from everytoken.benchmark_tasks import TaskError, open_tasks
from everytoken.cli import cli
from everytoken.generation import OpenedModel
from everytoken.serving import open_model
from everytoken.training.checkpoints import export_checkpoint, parameters_sha256
from tests.benchmark_tasks.local_tasks import ROWS, write_tasks
from tests.generation.talking import save_checkpoint
from tests.test_run import Project

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

CONTEXT = 120


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model"), CONTEXT)


@pytest.fixture(scope="module")
def theirs(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from lm_eval.models.huggingface import HFLM

    folder = tmp_path_factory.mktemp("exported") / "model"
    export_checkpoint(checkpoint, folder, tokenizer=None)
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=2, max_length=CONTEXT)


def figures(opened: OpenedModel, tasks: Path, names: list[str], **options: Any) -> dict[str, Any]:
    options = {"batch_size": 3, "max_new_tokens": 8, **options}
    return dict(open_tasks(names, tasks, seed=0).evaluate(opened, **options))


def test_log_likelihoods_are_those_of_transformers(checkpoint: Path, theirs: Any) -> None:
    from lm_eval.api.instance import Instance

    from everytoken.benchmark_tasks.harness import HarnessModel

    ours = HarnessModel(open_model(checkpoint), batch_size=3, seed=0, max_new_tokens=8)
    pairs = [(row["question"], choice) for row in ROWS for choice in row["choices"]]
    pairs += [("", "no context"), ("x" * 200, "long"), ("a ", " b")]
    asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for found, expected in zip(ours.loglikelihood(asked), theirs.loglikelihood(asked), strict=True):
        assert found == (pytest.approx(expected[0], abs=1e-4), expected[1])
    whole = [Instance("loglikelihood_rolling", {}, (row["text"],), number) for number, row in enumerate(ROWS)]
    rolled = zip(ours.loglikelihood_rolling(whole), theirs.loglikelihood_rolling(whole), strict=True)
    assert all(found == pytest.approx(expected, abs=1e-4 * 300) for found, expected in rolled)
    settings = {"until": ["e"], "max_gen_toks": 9, "do_sample": False}
    texts = [Instance("generate_until", {}, (row["question"], settings), number) for number, row in enumerate(ROWS)]
    assert ours.generate_until(texts) == theirs.generate_until(texts)


def test_a_task_gives_the_figures_of_transformers(checkpoint: Path, tasks: Path, theirs: Any) -> None:
    from lm_eval.tasks import TaskManager

    names = ["choices", "rolling", "texts"]
    expected = lm_eval.simple_evaluate(
        model=theirs,
        tasks=names,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    found = figures(open_model(checkpoint), tasks, names)
    for task in names:
        for name, value in found["tasks"][task]["metrics"].items():
            assert value == pytest.approx(expected[task].get(f"{name},none", expected[task].get(name)), abs=1e-4)
    assert {"acc", "acc_norm"} <= set(found["tasks"]["choices"]["metrics"])


@pytest.mark.slow
def test_an_evaluation_says_what_tells_it_from_others(checkpoint: Path, tasks: Path, tmp_path: Path) -> None:
    opened = open_model(checkpoint)
    found = figures(opened, tasks, ["choices"], limit=3)
    task = found["tasks"]["choices"]
    assert (task["version"], task["shots"], task["examples"], found["limit"]) == (3, 0, 3, 3)
    other = tmp_path / "tasks"
    other.mkdir()
    (other / "choices.yaml").write_text(
        (tasks / "choices.yaml").read_text().replace('}}"\ndoc_to_choice', '}}!"\ndoc_to_choice')
    )
    assert figures(opened, other, ["choices"])["tasks"]["choices"]["sha256"] != task["sha256"]
    assert figures(opened, tasks, ["choices"])["tasks"]["choices"]["sha256"] == task["sha256"]


def test_tasks_that_are_open_give_the_same_figures_again(checkpoint: Path, tasks: Path, tmp_path: Path) -> None:
    opened, options = open_model(checkpoint), {"batch_size": 3, "max_new_tokens": 8}
    folder = write_tasks(tmp_path)
    text = (folder / "choices.yaml").read_text()
    (folder / "choices.yaml").write_text(text + "num_fewshot: 2\nfewshot_split: train\n")
    several = open_tasks(["choices", "texts"], folder, shots=1, seed=0)
    first = several.evaluate(opened, **options)
    assert first["tasks"]["choices"]["shots"] == 1
    assert several.evaluate(opened, limit=2, **options)["tasks"]["choices"]["examples"] == 2
    assert (
        several.evaluate(opened, **options)
        == first
        == open_tasks(["choices", "texts"], folder, shots=1, seed=0).evaluate(opened, **options)
    )
    assert open_tasks(["choices"], folder, seed=0).evaluate(opened, **options)["tasks"]["choices"]["shots"] == 2


def test_a_task_file_that_is_no_yaml_is_named_with_the_error(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\n  metric_list: [")
    arguments = ["evaluate", str(checkpoint), "--tasks", "mine", "--task-folder", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert f"{tmp_path}/mine.yaml is no task file: " in result.stderr
    assert "line 2, column 14. Correct or remove it" in result.stderr
    (tmp_path / "mine.yaml").write_text("include: other.yaml\ntask: mine\n")
    result = CliRunner().invoke(cli, arguments)
    assert "mine.yaml is no task file: " in result.stderr and "other.yaml" in result.stderr


def test_the_command_prints_the_figures_and_writes_them(
    checkpoint: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "evaluate",
        checkpoint,
        "--tasks",
        "choices,rolling",
        "--task-folder",
        tasks,
        "--out",
        tmp_path / "r.json",
    ]
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["model"] == {"name": checkpoint.name, "sha256": parameters_sha256(open_model(checkpoint).model)}
    assert written["tasks"].keys() == {"choices", "rolling"}
    accuracy = written["tasks"]["choices"]["metrics"]["acc"]
    assert f"{'choices':<24}{'acc':<32}{accuracy:10.4f}" in result.stdout.splitlines()


@pytest.mark.parametrize("listed", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_a_task_that_nobody_has_is_named(
    checkpoint: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """The harness lists its 13,000 files, or as few as lie in another folder that it takes for its own."""
    if listed == "few":
        (tmp_path / "own.yaml").write_text((tasks / "rolling.yaml").read_text().replace("task: rolling", "task: own"))
        monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "manager.py"))
        open_tasks(["own"], tasks, seed=0)
    opened = open_model(checkpoint)
    with pytest.raises(TaskError, match="has no task nowhere; `lm_eval ls tasks` lists them, and --task-folder"):
        figures(opened, tasks, ["choices", "nowhere"])


def test_what_cannot_be_evaluated_is_named(checkpoint: Path, tasks: Path) -> None:
    opened = open_model(checkpoint)
    text = (tasks / "texts.yaml").read_text()
    (tasks / "long.yaml").write_text(text.replace("task: texts", "task: long").replace("toks: 9", "toks: 500"))
    with pytest.raises(TaskError, match="asks for 500 new tokens, and the model reads 120 in all: give fewer"):
        figures(opened, tasks, ["long"])
    (tasks / "beams.yaml").write_text(
        text.replace("task: texts", "task: beams").replace("toks: 9", "toks: 9, num_beams: 4")
    )
    with pytest.raises(TaskError, match=r"asks for generation with \['num_beams'\], which are not known here"):
        figures(opened, tasks, ["beams"])


@pytest.mark.slow
def test_in_a_project_the_figures_are_recorded(checkpoint: Path, tasks: Path, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    arguments = ["evaluate", checkpoint, "--tasks", "choices", "--task-folder", tasks, "--out", "r.json"]
    done = subprocess.run(
        [sys.executable, "-c", "from everytoken.cli import cli; cli()", *map(str, arguments)],
        cwd=project.folder,
        env=project.environment({}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run = MlflowClient(f"sqlite:///{project.folder}/mlflow.db").get_run(done.stderr.split()[-1])
    written = json.loads((project.folder / "r.json").read_text())
    task = written["tasks"]["choices"]
    assert run.data.metrics["choices.acc"] == task["metrics"]["acc"]
    assert run.data.params["tasks.choices.sha256"] == task["sha256"]
    assert run.data.params["tasks.choices.version"] == "3"
    assert run.data.tags["model.sha256"] == written["model"]["sha256"]
    (report,) = project.folder.glob("mlartifacts/**/reports/evaluate.json")
    assert json.loads(report.read_text()) == written


def test_data_that_is_missing_is_named_with_its_task(checkpoint: Path, tasks: Path) -> None:
    text = (tasks / "choices.yaml").read_text().replace("task: choices", "task: lost").replace("rows.jsonl", "no.jsonl")
    (tasks / "lost.yaml").write_text(text)
    with pytest.raises(TaskError, match=r"lm-eval cannot run lost: .*no\.jsonl"):
        figures(open_model(checkpoint), tasks, ["lost"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", ","], "names no task"),
        (["--tasks", "choices", "--out", "nowhere/r.json"], "there is no folder nowhere"),
    ],
)
def test_what_is_wrong_is_told_before_the_model_is_read(checkpoint: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["evaluate", str(checkpoint), *options])
    assert result.exit_code == 2
    assert message in result.stderr
