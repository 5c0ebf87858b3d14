"""A writer that is killed leaves nothing for good, and nobody takes what a living one writes for left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards.folders import content

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
import os, pathlib, sys, time
folder, end = pathlib.Path(sys.argv[1]), sys.argv[2]
def at_the_end():
    if end == "killed":
        os.kill(os.getpid(), 9)
    if end == "waiting":
        print("writing", flush=True)
        sys.stdin.readline()
"""
KINDS = {
    "file": """
from everytoken.shards import atomic_file
with atomic_file(folder / "x.json") as path:
    path.write_text("half")
    at_the_end()
""",
    "json": """
from everytoken.datasets import JsonFile
from everytoken.shards import atomic
fsync, atomic.fsync_file = atomic.fsync_file, lambda path: (at_the_end(), fsync(path))
JsonFile(filepath=str(folder / "deep/x.json")).save({"a": 1})
""",
    "table": """
import pandas as pd
from everytoken.datasets import CsvFile
from everytoken.shards import atomic
fsync, atomic.fsync_file = atomic.fsync_file, lambda path: (at_the_end(), fsync(path))
CsvFile(filepath=str(folder / "x.json")).save(pd.DataFrame({"a": [1]}))
""",
    "figure": """
import plotly.graph_objects as go
from everytoken.datasets import FigureFile
from everytoken.shards import atomic
fsync, atomic.fsync_file = atomic.fsync_file, lambda path: (at_the_end(), fsync(path))
FigureFile(filepath=str(folder / "x.json")).save(go.Figure())
""",
    "folder": """
from everytoken.shards.atomic import atomic_folder
with atomic_folder(folder / "x") as path:
    (path / "deep").mkdir()
    (path / "deep/half").touch()
    at_the_end()
""",
    "folder between its renames": """
from everytoken.shards.atomic import atomic_folder
from everytoken.shards import atomic
(folder / "x").mkdir(exist_ok=True)
(folder / "x/old").touch()
rmtree = atomic.shutil.rmtree
atomic.shutil.rmtree = lambda path, **how: ("old" in str(path) and at_the_end(), rmtree(path, **how))
with atomic_folder(folder / "x") as path:
    (path / "new").touch()
""",
    "scratch": """
import tempfile
tempfile.tempdir = str(folder)
from everytoken.shards.atomic import scratch_folder
with scratch_folder("everytoken-diff") as path:
    (path / "spilled").touch()
    at_the_end()
""",
}


def command(kind: str, folder: Path, end: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + KINDS[kind], str(folder), end]


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path: Path, kind: str) -> None:
    killed = subprocess.run(command(kind, tmp_path, "killed"), cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    left = set(content(tmp_path))
    assert any(".tmp" in name or "everytoken-diff-" in name for name in left)
    with subprocess.Popen(
        command(kind, tmp_path, "waiting"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdin is not None and living.stdout is not None
        assert living.stdout.readline() == "writing\n"
        written = set(content(tmp_path)) - left
        assert written and not any(str(killed.args[-1]) in name for name in written)
        subprocess.run(command(kind, tmp_path, "at once"), cwd=ROOT, check=True)
        assert written <= set(content(tmp_path)) or kind == "folder between its renames"
        living.stdin.write("\n")
        living.stdin.close()
        assert living.wait() == 0
    assert [name for name in content(tmp_path) if ".tmp" in name or "everytoken-diff-" in name] == []


def test_what_only_looks_like_a_temporary_stays(tmp_path: Path) -> None:
    """Of the names in a folder only those of the file that is written are looked at: a folder may be the user's."""
    from everytoken.shards import write_text

    stay = [".y.json.1.tmp", "x.json.1.tmp", ".x.json.tmp", ".x.json.a.tmp"]
    for name in [*stay, ".x.json.1.tmp"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "x.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*stay, "x.json"])


def test_a_temporary_that_cannot_be_removed_is_named_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from everytoken.shards import write_text

    (tmp_path / ".x.json.1.tmp").symlink_to(tmp_path / "elsewhere")
    write_text(tmp_path / "x.json", "{}")
    assert "cannot be removed" in caplog.text and (tmp_path / "x.json").read_text() == "{}"
