"""Tasks while training: the curve, and that the training does not notice it."""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from everytoken.benchmark_tasks import open_tasks
from everytoken.generation import ChatFiles, OpenedModel
from everytoken.tokens.tokenizer import open_tokenizer
from everytoken.training import TrainingError
from everytoken.training.checkpoints import load_model
from everytoken.training.parameters import PeriodicTasks
from everytoken.training.run.launch import launch, run_job
from everytoken.training.step import HeldOutRecord, TaskRecord
from tests.benchmark_tasks.local_tasks import write_tasks
from tests.training.tiny import EXECUTION, LOOKS, file_digests, newest, tiny_job, write_inputs

pytest.importorskip("lm_eval")

TRAINED = ("model.safetensors", "optimizer.safetensors", "history.parquet", "held_out.parquet", "samples.parquet")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    write_tasks(folder / "tasks")
    return folder


def tasks(inputs, **changes):
    given = {"every_steps": 3, "names": ("choices", "rolling"), "task_folder": str(inputs / "tasks"), "limit": 3}
    given["max_new_tokens"] = 8
    return {"tasks": PeriodicTasks(**{**given, **changes})}


def trained(job, run=run_job):
    figures = []
    run(job, lambda records: None, figures.extend)
    digests = file_digests(newest(job))
    return {name: digests[name] for name in TRAINED}, figures


def points(job):
    return [TaskRecord(**values) for values in newest(job).state["task_curve"]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_tasks_change_no_bit_of_the_training(inputs, tmp_path, precision):
    execution = EXECUTION.model_copy(update={"precision": precision})
    plain, _ = trained(tiny_job(inputs, tmp_path / "plain", steps=7, execution=execution, **LOOKS))
    job = tiny_job(
        inputs,
        tmp_path / "tasks",
        steps=7,
        execution=execution,
        **LOOKS,
        **tasks(inputs, names=("choices", "rolling", "texts")),
    )
    found, figures = trained(job)
    assert found == plain
    assert [(r.step, r.task) for r in points(job)] == [
        (step, task) for step in (2, 5) for task in ("choices", "rolling", "texts")
    ]
    assert [r for r in figures if isinstance(r, TaskRecord)] == points(job)
    assert [r.step for r in figures if isinstance(r, HeldOutRecord)][::2] == [2, 3, 5, 6]


def test_a_point_has_the_figures_of_the_model_of_that_step(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=6, **tasks(inputs))
    trained(job)
    model = load_model(newest(job).folder)
    opened = OpenedModel("m", model, open_tokenizer(job.tokenizer, job.eos_token).tokenizer, ChatFiles(), job.eos_id)
    expected = open_tasks(["choices", "rolling"], inputs / "tasks", seed=7).evaluate(
        opened, limit=3, batch_size=8, max_new_tokens=8
    )
    last = [record for record in points(job) if record.step == 5]
    assert [record.task for record in last] == ["choices", "rolling"]
    for record in last:
        result = expected["tasks"][record.task]
        assert record.metrics == result["metrics"] and record.metrics
        assert (record.version, record.sha256, record.examples) == (result["version"], result["sha256"], 3)
        assert record.lm_eval == expected["lm_eval"]
    assert {record.version for record in last} == {1, 3}
    assert points(job)[1].metrics != last[1].metrics  # the model learned in between


def generators():
    """Return a hash of the state of each generator."""
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    return [hash(state) for state in states]


def test_generators_of_the_process_are_put_back(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=3)
    trained(job)
    model = load_model(newest(job).folder)
    opened = OpenedModel("m", model, open_tokenizer(job.tokenizer, job.eos_token).tokenizer, ChatFiles(), job.eos_id)
    before = generators()
    open_tasks(["choices"], inputs / "tasks", seed=5).evaluate(opened, batch_size=8, max_new_tokens=8)
    assert generators() == before


@pytest.mark.sensitive
@pytest.mark.slow
def test_a_run_with_tasks_that_was_killed_ends_with_the_same_bytes(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path / "killed", steps=12, **LOOKS, **tasks(inputs))
    code = f"""
from everytoken.training.run.job import TrainingJob
from everytoken.training.run.launch import run_job
from tests.training.resuming import kill_in_step
with kill_in_step(8):
    run_job(TrainingJob.model_validate_json({job.model_dump_json()!r}), lambda records: None)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert newest(job).step == 5
    found, _ = trained(job)
    whole = tiny_job(inputs, tmp_path / "whole", steps=12, **LOOKS, **tasks(inputs))
    plain, _ = trained(tiny_job(inputs, tmp_path / "plain", steps=12, **LOOKS))
    assert found == trained(whole)[0] == plain
    assert points(job) == points(whole)
    assert [record.step for record in points(job)][::2] == [2, 5, 8, 11]


@pytest.mark.sensitive
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.slow
def test_of_several_processes_the_first_runs_the_tasks(inputs, tmp_path, strategy):
    shape = {"processes": 2, "strategy": strategy, "steps": 4}
    plain, _ = trained(tiny_job(inputs, tmp_path / "plain", **shape), launch)
    job = tiny_job(inputs, tmp_path / "tasks", **shape, **tasks(inputs))
    found, figures = trained(job, launch)
    assert found == plain
    assert figures == points(job)
    assert [(record.step, record.task) for record in figures] == [(2, "choices"), (2, "rolling")]


@pytest.mark.slow
def test_other_tasks_are_the_same_run(inputs, tmp_path):
    few, many = (tiny_job(inputs, tmp_path, **tasks(inputs, every_steps=n)) for n in (9, 2))
    assert few.content == many.content == tiny_job(inputs, tmp_path).content


def broken(inputs, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "mine.yaml").write_text("task: mine\n  metric_list: [")
    return {"task_folder": str(folder)}


def without_data(inputs, tmp_path):
    folder = write_tasks(tmp_path / "lost")
    text = (folder / "choices.yaml").read_text().replace("task: choices", "task: lost")
    (folder / "lost.yaml").write_text(text.replace("rows.jsonl", "no.jsonl"))
    return {"names": ("lost",), "task_folder": str(folder)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (without_data, r"optimisation\.tasks: lm-eval cannot run lost: .*no\.jsonl"),
        (broken, r"mine\.yaml is no task file: .* line 2, column \d+\. Correct or remove it"),
    ],
)
def test_what_cannot_be_opened_stops_the_run_before_its_first_step(inputs, tmp_path, changes, message):
    records = []
    with pytest.raises(TrainingError, match=message):
        run_job(tiny_job(inputs, tmp_path / "runs", **tasks(inputs, **changes(inputs, tmp_path))), records.extend)
    assert records == []


def test_a_missing_extra_stops_the_run_before_its_first_step(inputs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    records = []
    with pytest.raises(TrainingError, match=r"evaluation needs lm-eval .*: pip install 'everytoken\[eval\]'"):
        run_job(tiny_job(inputs, tmp_path, **tasks(inputs)), records.extend)
    assert records == []


def test_a_model_that_diverged_has_no_point_and_trains_on(inputs, tmp_path, caplog):
    job = tiny_job(
        inputs, tmp_path, steps=3, learning_rate=3e38, warmup_steps=0, max_skipped_in_a_row=100, **tasks(inputs)
    )
    trained(job)
    assert points(job) == []
    assert "tasks after 3 steps: " in caplog.text
    assert "so their curves have no point there" in caplog.text
