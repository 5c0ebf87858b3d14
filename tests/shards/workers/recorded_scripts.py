"""What ``sbatch`` is given, without Slurm: it is recorded, and refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everytoken.shards import ShardsError


def record_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the commands of Slurm into the search path; ``sbatch`` writes ``folder/script``, and fails."""
    commands = folder / "bin"
    commands.mkdir()
    for command in ("sbatch", "srun", "squeue", "scancel"):
        (commands / command).write_text(f'#!/bin/sh\ncase $0 in *sbatch) cat "$1" > {folder}/script; exit 1;; esac\n')
        (commands / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


def recorded_script(folder: Path, submit: Callable[[], None]) -> str:
    """Return the script of what is submitted after `record_sbatch`, without places of this machine."""
    with pytest.raises(ShardsError, match="sbatch refuses"):
        submit()
    script = (folder / "script").read_text().replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    return re.sub("everytoken-(together-)?[0-9a-f]{12}", r"everytoken-\1MAP", script)
