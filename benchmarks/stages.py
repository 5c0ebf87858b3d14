"""CPU seconds of the whole job by stage, and how much of its text each stage does a CPU second.

``python benchmarks/stages.py [PROJECT] [--env ENV]`` runs ``kedro run`` and ``everytoken report``, as ``make run`` does
once it has installed, in a fresh folder with the ``conf`` of the project, and removes it. The total is user and system
time of all processes, orphans too. By stage it is what the run writes to ``stage_costs.csv``: stages under 0.1 s are
one line, and what is in none is imports, the configuration and MLflow. MB are those of the texts of ``documents`` for
every stage, so that the costs of stages add up.

*Bare* are the library functions of a stage alone, on the data that the run left, part after part in one process that is
started for it: they read their inputs, and rows are written by pyarrow with zstd. There is no Kedro runner, no worker,
lock, ledger, digest, fsync or tracking. Loading inputs from the catalog and what the process imports before its first
stage do not count; what a stage imports first counts for that stage. The ratio is the run's CPU seconds to these.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.configuration.costs import COSTS_FILE, read_costs
from everytoken.shards import Artifact, RangeMap, Rows, Shards, StoredPart
from everytoken.shards.shards import PlannedPart

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphans become children of this process, and count as such
_SHOWN_FROM = 0.1
_DATA_STAGES = ("ingestion", "annotation", "subsampling", "tokenization", "provenance")
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def cpu_seconds(command: list[str], project: Path) -> float:
    """Run a command; return user and system seconds of it and of all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=project, env={**os.environ, "DO_NOT_TRACK": "1"}, check=True, stdout=subprocess.DEVNULL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def text_bytes(documents: Path) -> int:
    """Return the UTF-8 bytes of the texts of stored documents."""
    columns = (pq.read_table(part, columns=["text"])["text"] for part in sorted(documents.glob("part_?????.parquet")))
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


def bare_seconds(project: Path, env: str) -> dict[str, float]:
    """Return the CPU seconds of the library functions of each data stage of a finished run (see the module)."""
    from kedro.framework.project import pipelines
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(project)
    taken = {}
    with KedroSession.create(project_path=project, env=env) as session, tempfile.TemporaryDirectory() as name:
        catalog = session.load_context().catalog
        for number, node in enumerate(pipelines["__default__"].nodes):
            if node.name.startswith(_DATA_STAGES):
                inputs = {given: catalog.load(given) for given in node.inputs}
                folder = Path(name, str(number))
                folder.mkdir()
                begin = time.process_time()
                for made in node.run(inputs).values():
                    make(made, folder)
                taken[node.name] = time.process_time() - begin
    return taken


def make(planned: object, folder: Path) -> None:
    """Make what a node planned, without its store."""
    if isinstance(planned, Artifact) and planned.recipe is not None:
        ranges = {"ranges": RangeMap()} if planned.recipe.in_ranges else {}
        planned.recipe.function(Path(tempfile.mkdtemp(dir=folder)), **planned.recipe.parameters, **ranges)
    if not isinstance(planned, Shards):
        return
    for part in planned:
        rows = part.make() if isinstance(part, PlannedPart) else None
        if isinstance(rows, Rows):
            known = len(rows.extends.schema) if isinstance(rows.extends, StoredPart) else 0
            names = rows.schema.names[known:]
            with pq.ParquetWriter(
                Path(folder, part.name), pa.schema([rows.schema.field(name) for name in names]), compression="zstd"
            ) as writer:
                for batch in rows.batches:
                    if isinstance(batch, pa.RecordBatch):
                        writer.write_batch(batch.select(names))


def show(data: Path, run: float, report: float, bare: dict[str, float]) -> None:
    """Print the table of a run."""
    texts = text_bytes(data / "02_intermediate" / "documents") / 1e6
    costs = {one.stage: one.cpu_seconds or 0.0 for one in read_costs(data / COSTS_FILE)}
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}; texts: {texts:.1f} MB")
    print(f"{'stage':<44}{'CPU s':>8}{'MB/CPU s':>10}{'bare':>8}{'ratio':>8}")

    def line(name: str, seconds: float, *, is_data: bool, alone: float | None = None) -> None:
        told = f"{name:<44}{seconds:>8.2f}" + (f"{texts / seconds:>10.1f}" if is_data and seconds else "")
        print(told + (f"{alone:>8.2f}{seconds / alone:>8.2f}" if alone else ""))

    for stage, seconds in costs.items():
        if seconds >= _SHOWN_FROM:
            line(stage, seconds, is_data=stage.startswith(_DATA_STAGES), alone=bare.get(stage))
    line(f"stages under {_SHOWN_FROM} s", sum(one for one in costs.values() if one < _SHOWN_FROM), is_data=False)
    data_stages = sum(seconds for stage, seconds in costs.items() if stage.startswith(_DATA_STAGES))
    alone = sum(seconds for stage, seconds in bare.items() if stage in costs)
    line("all stages of data", data_stages, is_data=True, alone=alone)
    line("in no stage", run - sum(costs.values()), is_data=False)
    line("kedro run", run, is_data=False)
    line("everytoken report", report, is_data=False)
    held_out = json.loads((data / "07_model_output" / "held_out_evaluation" / "bits_per_byte.json").read_text())
    print(f"held-out bits per byte: {held_out['total']['bits_per_byte']:.3f}")


def main() -> None:
    """Run the job and print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("project", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    arguments.add_argument("--env", default="local")
    arguments.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.bare:
        print(json.dumps(bare_seconds(given.project, given.env)))
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    scripts = Path(sys.executable).parent
    folder = Path(tempfile.mkdtemp(prefix="stages_"))
    try:
        for name in ("conf", "src", "examples"):
            shutil.copytree(given.project / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(given.project / name, folder / name)
        began = time.monotonic()
        run = cpu_seconds([str(scripts / "kedro"), "run", "--env", given.env], folder)
        report = cpu_seconds([str(scripts / "everytoken"), "report", "--env", given.env], folder)
        own = "data" if given.env == "local" else f"data/{given.env}"
        command = [sys.executable, str(Path(__file__).resolve()), str(folder), "--env", given.env, "--bare"]
        environment = {**os.environ, **_ONE_THREAD, "DO_NOT_TRACK": "1"}
        alone = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        show(folder / own, run, report, json.loads(alone.stdout.splitlines()[-1]))
        print(f"by the clock: {time.monotonic() - began:.0f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
