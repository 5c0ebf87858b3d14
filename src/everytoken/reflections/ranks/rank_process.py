"""The process of one rank, which goes on when its starter ends, and waits until few enough others work."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from everytoken.locks import locked
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.submission import start_detached

_LOOK = 0.5


class RankWork(Protocol):
    """What is done in a rank; it travels to the process of the rank."""

    def run_rank(self, rank: RankFolder) -> None:
        """Make all rows of a rank that are not done, and write its marker."""


def start_rank(work: RankWork, rank: RankFolder, at_once: int) -> subprocess.Popen[bytes]:
    """Start the process of a rank.

    Args:
        at_once: processes of the run that work at a time; the others wait for one to end.

    Raises:
        BlockingIOError: another process has the rank.
    """
    return start_detached(_WorkInSlot(work, rank, at_once), rank)


@dataclass(frozen=True)
class _WorkInSlot:
    work: RankWork
    rank: RankFolder
    at_once: int

    def __call__(self) -> None:
        with _a_slot(self.rank.root, self.at_once):
            self.rank.waiting.unlink(missing_ok=True)
            self.work.run_rank(self.rank)


def run_here(work: RankWork, rank: RankFolder) -> None:
    """Run a rank in this process.

    Raises:
        BlockingIOError: another process has the rank.
    """
    rank.path.mkdir(parents=True, exist_ok=True)
    with locked(rank.path, wait=False):
        rank.begin()
        rank.waiting.unlink(missing_ok=True)
        work.run_rank(rank)


@contextmanager
def _a_slot(root: Path, at_once: int) -> Iterator[None]:
    """Wait until fewer than ``at_once`` processes of the run work."""
    folders = [root / "slots" / str(number) for number in range(at_once)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as slot:
        while not any(_is_taken(folder, slot) for folder in folders):
            time.sleep(_LOOK)
        yield


def _is_taken(folder: Path, slot: ExitStack) -> bool:
    try:
        slot.enter_context(locked(folder, wait=False))
    except BlockingIOError:
        return False
    return True
