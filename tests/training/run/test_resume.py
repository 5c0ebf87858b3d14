import os
import shutil
import signal
import subprocess
import sys

import pytest

from everytoken.training.errors import CheckpointError, TrainingError
from everytoken.training.run.launch import run_job
from everytoken.training.step import HISTORY_FILE, StepHistory
from tests.models.tiny_llama import LLAMA
from tests.training.resuming import ignore, job
from tests.training.tiny import DATA, FAMILIES, file_digests, newest, training_parameters, write_inputs

pytestmark = pytest.mark.sensitive


def process(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.training.resuming", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of 20 steps: whole in this process; in another one up to step 10, or killed; and the rest in a third."""
    folder = tmp_path_factory.mktemp("resume")
    write_inputs(folder)
    for precision in ("float32", "bfloat16"):
        run_job(job(folder, "whole", precision), ignore)
    stopped = process("stop", folder)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    assert newest(job(folder, "stopped", "float32")).step == newest(job(folder, "stopped", "bfloat16")).step == 10
    assert newest(job(folder, "killed", "float32")).step in (5, 10, 15)
    shutil.copytree(folder / "stopped", folder / "half")
    going_on = process("go-on", folder)
    assert going_on.returncode == 0, going_on.stderr
    return folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_10_steps_and_10_in_a_new_process_are_20_to_the_bit(folder, precision):
    whole, resumed = newest(job(folder, "whole", precision)), newest(job(folder, "stopped", precision))
    assert resumed.step == 20
    digests = file_digests(resumed)
    assert {"model.safetensors", "optimizer.safetensors", "held_out.parquet", "samples.parquet"} <= set(digests)
    assert digests == file_digests(whole)
    assert resumed.digest == whole.digest


def test_precisions_differ(folder):
    digests = {newest(job(folder, "whole", precision)).digest for precision in ("float32", "bfloat16")}
    assert len(digests) == 2


def test_a_run_killed_at_any_step_ends_with_the_bytes_of_one_that_was_not(folder):
    assert newest(job(folder, "killed", "float32")).digest == newest(job(folder, "whole", "float32")).digest


@pytest.mark.slow
@pytest.mark.parametrize("family", ["open_mythos", "mamba3"])
def test_a_run_of_another_family_killed_twice_ends_with_the_bytes_of_one_that_was_not(folder, family):
    model = FAMILIES[family]
    killed = job(folder, family, "bfloat16", model=model)
    for step, kept in ((8, 5), (13, 10)):  # in the middle of a draw of depths, and between two moves of the routers
        stopped = process("family", folder, family, step)
        assert stopped.returncode == -signal.SIGKILL, stopped.stderr
        assert newest(killed).step == kept
    ended = process("family", folder, family)
    assert ended.returncode == 0, ended.stderr
    whole = job(folder, f"{family} whole", "bfloat16", model=model)
    run_job(whole, ignore)
    assert newest(killed).step == newest(whole).step == 20
    assert newest(killed).digest == newest(whole).digest
    history = StepHistory.read(newest(killed).folder / HISTORY_FILE)
    assert len(history) == 20
    if family == "open_mythos":
        assert len(set(history.column("budget").tolist())) > 10


def test_a_damaged_checkpoint_costs_steps_and_no_bit(folder):
    half = job(folder, "half", "float32")
    tensors = half.folder / "step_000000010" / "optimizer.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    assert newest(half).step == 5
    run_job(half, ignore)
    assert newest(half).digest == newest(job(folder, "whole", "float32")).digest


def test_weights_of_another_model_are_refused(folder, tmp_path):
    source = job(folder, "whole", "bfloat16")
    other = source.model_copy(
        update={
            "model": source.model.model_copy(update={"d_ff": 32}),
            "checkpoints": source.checkpoints.model_copy(update={"folder": str(tmp_path)}),
            "initial": newest(source).folder,
        }
    )
    with pytest.raises(TrainingError, match="d_ff=24"):
        run_job(other, ignore)


@pytest.mark.parametrize(
    "change",
    [
        {"model": LLAMA.model_copy(update={"d_ff": 32})},
        {"data": DATA.model_copy(update={"seed": 6})},
        {"held_out_sha256": "0" * 64},
        {"training": training_parameters(steps=40, batch_size=8)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_does_not_go_on_as_another_job_under_the_name_of_the_same_run(folder, change):
    other = job(folder, "whole", "bfloat16").model_copy(update=change)
    with pytest.raises(CheckpointError, match="the job of the checkpoint is another one than this"):
        run_job(other, ignore)
