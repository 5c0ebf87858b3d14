"""A process that goes on when the command that started it has ended.

Whoever starts it holds the lock of its folder and hands it over, so two starts in one folder cannot both succeed. What
is to be done comes through standard input.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from everytoken.locks import locked
from everytoken.redaction import redacted
from everytoken.system_errors import explained

_LOOK = 0.2
_ASKED = 0.01  # seconds


class DetachedFolder(ABC):
    """The folder of a detached process: its lock, its log, and how it ended."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The folder."""

    @property
    def log(self) -> Path:
        """What its processes said."""
        return self.path / "log"

    @property
    def pid(self) -> Path:
        """Number of its last process."""
        return self.path / "pid"

    @property
    def error(self) -> Path:
        """Why its last process ended early."""
        return self.path / "error"

    @property
    def is_running(self) -> bool:
        """Whether a process works in it. Asking shares the lock for an instant, which a start waits out."""
        if not self.path.is_dir():
            return False
        try:
            with locked(self.path, wait=False, shared=True):
                return False
        except BlockingIOError:
            return True

    def begin(self) -> None:
        """Remove what the last process left, before the next one starts."""
        self.error.unlink(missing_ok=True)

    def fail(self, reason: str) -> None:
        """Write why the process ended early."""
        self.error.write_text(f"{reason}\n", encoding="utf-8")

    def why_ended(self) -> str:
        """Return why the last process ended early; of one that was killed, where its log is."""
        with suppress(FileNotFoundError):
            return self.error.read_text(encoding="utf-8").strip()
        return "its process was killed" + (f"; its log is {self.log}" if self.log.exists() else "")

    def shown_pid(self) -> str:
        """Return the number of the last process as messages name it."""
        try:
            return self.pid.read_text().strip()
        except FileNotFoundError:
            return "of a waiting command"


def start_detached(work: Callable[[], None], folder: DetachedFolder) -> subprocess.Popen[bytes]:
    """Start a process that calls ``work``, which it gets by pickle.

    Raises:
        BlockingIOError: another process has the folder.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with _held(folder) as lock, folder.log.open("ab") as log:
        folder.begin()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),  # it stays locked until the process ends
        )
        folder.pid.write_text(f"{process.pid}\n")
    assert process.stdin is not None, "it was started with a pipe"
    with process.stdin as pipe:
        pipe.write(pickle.dumps((work, folder)))
    return process


@contextmanager
def _held(folder: DetachedFolder) -> Iterator[int]:
    """Hold the lock of a folder that no process has; who only asks whether one has it is waited for."""
    with ExitStack() as holding:
        while True:
            try:
                lock = holding.enter_context(locked(folder.path, wait=False))
                break
            except BlockingIOError:
                if folder.is_running:
                    raise
            time.sleep(_ASKED)
        yield lock


def end_detached(folders: Sequence[DetachedFolder], grace: float) -> None:
    """End the processes of folders with all that they started: by SIGTERM, and by SIGKILL after ``grace`` seconds."""
    for folder in folders:
        _signal(folder, signal.SIGTERM)
    end = time.monotonic() + grace
    while any(folder.is_running for folder in folders) and time.monotonic() < end:
        time.sleep(_LOOK)
    for folder in folders:
        if folder.is_running:
            _signal(folder, signal.SIGKILL)
    while any(folder.is_running for folder in folders):
        time.sleep(_LOOK)


def _signal(folder: DetachedFolder, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, ValueError):
        os.killpg(int(folder.shown_pid()), number)


def work_in(work: Callable[[], None], folder: DetachedFolder) -> bool:
    """Call ``work``; an error goes into the folder. Return whether there was none."""
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        folder.fail(redacted(explained(error) or f"{type(error).__name__}: {error}"))
        return False
    return True


def _main() -> int:
    work, folder = pickle.load(sys.stdin.buffer)
    return 0 if work_in(work, folder) else 1


if __name__ == "__main__":
    sys.exit(_main())
