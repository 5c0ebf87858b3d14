"""The tutorial of one's own text is run as it is written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_run import Project

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs/tutorial_own_text.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TUTORIAL, re.DOTALL)
LIMIT = 600  # seconds


@pytest.mark.slow
def test_the_tutorial_makes_a_trained_traced_and_released_model(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    shutil.copytree(ROOT / "examples", project.folder / "examples")
    began, outputs = time.monotonic(), []
    for kind, block in BLOCKS:
        if kind == "yaml" and block.startswith("release:"):
            put_licence(project.folder / "conf/mine/parameters.yml", block)
        for line in block.splitlines() if not kind else ():
            program, *arguments = line.split()
            if program == "python":
                subprocess.run([sys.executable, *arguments], cwd=project.folder, check=True)
            else:
                outputs.append(project.kedro(*arguments) if program == "kedro" else project.everytoken(*arguments))
    assert time.monotonic() - began < LIMIT
    written = (project.folder / "conf/mine/parameters.yml").read_text(encoding="utf-8")
    for kind, block in BLOCKS:
        if kind == "yaml" and not block.startswith("release:"):
            assert [line for line in block.splitlines() if line not in written.splitlines()] == []
    new, run, summary, trace, exposure, *_, checked = outputs
    assert [line for kind, block in BLOCKS if kind == "text" for line in block.splitlines()] == new.splitlines()
    assert "held-out after " in run and "checkpoint" in summary and "not scored" in summary + trace
    assert 'id "112.txt"' in exposure and re.search(r"all \d+ checks hold", checked)


def put_licence(path: Path, block: str) -> None:
    """Replace the licence that nobody knew, as the reader is told to."""
    before, known, _ = path.read_text(encoding="utf-8").partition("  licences:")
    assert known and "???" not in before
    path.write_text(before + block[block.index("  licences:") :], encoding="utf-8")
