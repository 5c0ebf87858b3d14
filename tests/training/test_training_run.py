import logging
import math
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from everytoken.models.families import build_model
from everytoken.tokens import StreamError
from everytoken.training.checkpoint import load_model, parameters_sha256
from everytoken.training.errors import CheckpointError, NonFiniteError, TrainingError
from everytoken.training.history import (
    HELD_OUT,
    HELD_OUT_FILE,
    HISTORY,
    HISTORY_FILE,
    SAMPLES,
    SAMPLES_FILE,
    HeldOutRecord,
    SampleRecord,
    StepRecord,
    read_records,
)
from everytoken.training.job import read_job, write_job
from everytoken.training.run import launch, run_job
from tests.training.tiny import LLAMA, LOOKS, SEQ, file_digests, newest, stop_after, tiny_job, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def run(job):
    records = []
    run_job(job, records.extend)
    return records


def rows(checkpoint, file, kind, schema):
    return read_records(checkpoint.folder / file, kind, schema)


def test_a_run_ends_with_a_checkpoint_that_holds_what_it_did(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=7, **LOOKS)
    records = run(job)
    checkpoint = newest(job)
    assert checkpoint.step == 7
    assert set(file_digests(checkpoint)) >= {
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "history.parquet",
        "held_out.parquet",
        "samples.parquet",
        "state.json",
    }
    history = rows(checkpoint, HISTORY_FILE, StepRecord, HISTORY)
    assert [record.step for record in history] == list(range(7))
    assert [(r.step, r.loss, r.lr, r.grad_norm) for r in history] == [
        (r.step, r.loss, r.lr, r.grad_norm) for r in records
    ]
    held_out = rows(checkpoint, HELD_OUT_FILE, HeldOutRecord, HELD_OUT)
    assert [(r.step, r.source) for r in held_out] == [(3, "chat"), (3, "wiki"), (6, "chat"), (6, "wiki")]
    texts = rows(checkpoint, SAMPLES_FILE, SampleRecord, SAMPLES)
    assert [(r.step, r.prompt) for r in texts] == [(5, "abc"), (5, "")]
    state = checkpoint.state
    assert (state["run"], state["step"], state["tokens"], state["skipped_steps"]) == (job.run, 7, 7 * 8 * SEQ, 0)
    (segment,) = state["segments"]
    assert segment["from_step"] == 0 and segment["processes"] == 1 and segment["precision"] == "float32"
    assert load_model(checkpoint.folder).parameter_count() > 0
    assert "seconds" not in pq.read_schema(checkpoint.folder / HISTORY_FILE).names


def test_looking_at_held_out_documents_and_writing_samples_changes_no_bit_of_the_training(inputs, tmp_path):
    looking, plain = tiny_job(inputs, tmp_path / "a", steps=7, **LOOKS), tiny_job(inputs, tmp_path / "b", steps=7)
    run(looking), run(plain)
    first, second = file_digests(newest(looking)), file_digests(newest(plain))
    for name in ("model.safetensors", "optimizer.safetensors", "history.parquet"):
        assert first[name] == second[name]


def test_a_finished_run_is_left_as_it_is(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=3)
    assert len(run(job)) == 3
    before = newest(job).digest
    assert run(job) == []
    assert newest(job).digest == before


def test_a_checkpoint_of_another_run_is_refused(inputs, tmp_path):
    run(tiny_job(inputs, tmp_path, steps=3, run="b" * 16 + "1" * 48))
    with pytest.raises(CheckpointError, match="expected"):
        run(tiny_job(inputs, tmp_path, steps=3, run="b" * 16 + "2" * 48))


def test_a_change_of_machine_is_on_record_and_warned_of(inputs, tmp_path, caplog):
    job = tiny_job(inputs, tmp_path, steps=10)
    with stop_after(5):
        run(job)
    execution = job.training.execution.model_copy(update={"matmul_precision": "high"})
    other = job.model_copy(update={"training": job.training.model_copy(update={"execution": execution})})
    with caplog.at_level(logging.WARNING):
        run(other)
    assert "'matmul_precision': ('highest', 'high')" in caplog.text
    segments = newest(job).state["segments"]
    assert [(s["from_step"], s["matmul_precision"]) for s in segments] == [(0, "highest"), (5, "high")]


def test_a_run_can_start_from_the_weights_of_a_checkpoint(inputs, tmp_path):
    first = tiny_job(inputs, tmp_path, steps=3)
    run(first)
    start = newest(first).folder
    second = tiny_job(inputs, tmp_path, run="c" * 64, steps=3, learning_rate=1e-9).model_copy(update={"initial": start})
    run(second)
    drawn = build_model(LLAMA, vocab_size=257, max_seq_len=SEQ, seed=7)
    trained, continued = load_model(start), load_model(newest(second).folder)
    distance = sum((a - b).abs().max() for a, b in zip(trained.parameters(), continued.parameters(), strict=True))
    assert distance < 1e-6
    assert parameters_sha256(drawn) != parameters_sha256(trained)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"seq_length": 11}, StreamError, "'compact': 12.* 11"),
        ({"held_out": None}, TrainingError, "names no file"),
        ({"tokenizer": None}, TrainingError, "names none"),
    ],
)
def test_a_job_that_does_not_fit_is_an_error_before_the_first_step(inputs, tmp_path, change, kind, message):
    job = tiny_job(inputs, tmp_path, **LOOKS).model_copy(update=change)
    with pytest.raises(kind, match=message):
        run(job)
    assert newest(job) is None


def test_a_prompt_that_is_too_long_is_an_error_before_the_first_step(inputs, tmp_path):
    samples = LOOKS["samples"].model_copy(update={"prompts": ("x" * 40,)})
    with pytest.raises(TrainingError, match="has 41 tokens with the EOS"):
        run(tiny_job(inputs, tmp_path, samples=samples))


def test_a_replay_that_ends_too_early_is_an_error_before_the_first_step(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path)
    job = job.model_copy(update={"data": job.data.model_copy(update={"replay": (10, 100)})})
    with pytest.raises(TrainingError, match=r"read 160 samples, data.replay has 90; lower training.steps to 11"):
        run(job)


def test_a_job_survives_its_file(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, **LOOKS)
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job


def test_several_nodes_are_told_how_to_be_started(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, processes=2)
    job = job.model_copy(update={"distribution": job.distribution.model_copy(update={"nodes": 2})})
    with pytest.raises(TrainingError, match=r"torchrun --nnodes 2 --nproc-per-node 2 .*everytoken.training.worker"):
        launch(job, lambda records: None)
    assert read_job(job.live_folder / "job.json") == job


def test_processes_tell_what_they_did_and_the_error_of_the_one_that_failed(inputs, tmp_path, capfd):
    job = tiny_job(
        inputs, tmp_path, processes=2, every_steps=1, learning_rate=1e30, warmup_steps=0, max_skipped_in_a_row=2
    )
    records, held_out = [], []
    with pytest.raises(NonFiniteError, match=r"3 steps in a row were skipped.*in training process [01]") as raised:
        launch(job, records.extend, held_out.extend)
    assert "Traceback" not in str(raised.value) + capfd.readouterr().err
    assert [record.step for record in records] == list(range(len(records)))
    assert [record.skipped for record in records][-3:] == [False, True, True]
    assert math.isnan(records[-1].grad_norm) and all(record.seconds > 0 for record in records)
    assert newest(job).state["skipped_steps"] == 2  # the third is the error, and comes again when the run goes on
    history = rows(newest(job), HISTORY_FILE, StepRecord, HISTORY)
    assert [record.skipped for record in history] == [record.skipped for record in records]


def children(pid):
    listed = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"everytoken.training.worker {pid}" in line]


def test_the_processes_end_with_the_one_that_started_them_and_one_process_can_go_on(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, processes=2, every_steps=2, steps=100_000)
    write_job(tmp_path / "given.json", job)
    program = (
        "import sys; from pathlib import Path; from everytoken.training.job import read_job;"
        "from everytoken.training.run import launch; launch(read_job(Path(sys.argv[1])), lambda records: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "given.json")])
    mine = job.live_folder / "job.json"
    try:
        deadline = time.monotonic() + 120
        while newest(job) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(children(mine)) == 3
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 60
    while children(mine) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children(mine) == []
    done = newest(job).step
    with stop_after(done + 2):
        run(job)
    assert newest(job).step == done + 2
