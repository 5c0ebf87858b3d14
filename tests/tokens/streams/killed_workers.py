"""Kills a worker of the pool of this process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path


def kill_a_worker(after: float) -> None:
    time.sleep(after)
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(server):
                os.kill(int(path.parent.name), signal.SIGKILL)
                return
