import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from pyarrow.parquet import read_table

from everytoken.parameters import TrainingParameters
from everytoken.training.checkpoints import (
    MODEL_FILE,
    OPTIMIZER,
    export_checkpoint,
    import_checkpoint,
    load_model,
    read_sharded,
    read_tensors,
    write_whole_model,
)
from everytoken.training.errors import CheckpointError, TrainingError
from everytoken.training.parameters import CheckpointParameters, DistributionParameters
from everytoken.training.run.launch import run_job
from everytoken.training.step.history import (
    HELD_OUT,
    HELD_OUT_FILE,
    HISTORY_FILE,
    SAMPLES,
    SAMPLES_FILE,
    HeldOutRecord,
    SampleRecord,
    read_records,
    term_names,
)
from everytoken.training.step.optimizer_state import OPTIMIZER_FILE
from tests.training.ranks import SHAPE, WORLDS, alone_job, before, jobs, sharded_job, taken_over
from tests.training.tiny import DATA, FAMILIES, file_digests, newest, tiny_job, training_parameters, write_inputs

pytestmark = pytest.mark.sensitive


@pytest.fixture(
    scope="module",
    params=["llama", *(pytest.param(family, marks=pytest.mark.slow) for family in ("open_mythos", "mamba3"))],
)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def alone(family, tmp_path_factory):
    """A run of one process, in the folder where the ranks find its checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    write_inputs(folder)
    job = alone_job(folder, family)
    run_job(job, lambda records: None)
    return job


@pytest.fixture(scope="module")
def two(alone, family):
    """The folder with what 2 processes did."""
    return ranked(alone.held_out.parent, family, 2)


@pytest.fixture(scope="module")
def four(two, family):
    """The folder with what 2 and 4 processes did; those go on from what these left."""
    return ranked(two, family, 4)


def ranked(folder, family, world):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.ranks", str(folder), family, str(world)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(world, family, request):
    return request.getfixturevalue("two" if world == 2 else "four")


WORLDS_OF_TESTS = [pytest.param(*one, marks=[pytest.mark.slow] if one[0] == 4 else []) for one in WORLDS]


def losses(job):
    return column(job, "loss")


def history(job):
    """Return the steps of a run, each with the further terms of its loss."""
    return read_table(newest(job).folder / HISTORY_FILE).to_pylist()


def column(job, name):
    return [row[name] for row in history(job)]


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_each_step_reads_the_same_samples_for_any_number_of_processes(folder, world, strategy):
    ranks = [json.loads((folder / f"{world}-{strategy}-{rank}.json").read_text())["samples"] for rank in range(world)]
    for step in range(8):
        assert [sample for rank in ranks for sample in rank[step]] == list(range(step * 8, step * 8 + 8))


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_losses_are_those_of_one_process(alone, folder, family, world, strategy):
    whole, _, _ = jobs(folder, family, world, strategy)
    assert losses(whole) == pytest.approx(losses(alone), abs=1e-5)
    assert column(whole, "grad_norm") == pytest.approx(column(alone, "grad_norm"), rel=1e-4)
    assert column(whole, "loss_tokens") == column(alone, "loss_tokens")
    terms = term_names(history(alone)[0])
    assert terms == {"open_mythos": ["budget", "balance"]}.get(family, [])
    for name in terms:
        assert column(whole, name) == pytest.approx(column(alone, name), rel=1e-4, abs=1e-6)


def biases(job):
    """Return the bias of each router by its name, from the checkpoint."""
    tensors = read_tensors(newest(job).folder / MODEL_FILE)
    return {name: tensor for name, tensor in tensors.items() if name.endswith("feed_forward.bias")}


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_routers_are_moved_by_the_choices_of_all_processes(alone, folder, family, world, strategy):
    expected, found = biases(alone), biases(jobs(folder, family, world, strategy)[0])
    assert found.keys() == expected.keys() and bool(found) == (family == "open_mythos")
    for name, bias in found.items():
        assert bias.abs().max() > 0.01  # more than one step of 0.01
        assert torch.allclose(bias, expected[name], atol=1e-6)


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_held_out_losses_and_samples_are_those_of_one_process(alone, folder, family, world, strategy):
    def looks(job):
        place = newest(job).folder
        held_out = read_records(place / HELD_OUT_FILE, HeldOutRecord, HELD_OUT)
        return held_out, read_records(place / SAMPLES_FILE, SampleRecord, SAMPLES)

    (held_out, texts), (expected, expected_texts) = looks(jobs(folder, family, world, strategy)[0]), looks(alone)
    assert [(r.step, r.source, r.bytes) for r in held_out] == [(r.step, r.source, r.bytes) for r in expected]
    assert [r.bits_per_byte for r in held_out] == pytest.approx([r.bits_per_byte for r in expected], rel=1e-5)
    assert texts == expected_texts


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_a_run_that_was_cut_ends_with_the_bytes_of_one_that_was_not(folder, family, world, strategy):
    whole, cut, _ = jobs(folder, family, world, strategy)
    assert file_digests(newest(cut)) == file_digests(newest(whole))


@pytest.mark.parametrize(("world", "strategy"), WORLDS_OF_TESTS)
def test_a_checkpoint_goes_on_with_another_number_of_processes_and_strategy(alone, folder, family, world, strategy):
    _, _, over = jobs(folder, family, world, strategy)
    assert losses(over)[:4] == losses(before(folder, family, world, strategy))[:4]
    assert losses(over) == pytest.approx(losses(alone), abs=1e-5)
    segments = newest(over).state["segments"]
    assert [segment["from_step"] for segment in segments] == [0, 4]
    assert segments[1]["processes"] == world and segments[1]["strategy"] == strategy


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_processes_goes_on_in_one(alone, two, family, strategy):
    job = tiny_job(two, two / f"1-from-2-{strategy}", model=FAMILIES[family], **SHAPE)
    taken_over(job, jobs(two, family, 2, strategy)[0])
    run_job(job, lambda records: None)
    assert losses(job) == pytest.approx(losses(alone), abs=1e-5)


SHARDED = [pytest.param(world, marks=[pytest.mark.slow] if world == 4 else []) for world in (2, 4)]


@pytest.mark.parametrize("world", SHARDED)
def test_checkpoints_in_shards_hold_the_bytes_of_whole_ones(request, family, world, tmp_path):
    """The run was cut after 4 of 8 steps, and went on from shards."""
    folder = request.getfixturevalue("two" if world == 2 else "four")
    job = sharded_job(folder, family, world)
    place, whole = newest(job).folder, newest(jobs(folder, family, world, "fsdp")[0]).folder
    assert len(list(place.glob(f"shard-*-of-{world:05}.safetensors"))) == world
    assert not {MODEL_FILE, OPTIMIZER_FILE} & {path.name for path in place.iterdir()}
    write_whole_model(place, tmp_path / MODEL_FILE)
    assert (tmp_path / MODEL_FILE).read_bytes() == (whole / MODEL_FILE).read_bytes()
    (line,) = import_checkpoint(place, tmp_path / "single", tokenizer=None, eos_token=None)
    assert f"{MODEL_FILE} of the shards" in line
    assert (tmp_path / "single" / MODEL_FILE).read_bytes() == (whole / MODEL_FILE).read_bytes()
    with pytest.raises(CheckpointError, match="everytoken import"):
        export_checkpoint(place, tmp_path / "exported", tokenizer=None)
    expected = read_tensors(whole / OPTIMIZER_FILE)
    found = {name: torch.full_like(tensor, torch.nan) for name, tensor in expected.items()}
    read_sharded(place, found, OPTIMIZER)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_shards_of_two_processes_go_on_in_one(alone, two, family):
    job = tiny_job(two, two / "1-from-2-shards", model=FAMILIES[family], **SHAPE)
    taken_over(job, sharded_job(two, family, 2))
    run_job(job, lambda records: None)
    assert losses(job) == pytest.approx(losses(alone), abs=1e-5)


def test_shards_need_fsdp():
    catalogued = CheckpointParameters(folder="checkpoints", every_steps=5, form="sharded")
    values = {"optimisation": training_parameters(), "data": DATA, "model": FAMILIES["llama"], "streams": ["compact"]}
    with pytest.raises(ValueError, match="Set strategy to fsdp, or form to whole"):
        TrainingParameters(**values, checkpoints=catalogued)
    fsdp = DistributionParameters(processes=2, strategy="fsdp")
    assert TrainingParameters(**values, checkpoints=catalogued, distribution=fsdp).checkpoints.form == "sharded"


def test_shards_that_do_not_fit_are_refused(two, family, tmp_path):
    place = tmp_path / "step_000000008"
    shutil.copytree(newest(sharded_job(two, family, 2)).folder, place)
    (place / "shard-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the shards of .*: expected .*, found .*"):
        load_model(place)


def test_a_batch_that_does_not_divide_is_an_error_that_says_so():
    from everytoken.training.step.distribution import Ranks

    with pytest.raises(TrainingError, match="batch_size = 8 is not a multiple of the 3 processes"):
        Ranks(1, 3, "ddp", None).rows(8)
    assert Ranks(1, 4, "ddp", None).rows(8) == slice(2, 4)
