"""Where code lives is not data: a finished project notices nothing when modules move and functions are renamed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.identity.moved_code import move
from tests.test_run import Project


def run(project: Project, *command: str) -> str:
    """Run kedro or everytoken with the sources of the project."""
    start = (
        "from kedro.framework.cli import main; main()"
        if command[0] == "kedro"
        else "import everytoken.cli as c; c.cli()"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, *command[1:]],
        cwd=project.folder,
        env=project.environment({"PYTHONPATH": os.pathsep.join([str(project.folder / "src"), *sys.path])}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def times(folder: Path) -> dict[str, int]:
    """Return when each part, artifact and ledger was written."""
    suffixes = (".parquet", ".bin", ".idx", ".npy", ".safetensors")
    files = [path for path in folder.rglob("*") if path.suffix in suffixes or path.name == "ledger.json"]
    return {path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in files}


@pytest.mark.slow
def test_a_finished_project_is_finished_for_code_that_moved(tmp_path: Path) -> None:
    before = Project(tmp_path / "before")
    before.kedro("run", "--env", "test")
    before.kedro("run", "--env", "test", "--pipelines", "release")
    shutil.copytree(before.folder, tmp_path / "after", symlinks=True)
    after = object.__new__(Project)
    after.folder = tmp_path / "after"
    assert len(move(after.folder / "src")) > 50
    data = after.folder / "data/test"
    made = times(data)

    log = run(after, "kedro", "run", "--env", "test")
    log += run(after, "kedro", "run", "--env", "test", "--pipelines", "release")
    assert times(data) == made
    assert "to make" not in log and "making it with" not in log and "checkpoint is there" in log
    assert "tokens" in run(after, "everytoken", "trace", "--env", "test", "--step", "3")
    run(after, "everytoken", "verify", "--env", "test", "--full")
    told = run(after, "everytoken", "diff", str(before.folder / "data/test"), str(data))
    assert "the streams are the same; every document is the same" in told
    released = before.folder / "data/test/08_reporting/release"
    run(after, "kedro", "run", "--env", "replay", "--params", f"replay.release={released}")
    run(after, "everytoken", "verify", str(released), str(after.folder / "data/replay"), "--full")
