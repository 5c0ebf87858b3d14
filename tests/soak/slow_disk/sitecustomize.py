"""A slow disk for a process that has this folder in PYTHONPATH, and for all that it starts.

Before a file is opened for writing, renamed, removed or made durable, the process sleeps ``SOAK_SLOW_DISK`` seconds.
"""

import os
import sys
import time
from typing import Any

SECONDS = float(os.environ.get("SOAK_SLOW_DISK", "0"))
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")


def _sleep(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        time.sleep(SECONDS)


def _slow_fsync(descriptor: int) -> None:
    time.sleep(SECONDS)
    _fsync(descriptor)


if SECONDS:
    _fsync, os.fsync = os.fsync, _slow_fsync
    sys.addaudithook(_sleep)
