import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from everytoken.models.families import build_model
from everytoken.shards import file_sha256
from everytoken.shards.atomic import sole_writer
from everytoken.tokens import StreamError
from everytoken.tokens.order.loader import TrainingWindows
from everytoken.tokens.order.stream_files import StreamFiles
from everytoken.training.checkpoints.model import load_model, parameters_sha256
from everytoken.training.errors import CheckpointError, NonFiniteError, TrainingError
from everytoken.training.run import session
from everytoken.training.run.job import read_job, write_job
from everytoken.training.run.launch import launch, run_job
from everytoken.training.run.progress import with_progress
from everytoken.training.run.worker import _ended_by
from everytoken.training.step.execution_context import describe_machine
from everytoken.training.step.history import (
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
from tests.models.tiny_llama import LLAMA
from tests.shards.children import wait_until
from tests.training.tiny import LOOKS, SEQ, file_digests, newest, stop_after, tiny_job, write_inputs


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


@pytest.fixture(scope="module")
def plain(inputs, tmp_path_factory):
    """A run of 7 steps that looks at nothing."""
    job = tiny_job(inputs, tmp_path_factory.mktemp("plain"), steps=7)
    run(job)
    return newest(job)


@pytest.mark.parametrize(
    "looks",
    [
        {"every_steps": 4, "curve_every_steps": None},
        {"every_steps": 1, "curve_every_steps": None},
        {"every_steps": 100, "curve_every_steps": 1},
        {"every_steps": 4, "curve_every_steps": 3},
        {"every_steps": 4, "curve_every_steps": 2, "documents": 1, "batch_size": 1},
    ],
)
def test_looking_at_held_out_documents_and_writing_samples_changes_no_bit_of_the_training(
    inputs, tmp_path, plain, looks
):
    job = tiny_job(inputs, tmp_path, steps=7, **LOOKS | {"held_out": LOOKS["held_out"].model_copy(update=looks)})
    run(job)
    looking = newest(job)
    first, second = file_digests(looking), file_digests(plain)
    for name in ("model.safetensors", "optimizer.safetensors", "history.parquet"):
        assert first[name] == second[name]
    assert parameters_sha256(load_model(looking.folder)) == parameters_sha256(load_model(plain.folder))


def test_the_curve_has_more_points_than_the_result_and_they_are_told_while_it_trains(inputs, tmp_path):
    told, recorded = {}, {}
    for name, curve in (("a", None), ("b", 2)):
        held_out = LOOKS["held_out"].model_copy(update={"curve_every_steps": curve})
        job = tiny_job(inputs, tmp_path / name, steps=7, held_out=held_out)
        told[name] = []
        run_job(job, lambda records: None, told[name].extend)
        recorded[name] = newest(job)
    one, other = recorded["a"], recorded["b"]
    assert file_digests(one)["held_out.parquet"] == file_digests(other)["held_out.parquet"]
    assert one.state["job"] == other.state["job"] and one.state["held_out_curve"] == []
    curve = [HeldOutRecord(**values) for values in other.state["held_out_curve"]]
    assert [(r.step, r.source) for r in curve] == [(1, "chat"), (1, "wiki"), (5, "chat"), (5, "wiki")]
    result = rows(other, HELD_OUT_FILE, HeldOutRecord, HELD_OUT)
    assert [r for r in told["b"] if r not in curve] == told["a"] == result
    assert [r.step for r in told["b"][::2]] == [1, 3, 5, 6]


def test_a_run_goes_on_with_another_curve_and_keeps_its_points(inputs, tmp_path):
    def job(curve):
        return tiny_job(
            inputs, tmp_path, steps=10, held_out=LOOKS["held_out"].model_copy(update={"curve_every_steps": curve})
        )

    with stop_after(5):
        run(job(1))
    run(job(3))
    assert [values["step"] for values in newest(job(3)).state["held_out_curve"][::2]] == [0, 1, 2, 4, 5, 8]


def test_a_checkpoint_of_0_1_0_has_no_curve_and_is_gone_on_from(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=10, **LOOKS)
    with stop_after(5):
        run(job)
    folder = newest(job).folder
    state = json.loads((folder / "state.json").read_text())
    del state["state"]["held_out_curve"]
    (folder / "state.json").write_text(json.dumps(state))
    sums = [line for line in (folder / "SHA256SUMS").read_text().splitlines() if not line.endswith("state.json")]
    sums.append(f"{file_sha256(folder / 'state.json')}  state.json")
    (folder / "SHA256SUMS").write_text("".join(line + "\n" for line in sorted(sums, key=lambda line: line[66:])))
    assert newest(job).step == 5
    run(job)
    assert [values["step"] for values in newest(job).state["held_out_curve"][::2]] == [5, 8]


def test_a_point_of_the_curve_that_is_not_finite_is_left_out_and_ends_no_run(inputs, tmp_path, caplog):
    held_out = LOOKS["held_out"].model_copy(update={"every_steps": 100, "curve_every_steps": 1})
    job = tiny_job(
        inputs, tmp_path, steps=3, learning_rate=3e38, warmup_steps=0, max_skipped_in_a_row=100, held_out=held_out
    )
    with pytest.raises(NonFiniteError, match="after 3 of 3 steps"):  # the last one is part of the result
        run(job)
    assert "held-out after 1 step: not finite, so the curve has no point there" in caplog.text


def test_a_finished_run_is_left_as_it_is(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, steps=3)
    assert len(run(job)) == 3
    before = newest(job).digest
    assert run(job) == []
    assert newest(job).digest == before


def test_a_finished_run_copies_to_the_mirror_what_a_killed_copy_left_out(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path / "runs", steps=3, every_steps=2)
    job = job.model_copy(
        update={"checkpoints": job.checkpoints.model_copy(update={"mirror": str(tmp_path / "mirrors")})}
    )
    run(job)
    last = job.mirror / "step_000000003"
    last.rename(job.mirror / ".step_000000003.7.tmp")
    assert run(job) == []
    assert sorted(path.name for path in job.mirror.iterdir()) == ["step_000000002", "step_000000003"]
    assert (last / "SHA256SUMS").read_bytes() == (newest(job).folder / "SHA256SUMS").read_bytes()


def overwrite(file):
    with file.open("r+b") as opened:
        opened.write(b"\1")


def replace(file):
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.rename(file)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("compact/compact.bin", overwrite),
        ("annotated/annotated.idx", replace),
        ("annotated/token_lengths.npy", Path.unlink),
    ],
)
def test_nothing_is_saved_of_a_stream_that_was_changed_while_it_trained(inputs, tmp_path, monkeypatch, file, change):
    shutil.copytree(inputs, tmp_path / "inputs")
    job = tiny_job(tmp_path / "inputs", tmp_path / "cut", steps=6, every_steps=2)
    path = tmp_path / "inputs" / "streams" / file
    original, read = path.read_bytes(), TrainingWindows.read

    def changing(self, samples):
        if samples[0] == 3 * 8:
            change(path)
        return read(self, samples)

    with monkeypatch.context() as patched, pytest.raises(TrainingError) as raised:
        patched.setattr(TrainingWindows, "read", changing)
        run(job)
    assert str(raised.value).startswith(f"{path} was changed after training began to read it: expected ")
    assert "Nothing was saved since step 2: put the file back as it was and run the same command" in str(raised.value)
    assert newest(job).step == 2
    path.write_bytes(original)
    run(job)
    whole = tiny_job(inputs, tmp_path / "whole", steps=6, every_steps=2)
    run(whole)
    assert newest(job).digest == newest(whole).digest


@pytest.mark.parametrize("file", ["compact/compact.bin", "annotated/annotated.bin", "annotated/token_lengths.npy"])
def test_no_step_is_done_with_what_was_read_of_a_stream_that_was_cut(inputs, tmp_path, monkeypatch, file):
    shutil.copytree(inputs, tmp_path / "inputs")
    job, records = tiny_job(tmp_path / "inputs", tmp_path / "cut", steps=6, every_steps=2), []
    path, read = tmp_path / "inputs" / "streams" / file, TrainingWindows.read

    def cutting(self, samples):
        batch = read(self, samples)
        if samples[0] == 3 * 8:
            os.truncate(path, path.stat().st_size // 2)
        return batch

    monkeypatch.setattr(TrainingWindows, "read", cutting)
    with pytest.raises(TrainingError, match=rf"{path.name} was changed after.*Nothing was saved since step 2"):
        run_job(job, records.extend)
    assert [record.step for record in records] == [0, 1, 2]
    assert newest(job).step == 2


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_stream_that_is_cut_at_any_moment_ends_the_run_with_its_name(inputs):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.training.cut_streams", str(inputs), "50"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ends) == 50 and all(end["code"] not in (0, 99) for end in ends), ends
    assert sum(f"{end['file']} was changed after" in end["message"] for end in ends) >= 49, ends


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("annotated", {"annotated.bin", "annotated.idx", "token_lengths.npy"}),
        ("annotated/annotated", {"annotated.bin", "annotated.idx", "token_lengths.npy"}),
        ("annotated/annotated.idx", {"annotated.bin", "annotated.idx", "token_lengths.npy"}),
        ("raw", {"shard_0.bin", "manifest.json"}),
        ("raw/shard_0.bin", {"shard_0.bin", "manifest.json"}),
    ],
)
def test_every_file_of_a_stream_is_watched_and_no_other(inputs, tmp_path, place, expected):
    shutil.copytree(inputs / "streams", tmp_path, dirs_exist_ok=True)
    (tmp_path / "raw").mkdir()
    for name in ("shard_0.bin", "manifest.json"):
        (tmp_path / "raw" / name).write_text(name)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    watched = set()
    for path in files:
        now = StreamFiles({"stream": tmp_path / place})
        assert now.change() is None
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
        if now.change() is not None:
            watched.add(path.name)
    assert watched == expected


def test_a_checkpoint_of_another_run_is_refused(inputs, tmp_path):
    run(tiny_job(inputs, tmp_path, steps=3, run="b" * 16 + "1" * 48))
    with pytest.raises(CheckpointError, match="expected"):
        run(tiny_job(inputs, tmp_path, steps=3, run="b" * 16 + "2" * 48))


def test_a_change_of_machine_is_on_record_and_warned_of(inputs, tmp_path, caplog, monkeypatch):
    job = tiny_job(inputs, tmp_path, steps=10)
    with stop_after(5):
        run(job)

    def another_machine(execution):
        return describe_machine(execution) | {"cpu": "another"}

    monkeypatch.setattr(session, "describe_machine", another_machine)
    with caplog.at_level(logging.WARNING):
        run(job)
    here = describe_machine(job.training.execution)["cpu"]
    assert str({"cpu": (here, "another")}) in caplog.text
    segments = newest(job).state["segments"]
    assert [(s["from_step"], s["cpu"]) for s in segments] == [(0, here), (5, "another")]


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
    with pytest.raises(TrainingError, match=r"read 160 samples, data.replay has 90; lower optimisation.steps to 11"):
        run(job)


def test_a_job_survives_its_file(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, **LOOKS)
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job


def test_several_nodes_are_told_how_to_be_started(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, processes=2)
    job = job.model_copy(update={"distribution": job.distribution.model_copy(update={"nodes": 2})})
    with pytest.raises(TrainingError, match=r"torchrun --nnodes 2 --nproc-per-node 2 .*everytoken.training.run.worker"):
        launch(job, lambda records: None)
    assert read_job(job.live_folder / "job.json") == job


@pytest.mark.slow
@pytest.mark.sensitive
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


def test_a_run_that_ends_on_skipped_steps_says_so(inputs, tmp_path, caplog):
    run(tiny_job(inputs, tmp_path / "right"))
    assert "updated nothing" not in caplog.text
    job = tiny_job(inputs, tmp_path / "wrong", learning_rate=1e30, warmup_steps=0, max_skipped_in_a_row=100)
    run(job)
    assert re.search(r"the last \d+ of 20 steps updated nothing, .* may have diverged\. Lower ", caplog.text)


@pytest.mark.parametrize("looks", ["samples", "held_out"])
def test_a_run_that_diverged_says_after_which_step_with_which_loss_and_rate(inputs, tmp_path, looks):
    look = LOOKS[looks].model_copy(update={"every_steps": 1})
    job = tiny_job(inputs, tmp_path, learning_rate=3e38, warmup_steps=0, max_skipped_in_a_row=100, **{looks: look})
    message = r"after 1 of 20 steps, with loss 5\.\d+ and learning rate 2\.\d+e\+38: .*lower optimisation\."
    with pytest.raises(NonFiniteError, match=message):
        run(job)
    assert newest(job) is None


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_changed_stream_ends_all_processes_and_leaves_nothing_of_what_they_told(inputs, tmp_path):
    shutil.copytree(inputs, tmp_path / "inputs")
    job = tiny_job(tmp_path / "inputs", tmp_path / "runs", processes=2, every_steps=2, steps=100_000)
    dead = job.live_folder / "processes_of_a_killed_parent"
    dead.mkdir(parents=True)
    (dead / "records.jsonl").touch()
    seen = []

    def change(records):
        seen.extend(path.name for path in job.live_folder.glob("processes_*"))
        overwrite(tmp_path / "inputs" / "streams" / "compact" / "compact.bin")

    with pytest.raises(
        TrainingError, match=r"compact\.bin was changed after.*Nothing was saved since step \d*[02468]:"
    ):
        launch(job, change)
    assert seen and dead.name not in seen
    assert [path.name for path in job.live_folder.iterdir()] == ["job.json"]


def test_two_launches_of_a_run_at_a_time_are_refused(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, processes=2)
    (job.live_folder / "processes_of_the_other").mkdir(parents=True)
    with (
        sole_writer(job.live_folder),
        pytest.raises(CheckpointError, match="another process trains this run; wait for it, or stop it"),
    ):
        launch(job, lambda records: None)
    assert (job.live_folder / "processes_of_the_other").exists()


@pytest.mark.sensitive
def test_a_process_that_is_done_ends_well_whatever_threads_do_at_the_end_of_the_interpreter(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path / "runs", steps=3)
    write_job(tmp_path / "given.json", job)
    # as gloo's threads sometimes do
    program = (
        "import atexit, os; atexit.register(os.abort)\n"
        "from everytoken.training.run.worker import run_process\nrun_process()"
    )
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "given.json")],
        env={**os.environ, **rank},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "training: 3 of 3 steps" in done.stderr
    assert newest(job).step == 3


def test_memory_is_blamed_for_signal_9_alone():
    assert "memory" in _ended_by(9)
    assert "memory" not in _ended_by(6) and "signal 6" in _ended_by(6)
    assert "a file of a stream was cut" in _ended_by(signal.SIGBUS)


def test_a_line_of_progress_says_no_speed_before_one_was_measured(caplog):
    records = [StepRecord(step, (step + 1) * 100, 100, 2.0, 0.1, 1.0, skipped=False, seconds=0.5) for step in range(2)]
    with caplog.at_level(logging.INFO):
        assert list(with_progress(records, first_step=0, steps=2, flop_per_token=3.0, peak=6000.0)) == records
    first, last = (record.getMessage() for record in caplog.records)
    assert first.endswith(", norm 1.000")
    assert last.endswith(", norm 1.000, 200 tokens/s, MFU 10%")


def children(pid):
    listed = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"everytoken.training.run.worker {pid}" in line]


@pytest.mark.sensitive
def test_the_processes_end_with_the_one_that_started_them_and_one_process_can_go_on(inputs, tmp_path):
    job = tiny_job(inputs, tmp_path, processes=2, every_steps=2, steps=100_000)
    write_job(tmp_path / "given.json", job)
    program = (
        "import sys; from pathlib import Path; from everytoken.training.run.job import read_job;"
        "from everytoken.training.run.launch import launch; launch(read_job(Path(sys.argv[1])), lambda records: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "given.json")])
    mine = job.live_folder / "job.json"
    try:
        wait_until(lambda: newest(job) is not None, "no checkpoint was written")
        assert len(children(mine)) == 3
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not children(mine), "processes outlived the one that started them")
    done = newest(job).step
    with stop_after(done + 2):
        run(job)
    assert newest(job).step == done + 2
