"""A training in one job: the bytes of the same processes here, also when the job is preempted, cancelled or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from everytoken.shards import Slurm, file_sha256, make_engine
from everytoken.training import TrainingError
from everytoken.training.run.launch import launch
from tests.shards.workers.recorded_scripts import record_sbatch, recorded_script
from tests.shards.workers.slurm_daemons import require_slurm, slurm_daemons
from tests.training.tiny import newest, tiny_job, write_inputs

pytest.importorskip("submitit")

MANY = {"steps": 200, "every_steps": 100_000}  # they train when somebody looks; only the last step is saved by itself


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    require_slurm()
    with slurm_daemons(tmp_path_factory.mktemp("slurm"), nodes=2) as conf:
        yield conf


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.sensitive)])
def cluster(request, monkeypatch):
    if request.param == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("daemons")))
    return request.param


@pytest.fixture
def engine(cluster, tmp_path):
    options = {"folder": str(tmp_path / "jobs"), "minutes": 5, "ask_every": 0.3, "patience": 0.5}
    made = make_engine("slurm", 2, cluster=cluster, setup=["export GLOO_SOCKET_IFNAME=lo"], **options)
    assert isinstance(made, Slurm)
    return made


def two_processes(inputs, folder, cluster, **changes):
    """Return a job of two processes; with Slurm each has a node of its own."""
    job = tiny_job(inputs, folder, processes=2, **changes)
    if cluster == "local":
        return job
    return job.model_copy(update={"distribution": job.distribution.model_copy(update={"processes": 1, "nodes": 2})})


def digest(job):
    return file_sha256(newest(job).folder / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """Digests of a run of 20 and of one of many steps, by two processes of this machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    jobs = [tiny_job(inputs, folder / name, processes=2, **some) for name, some in (("few", {}), ("many", MANY))]
    for job in jobs:
        launch(job, lambda records: None)
    return [digest(job) for job in jobs]


def task_processes(folder: Path) -> list[int]:
    """Return the processes that submitit started for the jobs below a folder, on this machine."""
    lines = subprocess.run(
        ["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if "submitit.core._submit" in line and f"{folder}/" in line]


def start_at_once(stop: threading.Event) -> None:
    """Slurm lets a job wait for two minutes that is queued again."""
    while not stop.wait(0.3):
        waiting = subprocess.run(["squeue", "-h", "--state=PENDING", "--format=%i"], capture_output=True, text=True)
        for job in waiting.stdout.split():
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True)


def test_a_job_has_the_bytes_of_processes_here(inputs, tmp_path, cluster, engine, undisturbed):
    job = two_processes(inputs, tmp_path / "runs", cluster)
    records = []
    launch(job, records.extend, engine=engine)
    assert digest(job) == undisturbed[0]
    assert [record.step for record in records] == list(range(20))
    launch(job, records.extend, engine=engine)  # finds it finished
    assert len(records) == 20
    assert [path.name for path in job.live_folder.iterdir()] == ["job.json"]


@pytest.mark.sensitive
def test_a_preempted_job_saves_its_step_and_goes_on_to_the_same_bytes(inputs, tmp_path, cluster, engine, undisturbed):
    job, sent, stop = two_processes(inputs, tmp_path / "runs", cluster, **MANY), [], threading.Event()

    def preempt(records):
        if not sent:
            sent.append(records[-1].step)
            for process in task_processes(tmp_path / "jobs"):
                os.kill(process, signal.SIGUSR2)

    if cluster == "slurm":
        threading.Thread(target=start_at_once, args=[stop], daemon=True).start()
    try:
        launch(job, preempt, engine=engine)
    finally:
        stop.set()
    stopped, last = sorted(path.name for path in job.folder.glob("step_*"))
    assert sent[0] < int(stopped.removeprefix("step_")) < 200 and last == "step_000000200"
    assert digest(job) == undisturbed[1]


class Interrupted(Exception):
    """Somebody pressed Ctrl-C."""


@pytest.mark.sensitive
def test_a_cancelled_training_saves_its_step_and_goes_on_to_the_same_bytes(
    inputs, tmp_path, cluster, engine, undisturbed
):
    job = two_processes(inputs, tmp_path / "runs", cluster, **MANY)

    def interrupt(records):
        raise Interrupted

    with pytest.raises(Interrupted):
        launch(job, interrupt, engine=engine)
    assert 0 < newest(job).step < 200 and not task_processes(tmp_path / "jobs")
    records = []
    launch(job, records.extend, engine=engine)
    assert records[0].step == int(sorted(path.name for path in job.folder.glob("step_*"))[0].removeprefix("step_"))
    assert digest(job) == undisturbed[1]


@pytest.mark.sensitive
def test_a_process_that_dies_ends_the_job_and_its_log_is_shown(inputs, tmp_path, cluster, engine):
    job, killed = two_processes(inputs, tmp_path / "runs", cluster, **MANY), []

    def kill(records):
        if not killed:
            killed.extend(task_processes(tmp_path / "jobs"))
            for process in killed:
                os.kill(process, signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(TrainingError, match=r"(?s)ended early.*The same command goes on.*The end of its log:\n.+"):
        launch(job, kill, engine=engine)
    assert time.monotonic() - began < 60


def test_an_error_of_a_process_is_the_error_of_the_run(inputs, tmp_path, cluster, engine):
    job = two_processes(inputs, tmp_path / "runs", cluster, batch_size=7)
    with pytest.raises(TrainingError, match=r"batch_size = 7 is not a multiple of the 2 processes.*training process"):
        launch(job, lambda records: None, engine=engine)


def test_this_machine_is_one_node(inputs, tmp_path):
    job = two_processes(inputs, tmp_path / "runs", "slurm")
    engine = make_engine("slurm", 1, cluster="local", folder=str(tmp_path / "jobs"), minutes=5)
    with pytest.raises(Exception, match=r"engine\.cluster is local, which is one node, and not 2"):
        launch(job, lambda records: None, engine=engine)


GOLDEN = Path(__file__).parent / "sbatch"


@pytest.mark.parametrize(("name", "device"), [("two_nodes", "cpu"), ("two_nodes_with_gpus", "cuda")])
def test_the_script_of_a_job_is_the_golden_one(inputs, tmp_path, monkeypatch, name, device):
    record_sbatch(tmp_path, monkeypatch)
    job = tiny_job(inputs, tmp_path / "runs", processes=4)
    job = job.model_copy(update={"distribution": job.distribution.model_copy(update={"nodes": 2, "device": device})})
    options = {
        "partition": "long",
        "account": "abc123",
        "memory_gb": 64.0,
        "requeues": 20,
        "setup": ["module load nccl"],
    }
    engine = make_engine("slurm", 7, folder=str(tmp_path / "jobs"), minutes=2880, **options)
    script = recorded_script(tmp_path, lambda: launch(job, lambda records: None, engine=engine))
    assert script == (GOLDEN / f"{name}.sh").read_text()
