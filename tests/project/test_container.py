"""The Dockerfile: what of it can be checked without a container."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
_STEPS = [line.split(maxsplit=1) for line in _LINES if line and not line.startswith("#")]


def test_everything_after_the_packages_of_the_system_is_done_by_a_user() -> None:
    names = [name for name, _ in _STEPS]
    assert names.count("USER") == 1
    assert ("USER", "everytoken") in [tuple(step) for step in _STEPS]
    as_root = [text for name, text in _STEPS[: names.index("USER")] if name == "RUN"]
    assert len(as_root) == 1
    assert "useradd" in as_root[0]
    copied = [text for name, text in _STEPS if name == "COPY"]
    assert all(text.startswith("--chown=everytoken ") for text in copied)


def test_what_it_copies_and_makes_is_there() -> None:
    copied = [text.split()[1:-1] for name, text in _STEPS if name == "COPY"]
    files = {file for files in copied for file in files}
    assert "requirements.lock" in files
    assert all((ROOT / file).exists() for file in files)
    (made,) = [text.removeprefix("make ") for name, text in _STEPS if name == "RUN" and text.startswith("make ")]
    assert made == ".venv/installed"
    assert "\n$(VENV)/installed: requirements.lock" in (ROOT / "Makefile").read_text()


def test_it_runs_an_environment_that_there_is() -> None:
    (command,) = [json.loads(text) for name, text in _STEPS if name == "CMD"]
    assert command[:3] == ["kedro", "run", "--env"]
    assert (ROOT / "conf" / command[3]).is_dir()
