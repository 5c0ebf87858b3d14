"""A sweep makes what its points share once, resumes after a kill, and refuses a grid that is wrong."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everytoken.cli.sweep.grid import GridPoint, read_grid
from everytoken.cli.sweep.points import begin, nearest_point
from tests.shards.children import wait_until
from tests.test_run import Project
from tests.warm_kedro import run_everytoken

GRID = "subsampling.seed: [42, 43]\ntraining.optimisation.seed: [1, 2]\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("sweep") / "project")
    (made.folder / "grid.yml").write_text(GRID)
    return made


@pytest.fixture(scope="module")
def printed(project: Project) -> str:
    return project.everytoken("sweep", "--env", "test", "--grid", "grid.yml", "--name", "whole")


def table(project: Project, name: str) -> list[dict[str, str]]:
    with (project.folder / "data/test/sweeps" / name / "sweep.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_sweep_makes_once_what_the_grid_does_not_change(project: Project, printed: str) -> None:
    rows = table(project, "whole")
    assert [(row["subsampling.seed"], row["training.optimisation.seed"]) for row in rows] == [
        *(("42", "1"), ("42", "2"), ("43", "1"), ("43", "2"))
    ]
    assert len({row["digest.documents"] for row in rows}) == 1
    assert len({row["digest.compact_stream"] for row in rows}) == 2
    assert len({row["digest.checkpoint"] for row in rows}) == 4
    assert len({row["bits_per_byte"] for row in rows}) == 4
    made = [int(row["stages_made"]) for row in rows]
    assert made[0] == 30 and made[1] == made[3] == 3, "a model and what is measured of it"
    assert 3 < made[2] < 20, "no document is read or scored again"
    folders = [project.folder / "data/test/sweeps/whole" / row["point"] for row in rows]
    (inode,) = {
        path.stat().st_ino for one in folders for path in one.glob("02_intermediate/documents/part_00000.parquet")
    }
    assert inode, "one file on the disk"


def test_each_point_is_an_mlflow_run_with_its_values(project: Project, printed: str) -> None:
    runs = [run for run in project.runs() if run.data.tags.get("sweep") == "whole"]
    assert [run.data.tags["sweep.point"] for run in runs] == [row["point"] for row in table(project, "whole")]
    assert [run.data.params["subsampling.seed"] for run in runs] == ["42", "42", "43", "43"]
    assert "subsampling.seed=43" in runs[2].info.run_name


def test_a_second_time_nothing_runs(project: Project, printed: str) -> None:
    before = (len(project.runs()), table(project, "whole"))
    again = project.everytoken("sweep", "--env", "test", "--grid", "grid.yml", "--name", "whole")
    assert again.count("finished before") == 4
    assert (len(project.runs()), table(project, "whole")) == before
    page = (project.folder / "data/test/sweeps/whole/sweep.html").read_text()
    assert page.count("<circle") == 4 and "<script" not in page


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_killed_sweep_makes_only_what_is_missing(project: Project, printed: str) -> None:
    command = [sys.executable, "-c", "from everytoken.cli import cli; cli()"]
    arguments = ["sweep", "--env", "test", "--grid", "grid.yml", "--name", "killed"]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=project.folder,
        env=project.environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = project.folder / "data/test/sweeps/killed"
    third = folder / table(project, "whole")[2]["point"]
    try:
        wait_until(lambda: (third / "06_models").exists() or process.poll() is not None, "no third point")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (folder / "sweep.csv").exists()
    ended = {path: path.stat().st_mtime_ns for path in folder.glob("*/sweep_point.json")}
    assert len(ended) == 2
    assert project.everytoken(*arguments).count("finished before") == 2
    assert ended.items() <= {path: path.stat().st_mtime_ns for path in folder.glob("*/sweep_point.json")}.items()
    untimed = [{k: v for k, v in row.items() if k != "seconds"} for row in table(project, "killed")]
    assert untimed == [{k: v for k, v in row.items() if k != "seconds"} for row in table(project, "whole")]


@pytest.mark.slow
def test_a_grid_that_grew_keeps_its_points(project: Project, printed: str) -> None:
    (project.folder / "more.yml").write_text(GRID.replace("[1, 2]", "[1, 2, 3]").replace("[42, 43]", "[42]"))
    said = project.everytoken("sweep", "--env", "test", "--grid", "more.yml", "--name", "whole")
    assert said.count("finished before") == 2 and len(table(project, "whole")) == 3


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("", "is empty; give it a line"),
        ("subsampling.seed: []", "subsampling.seed has no values"),
        ("subsampling.seed: 4", "write `subsampling.seed: [4]`"),
        ("subsampling.seed: [1, 2, 1]", "1 is given twice"),
        ("training.data: [{a: 1, b: 2}, {b: 2, a: 1}]", "is given twice"),
        ("subsampling.seed: [1]\nsubsampling.seed: [2]", "given twice in the mapping that begins in line 1"),
        ("subsampling: [{seed: 1}]\nsubsampling.seed: [2]", "subsampling contains subsampling.seed"),
        ("[1]", "expected a list of values for each parameter, found a list"),
        ("a: [", "did not find|but found"),
        ("subsampling.sed: [1]", "subsampling.sed: nothing reads it. Did you mean 'seed'?"),
        ("subsamplng.seed: [1]", "no parameters 'subsamplng'. Did you mean 'subsampling'?"),
        (
            "packing.shard_size_tokens: [1000]",
            "bad.yml sets packing.shard_size_tokens, which no node",
        ),
        ("training.optimisation.steps: [40, -3]", "training.optimisation.steps = -3"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(project: Project, grid: str, message: str) -> None:
    (project.folder / "bad.yml").write_text(grid)
    arguments = ("sweep", "--env", "test", "--grid", "bad.yml")
    done = run_everytoken(arguments, folder=project.folder, environment=project.environment({}), timeout=100)
    assert done.returncode == 1 and not (project.folder / "data/test/sweeps/bad").exists()
    assert any(part in done.stderr for part in message.split("|")), done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6


def test_points_of_mixtures_are_trees(tmp_path: Path) -> None:
    file = tmp_path / "grid.yml"
    file.write_text("ingestion.mixture.weights: [{a: 0.5, b: 0.5}, {a: 0.9, b: 0.1}]\nsubsampling.seed: [1]\n")
    points = read_grid(file)
    assert [one.parameters() for one in points] == [
        {"ingestion": {"mixture": {"weights": weights}}, "subsampling": {"seed": 1}}
        for weights in ({"a": 0.5, "b": 0.5}, {"a": 0.9, "b": 0.1})
    ]
    assert len({one.name for one in points}) == 2


def test_a_point_begins_with_the_one_that_shares_early_stages() -> None:
    points = [GridPoint({"late": late, "early": early}) for early in (1, 2) for late in (1, 2)]
    assert nearest_point(points[3], points[:3], ["early", "late"]) == points[2]
    assert nearest_point(points[0], [], ["early", "late"]) is None


def test_a_folder_that_was_begun_appears_whole_and_links_no_lock(tmp_path: Path) -> None:
    store = tmp_path / "data/02/documents"
    store.mkdir(parents=True)
    for name in ("ledger.json", "part_00000.parquet", ".lock"):
        (store / name).write_text(name)
    unfinished = tmp_path / "data/02/other"
    unfinished.mkdir()
    (unfinished / "part_00000.parquet").write_text("")
    left = tmp_path / "sweep/.point.making"
    left.mkdir(parents=True)
    begin(tmp_path / "sweep/point", tmp_path / "data", {name: Path("02", name) for name in ("documents", "other")})
    assert sorted(path.name for path in (tmp_path / "sweep").rglob("*")) == [
        *("02", "documents", "ledger.json", "part_00000.parquet", "point")
    ]
