"""The history of a run: its bytes, and the memory that it takes."""

import os
import subprocess
import sys

import pytest

from everytoken.training.step.history import HISTORY, StepHistory, StepRecord, read_records, write_records
from tests.training.tiny import write_inputs

RECORDS = [
    StepRecord(0, 96, 90, 5.5, 0.01, 1.25, skipped=False, seconds=0.5),
    StepRecord(1, 192, 91, float("nan"), 0.02, float("inf"), skipped=True, seconds=0.5),
    StepRecord(2, 288, 92, 5.25, 0.03, 1.5, skipped=False, seconds=0.5),
    StepRecord(3, 384, 93, float("inf"), 0.02, float("nan"), skipped=True, seconds=0.5),
    StepRecord(4, 480, 94, 5.125, 0.01, float("nan"), skipped=True, seconds=0.5),
]


def history_of(records):
    history = StepHistory()
    for record in records:
        history.append(record)
    return history


@pytest.mark.parametrize("records", [[], RECORDS[:1], RECORDS, RECORDS * 3000])
def test_a_history_has_the_bytes_of_its_records_and_is_read_again(tmp_path, records):
    write_records(tmp_path / "records", records, HISTORY)
    history_of(records).write(tmp_path / "history")
    assert (tmp_path / "history").read_bytes() == (tmp_path / "records").read_bytes()
    again = StepHistory.read(tmp_path / "history")
    again.write(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "records").read_bytes()
    assert len(again) == len(records)


def test_a_history_knows_its_last_step_and_how_many_were_skipped_before_the_next(tmp_path):
    assert [history_of(RECORDS[:steps]).skipped_in_a_row for steps in range(6)] == [0, 0, 1, 0, 1, 2]
    assert history_of(RECORDS[1:2] * 3).skipped_in_a_row == 3
    write_records(tmp_path / "records", RECORDS[:3], HISTORY)
    assert StepHistory.read(tmp_path / "records").last == read_records(tmp_path / "records", StepRecord, HISTORY)[-1]


_SIMULATED = """
import sys
from pathlib import Path
from everytoken.training.run import session
from everytoken.training.run.artifacts import _Speed
from everytoken.training.step.history import StepRecord
from everytoken.training.run.launch import run_job
from tests.training.tiny import tiny_job

def simulated(model, optimizer, read, parameters, **options):
    for step in range(parameters.steps):
        if step + 1 == parameters.steps:
            print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        yield StepRecord(step, 96 * (step + 1), 90, 5.0 + step / 7, 1e-3 / (step + 1), step / 3, False, 0.001)

session.train_steps = simulated
folder = Path(sys.argv[1])
for steps in (1_000, 100_000):
    speed = _Speed(96)
    job = tiny_job(folder, folder / str(steps), steps=steps, every_steps=steps // 10 - 1)
    run_job(job, speed.watch)
    assert len(speed.figures()["tokens_per_second_by_step"]) == 1000
"""


@pytest.mark.slow
def test_the_memory_of_a_hundred_thousand_steps_is_within_20_megabytes_of_that_of_a_thousand(tmp_path):
    write_inputs(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATED, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    assert late - early < 20 << 20
