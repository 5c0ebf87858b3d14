"""The process of one rank, which goes on when its starter ends.

Whoever starts it holds the lock of the rank and hands it over, so two starts of one rank cannot both succeed. What is
to be done comes through standard input.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from everytoken.locks import locked
from everytoken.redaction import redacted
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.system_errors import explained

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
    rank.path.mkdir(parents=True, exist_ok=True)
    with locked(rank.path, wait=False) as lock, rank.log.open("ab") as log:
        rank.error.unlink(missing_ok=True)
        rank.waiting.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),  # it stays locked until the process ends
        )
        rank.pid.write_text(f"{process.pid}\n")
    assert process.stdin is not None, "it was started with a pipe"
    with process.stdin as pipe:
        pipe.write(pickle.dumps((work, rank, at_once)))
    return process


def run_here(work: RankWork, rank: RankFolder) -> None:
    """Run a rank in this process.

    Raises:
        BlockingIOError: another process has the rank.
    """
    rank.path.mkdir(parents=True, exist_ok=True)
    with locked(rank.path, wait=False):
        rank.error.unlink(missing_ok=True)
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


def _main() -> int:
    work, rank, at_once = pickle.load(sys.stdin.buffer)
    try:
        with _a_slot(rank.root, at_once):
            rank.waiting.unlink(missing_ok=True)
            work.run_rank(rank)
    except Exception as error:
        traceback.print_exc()
        rank.error.write_text(redacted(explained(error) or f"{type(error).__name__}: {error}") + "\n", encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
