"""Maps over jobs of Slurm: the same bytes, and a job that dies costs only its part."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog

from everytoken.shards import ArtifactStore, Engine, Failure, Inline, ShardsError, Store, make_engine, plan_artifact
from tests.shards.children import wait_until
from tests.shards.functions import build_in_ranges, count_up, given
from tests.shards.workers.jobs import die_of, die_once, preempted_once, square, stay, visible
from tests.shards.workers.recorded_scripts import record_sbatch, recorded_script
from tests.shards.workers.slurm_daemons import require_slurm, slurm_daemons

pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    require_slurm()
    with slurm_daemons(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.sensitive)])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("daemons")))
    return name


def engine_of(folder: Path, cluster: str, **options: Any) -> Engine:
    given = {"workers": 2, "minutes": 5, "ask_every": 0.3, "patience": 0.5, **options}
    return make_engine("slurm", folder=str(folder / "jobs"), cluster=cluster, **given)


def start_at_once(folder: Path) -> None:
    while not (folder / "began_2").exists():
        waiting = subprocess.run(["squeue", "-h", "--state=PENDING", "--format=%i"], capture_output=True, text=True)
        for job in waiting.stdout.split():
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True)
        time.sleep(0.3)


def test_a_store_has_the_same_root_digest(tmp_path: Path, cluster: str) -> None:
    planned = given(5).map(count_up)
    inline = Store(tmp_path / "inline").save(planned, Inline())
    jobs = Store(tmp_path / "slurm").save(planned, engine_of(tmp_path, cluster, parts_per_job=2))
    assert jobs == inline
    for part in inline.parts:
        name = f"{part.name}.parquet"
        assert (tmp_path / "slurm" / name).read_bytes() == (tmp_path / "inline" / name).read_bytes()


def test_a_dataset_names_its_own_engine(tmp_path: Path) -> None:
    """A catalog entry for GPUs next to one that stays in this process."""
    gpu = {"kind": "slurm", "cluster": "local", "folder": str(tmp_path / "jobs"), "workers": 1, "minutes": 5}
    engines = {"cpu": {"kind": "inline"}, "gpu": {**gpu, "parts_per_job": 2, "gpus_per_task": 1}}
    entries = {
        name: {"type": "everytoken.datasets.ShardStore", "filepath": str(tmp_path / name), "engine": engine}
        for name, engine in engines.items()
    }
    catalog = DataCatalog.from_config(entries)
    for name in engines:
        catalog.save(name, given(2).map(count_up))
    assert catalog.load("gpu").ledger == catalog.load("cpu").ledger
    assert [path.name for path in tmp_path.glob("jobs/*/outcomes/*")], "jobs made the parts"


def test_an_artifact_maps_over_ranges(tmp_path: Path, cluster: str) -> None:
    planned = plan_artifact(build_in_ranges, factor=2)
    inline = ArtifactStore(tmp_path / "inline").save(planned, Inline())
    jobs = ArtifactStore(tmp_path / "slurm").save(planned, engine_of(tmp_path, cluster, parts_per_job=4))
    assert jobs.ledger == inline.ledger


def test_each_task_has_a_gpu_of_its_own(tmp_path: Path, cluster: str) -> None:
    engine = engine_of(tmp_path, cluster, workers=1, parts_per_job=4, tasks_per_job=2, gpus_per_task=1)
    found = dict(engine.run(visible, [0, 1, 2, 3]))
    assert {devices for devices, _ in found.values()} == {"0", "1"}
    assert len(set(found.values())) == 2, "a process keeps its device"


@pytest.mark.sensitive
def test_a_job_that_dies_costs_only_its_part(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "marks").mkdir()
    engine = engine_of(tmp_path, cluster, parts_per_job=3)
    found = dict(engine.run(partial(die_of, [1], tmp_path / "marks"), list(range(6))))
    assert isinstance(found[1], Failure) and "died twice" in found[1].error and "log" in found[1].traceback
    assert {n: n for n in found if n != 1} == {n: v for n, v in found.items() if n != 1}
    begun = {int(path.name): len(path.read_text().split()) for path in (tmp_path / "marks").iterdir()}
    assert begun == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1}


@pytest.mark.sensitive
def test_a_worker_that_was_lost_once_is_no_failure(tmp_path: Path, cluster: str) -> None:
    engine = engine_of(tmp_path, cluster, parts_per_job=4)
    assert dict(engine.run(partial(die_once, tmp_path), list(range(4)))) == {n: n for n in range(4)}
    assert [(tmp_path / f"done_{n}").read_text() for n in range(4)] == ["x"] * 4


@pytest.mark.sensitive
def test_a_preempted_job_is_queued_again_and_keeps_what_it_has(tmp_path: Path, cluster: str) -> None:
    engine = engine_of(tmp_path, cluster, parts_per_job=3, requeues=2)
    if cluster == "slurm":  # which lets a job wait for two minutes that is queued again
        threading.Thread(target=start_at_once, args=[tmp_path], daemon=True).start()
    assert dict(engine.run(partial(preempted_once, tmp_path), [0, 1, 2])) == {0: 0, 1: 1, 2: 2}
    assert [(tmp_path / f"began_{n}").read_text() for n in range(3)] == ["x", "xx", "x"]


def test_more_slices_than_an_array_may_have(tmp_path: Path, cluster: str) -> None:
    engine = engine_of(tmp_path, cluster, array_limit=2)
    assert dict(engine.run(square, list(range(3)))) == {n: n * n for n in range(3)}


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_caller_that_stops_leaves_no_job(tmp_path: Path, cluster: str) -> None:
    outcomes = engine_of(tmp_path, cluster).run(partial(stay, tmp_path), [0, 1, 1, 1])
    assert next(outcomes) == (0, 0)
    wait_until((tmp_path / "pid").exists, "no job waits")
    worker = int((tmp_path / "pid").read_text())
    outcomes.close()  # type: ignore[attr-defined]
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the job is left")


@pytest.mark.slow
@pytest.mark.sensitive
def test_jobs_of_a_caller_that_was_killed_are_ended_by_the_next(tmp_path: Path, cluster: str) -> None:
    code = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "from tests.shards.workers.test_slurm import engine_of, stay\n"
        "folder = Path(sys.argv[1])\n"
        "list(engine_of(folder, sys.argv[2]).run(partial(stay, folder), [1]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), cluster])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "no job waits")
    worker = int((tmp_path / "pid").read_text())
    caller.kill()
    caller.wait()
    assert Path(f"/proc/{worker}").exists()
    assert dict(engine_of(tmp_path, cluster).run(square, [3])) == {3: 9}
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the job is left")


def test_what_slurm_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemons: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(daemons))
    with pytest.raises(ShardsError, match=r"(?s)invalid partition.*Correct partition, account"):
        list(engine_of(tmp_path, "slurm", partition="nowhere").run(square, [1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minuts": 5}, "engine.minuts: Extra inputs"),
        ({"minutes": 0}, "engine.minutes"),
        ({"gpus_per_task": 2}, "engine.gpus_per_task"),
        ({"workers": "cores"}, "engine.workers.*valid integer"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardsError, match=message):
        engine_of(tmp_path, "local", **options)
    with pytest.raises(ShardsError, match=r"engine\.partition is nothing"):
        make_engine("processes", 2, partition="main")


def test_a_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShardsError, match="no command sbatch here"):
        engine_of(tmp_path, "slurm")


GOLDEN = Path(__file__).parent / "sbatch"
SCRIPTS: dict[str, dict[str, Any]] = {
    "cpu_array": {"partition": "cpu", "account": "abc123", "parts_per_job": 2, "workers": 7, "memory_gb": 4.0},
    "gpu_array": {"partition": "gpu", "gpus_per_task": 1, "tasks_per_job": 4, "cpus_per_task": 8, "qos": "high"},
    "one_job": {"parts_per_job": 5, "setup": ["module load python"], "sbatch": {"exclusive": True, "mail-type": "END"}},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_the_golden_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    record_sbatch(tmp_path, monkeypatch)
    engine = engine_of(tmp_path, "slurm", **{"minutes": 90, **SCRIPTS[name]})
    script = recorded_script(tmp_path, lambda: [*engine.run(square, list(range(5)))])
    assert script == (GOLDEN / f"{name}.sh").read_text()
