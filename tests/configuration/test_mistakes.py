"""Mistakes that people make end `kedro run` with a few lines, which name what was given and what is near."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from everytoken.configuration.failures import few_lines, nearest, unexpected
from tests.test_run import Project

MISTAKES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "mistakes.yml").read_text(encoding="utf-8"))
MOST_LINES = 6
# Kedro's command, which ends with the heavy modules that it imported
WATCHED = """
import atexit, os, sys
atexit.register(lambda: print("IMPORTED", [name for name in ("torch", "mlflow") if name in sys.modules], flush=True))
from kedro.framework.cli.cli import main
main()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("mistakes") / "project")


def test_there_are_25_mistakes() -> None:
    assert len({one["mistake"] for one in MISTAKES}) == len(MISTAKES) >= 25


@pytest.mark.parametrize("one", MISTAKES, ids=[one["mistake"] for one in MISTAKES])
def test_a_mistake_is_named_in_at_most_six_lines(project: Project, one: dict[str, Any]) -> None:
    file, before = None, b""
    if "edit" in one:
        name, old, new = one["edit"]
        file = project.folder / "conf/test" / name
        before = file.read_bytes()
        assert old in before.decode(), "the edit changes something"
        file.write_text(before.decode().replace(old, new, 1))
    try:
        output = project.kedro("run", *one["arguments"], expect=one["code"])
    finally:
        if file is not None:
            file.write_bytes(before)
    lines = output.splitlines()
    assert len(lines) <= MOST_LINES, output
    told = output[output.index("Error: ") :]
    assert all(part in told for part in one["says"]), output
    assert "Traceback" not in output and "pydantic" not in output


@pytest.mark.parametrize("name", ["pipeline", "node", "word for a number", "pipeline before its input"])
def test_a_mistake_imports_neither_torch_nor_mlflow(project: Project, name: str) -> None:
    (one,) = [one for one in MISTAKES if one["mistake"] == name]
    command = [sys.executable, "-c", WATCHED, "run", *one["arguments"]]
    done = subprocess.run(command, cwd=project.folder, env=project.environment({}), capture_output=True, text=True)
    assert done.returncode == one["code"], done.stderr
    assert len(done.stderr.splitlines()) <= MOST_LINES, done.stderr
    assert done.stdout == "IMPORTED []\n"


def test_traceback_shows_where_an_error_was_raised(project: Project) -> None:
    output = project.kedro("run", "--traceback", "--nodes", "training.train_modl", expect=1)
    assert output.startswith("Traceback") or "\nTraceback" in output
    assert 'File "' in output and "ValueError: Pipeline does not contain nodes named" in output


def test_an_error_without_words_of_its_own_names_its_place_in_the_code() -> None:
    try:
        nearest(None, ["training"])  # type: ignore[arg-type]  # a fault of ours
    except Exception as error:
        told = unexpected(error)
    assert "raised from everytoken/configuration/failures.py, line " in told and "--traceback" in told


def test_a_long_message_is_cut_and_its_lines_counted() -> None:
    assert few_lines("a\nb") == "a\nb"
    lines = few_lines("\n".join(map(str, range(40)))).splitlines()
    assert lines == ["0", "1", "2", "  and 36 more lines (--traceback)", "39"]
