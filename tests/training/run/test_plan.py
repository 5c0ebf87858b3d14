"""The plan of a run: the numbers of the published runs come out, and sums are those of real models and checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader

from everytoken.models import LlamaParameters
from everytoken.models.families import empty_model
from everytoken.tokens.order.parameters import DataParameters
from everytoken.training import (
    CheckpointParameters,
    DistributionParameters,
    ExecutionParameters,
    OptimisationParameters,
    TrainingError,
)
from everytoken.training.run import plan as plan_module
from everytoken.training.run.plan import make_training_plan
from everytoken.training.step import loss as loss_module
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import training_parameters

CONF = Path(__file__).parents[3] / "conf"
MERGED = {"parameters": "soft", "globals": "soft"}  # as in everytoken.settings
PUBLISHED_SIZES = {"compact": 427_681_689, "annotated": 102_772_028, "canary": 60_000}
BFLOAT16 = ExecutionParameters(threads=1, precision="bfloat16", matmul_precision="medium")
DATA = {
    "schedule": "spp",
    "weights": None,
    "replay": None,
    "later_epochs": "as_written",
    "seed": 0,
    "check": "sizes",
    "document_mask": False,
}
CHECKPOINTS = {"folder": "unused", "every_steps": 1000, "milestone_steps": None, "mirror": None}
ONE = {"processes": 1, "nodes": 1, "strategy": "ddp", "device": "cpu"}


def smollm2(d_model, n_layers, n_heads, n_kv_heads, d_ff):
    shape = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_ff": d_ff}
    return LlamaParameters(**{**LLAMA.model_dump(), **shape})


MODEL_1_7B = smollm2(2048, 24, 32, 32, 8192)
MODEL_3B = smollm2(3072, 28, 24, 8, 8192)


def arguments(model=LLAMA, data=None, checkpoints=None, distribution=None, sizes=None, vocab=61, seq=12, **training):
    return (
        model,
        training_parameters(**training),
        DataParameters(**{**DATA, **(data or {})}),
        CheckpointParameters(**{**CHECKPOINTS, **(checkpoints or {})}),
        DistributionParameters(**{**ONE, **(distribution or {})}),
    ), {"vocab_size": vocab, "seq_length": seq, "stream_sizes": sizes}


def planned(**changes):
    positional, named = arguments(**changes)
    return make_training_plan(*positional, **named)


def spp(model, steps, **changes):
    values = {"batch_size": 960, "micro_batch_size": 4, "execution": BFLOAT16, "warmup_steps": 2000}
    return planned(model=model, steps=steps, vocab=49_152, seq=2048, sizes=PUBLISHED_SIZES, **{**values, **changes})


@pytest.mark.parametrize(
    ("environment", "steps", "tokens", "parameters", "share"),
    [
        ("spp_1b7", 50_863, 100_000_000_000, 1_711_376_384, 9.20),
        ("spp", 254_313, 500_000_000_000, 2_969_742_336, 46.02),
    ],
)
def test_the_published_runs_have_their_numbers(environment, steps, tokens, parameters, share):
    loader = OmegaConfigLoader(str(CONF), env=environment, base_env="base", merge_strategy=MERGED)
    given = loader["parameters"]["training"]
    plan = make_training_plan(
        LlamaParameters(**given["model"]),
        OptimisationParameters(**given["optimisation"]),
        DataParameters(**given["data"]),
        CheckpointParameters(**given["checkpoints"]),
        DistributionParameters(**given["distribution"]),
        vocab_size=49_152,
        seq_length=2048,
        stream_sizes=PUBLISHED_SIZES,
    )
    assert plan.tokens_per_step == 960 * 2048 == 1_966_080
    assert plan.steps == steps
    assert plan.tokens == steps * 1_966_080 == pytest.approx(tokens, rel=1e-5)
    assert plan.parameters.total == parameters
    shares = {name: round(100 * stream.epochs, 2) for name, stream in plan.streams.items()}
    assert shares == dict.fromkeys(PUBLISHED_SIZES, share)
    assert sum(stream.windows for stream in plan.streams.values()) == pytest.approx(steps * 960)
    assert plan.flop == pytest.approx(6 * parameters * plan.tokens, rel=0.15)  # and attention
    assert plan.memory.total < 40e9  # fits a device of 40 GB


def test_the_lines_say_all_of_it():
    fsdp = {"processes": 8, "nodes": 2, "strategy": "fsdp", "device": "cuda"}
    positional, named = arguments(
        model=MODEL_3B,
        steps=254_313,
        batch_size=960,
        micro_batch_size=4,
        execution=BFLOAT16,
        distribution=fsdp,
        checkpoints={"milestone_steps": 50_000, "mirror": "elsewhere"},
        vocab=49_152,
        seq=2048,
        sizes=PUBLISHED_SIZES,
    )
    text = "\n".join(make_training_plan(*positional, **named).lines())
    for expected in (
        "parameters: 2,969,742,336",
        "  embedding: 150,994,944",
        "tokens: 1,966,080 a step x 254,313 steps = 499,999,703,040 (168.4 a parameter)",
        "each of 16 processes (fsdp): 15 micro-batches of at most 4 windows",
        "  unsharded:",
        "host memory while a checkpoint is gathered: 35.637 GB",
        "checkpoint: 35.637 GB; at most 16 at once: 570.191 GB",
        "canary: 27,612 of 60,000 windows, 46.02 % of an epoch",
    ):
        assert expected in text, text
    assert "output:" not in text


def test_no_tensor_is_made(monkeypatch):
    made = []

    def watched(*positional, **named):
        model = empty_model(*positional, **named)
        made.extend(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        return model

    monkeypatch.setattr("everytoken.models.families.empty_model", watched)
    spp(MODEL_3B, 5000)
    assert made and all(made)


def test_processes_share_the_batch_and_with_fsdp_the_state():
    alone, copies, shards = (
        spp(MODEL_1_7B, 50_863, distribution={"processes": 8, "strategy": strategy} if strategy else None)
        for strategy in (None, "ddp", "fsdp")
    )
    assert (alone.micro_batches, copies.micro_batches, shards.micro_batches) == (240, 30, 30)
    assert alone.memory == copies.memory
    assert copies.memory.parameters == copies.memory.gradients == 4 * 1_711_376_384
    assert copies.memory.moments == 8 * 1_711_376_384
    assert shards.memory.moments == pytest.approx(copies.memory.moments / 8)
    assert shards.memory.unsharded > 8 * 49_152 * 2048 > copies.memory.unsharded == 0
    assert shards.memory.total < copies.memory.total
    assert (alone.strategy, alone.host_memory, copies.host_memory) == ("alone", 0, 0)
    assert shards.host_memory == shards.checkpoint == 12 * 1_711_376_384


def test_the_first_process_needs_most_in_a_step_or_while_it_gathers_a_checkpoint():
    def peak(device, **changes):
        return spp(MODEL_1_7B, 50_863, distribution={"processes": 8, "strategy": "fsdp", "device": device}, **changes)

    host, device = peak("cpu", micro_batch_size=1, activation_checkpointing=True), peak("cuda", micro_batch_size=1)
    state, embedding = 12 * 1_711_376_384, 4 * 49_152 * 2048
    assert host.peak_memory == pytest.approx(state / 8 + state + embedding)
    assert host.peak_memory > host.memory.total
    assert device.peak_memory == device.memory.total
    line = f"peak memory of the first process: {device.memory.total / 1e9:.3f} GB of its device, 20.537 GB of the host"
    assert line in device.lines()
    assert f"peak memory of the first process: {host.peak_memory / 1e9:.3f} GB" in host.lines()
    alone = spp(MODEL_1_7B, 50_863)
    assert f"peak memory of the first process: {alone.memory.total / 1e9:.3f} GB" in alone.lines()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux shows the peak of a process")
def test_the_peak_of_the_first_process_is_what_it_takes_while_it_gathers(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MALLOC_MMAP_THRESHOLD_": "65536",  # what is freed is given back
        "GLOO_SOCKET_IFNAME": "lo",
    }
    subprocess.run([sys.executable, "-m", "tests.training.gathering", str(tmp_path)], env=environment, check=True)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert 0.8 < first["measured"] / first["planned"] < 1.2
    assert second["measured"] < 0.8 * first["measured"]


def test_activation_checkpointing_and_smaller_micro_batches_save_activations_alone():
    whole = spp(MODEL_1_7B, 50_863)
    again = spp(MODEL_1_7B, 50_863, activation_checkpointing=True)
    small = spp(MODEL_1_7B, 50_863, micro_batch_size=1)
    assert again.memory.activations < whole.memory.activations / 5
    assert small.memory.activations == whole.memory.activations / 4
    assert again.memory.moments == small.memory.moments == whole.memory.moments
    assert whole.flop == again.flop == small.flop


def test_a_batch_smaller_than_a_micro_batch_and_a_remainder_are_counted():
    assert planned(batch_size=4, micro_batch_size=4, distribution={"processes": 2}).micro_batch == 2
    assert planned(batch_size=7, micro_batch_size=4).micro_batches == 2


def test_checkpoints_are_the_newest_the_milestones_and_the_one_being_written():
    assert planned(steps=10_000).checkpoints == 3
    assert planned(steps=10_000, checkpoints={"milestone_steps": 2000}).checkpoints == 8
    assert planned(steps=10_000, checkpoints={"milestone_steps": 1500}).checkpoints == 6  # saved at multiples of 1,000
    assert planned(steps=10_000, checkpoints={"mirror": "elsewhere"}).checkpoints == 6


def test_a_checkpoint_has_the_planned_size(tmp_path):
    import torch

    from everytoken.training.checkpoints import write_tensors
    from everytoken.training.checkpoints.model import CheckpointConfig, save_model
    from everytoken.training.step.optimizer_state import OPTIMIZER_FILE, optimizer_tensors
    from tests.training.tiny import SEQ, VOCAB, tiny_model

    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters())
    config = CheckpointConfig(format="everytoken-checkpoint/1", model=LLAMA, vocab_size=VOCAB, seq_length=SEQ, eos_id=0)
    save_model(tmp_path, model, config)
    write_tensors(tmp_path / OPTIMIZER_FILE, optimizer_tensors(optimizer, model))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert planned(vocab=VOCAB, seq=SEQ).checkpoint <= size <= planned(vocab=VOCAB, seq=SEQ).checkpoint + 8192


def test_explicit_weights_and_their_changes_are_followed():
    weights = ({"from_step": 0, "weights": {"a": 3, "b": 1}}, {"from_step": 2, "weights": {"b": 1}})
    plan = planned(
        steps=6, batch_size=4, sizes={"a": 12, "b": 10, "c": 5}, data={"schedule": "integer", "weights": weights}
    )
    assert {name: stream.windows for name, stream in plan.streams.items()} == {"a": 6, "b": 2 + 16, "c": 0}
    assert plan.streams["b"].epochs == 1.8


def test_a_replay_reads_the_weights_of_the_steps_that_it_replays():
    weights = ({"from_step": 0, "weights": {"a": 1}}, {"from_step": 2, "weights": {"b": 1}})
    data = {"schedule": "integer", "weights": weights, "replay": (4, 28)}
    plan = planned(steps=6, batch_size=4, sizes={"a": 100, "b": 100}, data=data)
    assert {name: stream.windows for name, stream in plan.streams.items()} == {"a": 4, "b": 20}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distribution": {"processes": 3}}, "not a multiple of the 3 processes"),
        ({"sizes": {"a": 0}}, "stream a has no windows"),
        ({"sizes": {"a": 9}, "data": {"replay": (0, 5)}}, r"has 5 samples; 6 steps of 4 need 24"),
        (
            {"sizes": {"a": 9}, "data": {"schedule": "integer", "weights": ({"from_step": 0, "weights": {"z": 1}},)}},
            "name the stream z; the streams are a",
        ),
        (
            {"sizes": {"a": 9}, "data": {"schedule": "integer", "weights": ({"from_step": 0, "weights": {"a": 0}},)}},
            "no weight above 0",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes, message):
    with pytest.raises(TrainingError, match=message):
        planned(**changes)


def test_constants_of_the_loss_are_those_of_its_module():
    assert (plan_module._LOGIT_BYTES, plan_module._LOGIT_ROWS) == (loss_module.CHUNK_BYTES, loss_module._ROW_MULTIPLE)
