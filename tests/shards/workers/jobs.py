"""Functions that jobs of Slurm run: they import this module by its name from the folder of the project."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def visible(task: int) -> tuple[str, str]:
    time.sleep(0.5)
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("SLURM_PROCID", os.environ.get("SUBMITIT_LOCAL_GLOBALID"))


def die_of(numbers: list[int], folder: Path, number: int) -> int:
    with (folder / str(number)).open("a") as file:
        file.write("begun\n")
    if number in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_once(folder: Path, number: int) -> int:
    if number == 2 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with (folder / f"done_{number}").open("a") as file:
        file.write("x")
    return number


def preempted_once(folder: Path, number: int) -> int:
    """Let the first job that is here be preempted: Slurm and submitit send it this signal."""
    with (folder / f"began_{number}").open("a") as file:
        file.write("x")
    if number == 1 and not (folder / "preempted").exists():
        (folder / "preempted").touch()
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(60)
    return number


def stay(folder: Path, number: int) -> int:
    if number:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(1000)
    return number
