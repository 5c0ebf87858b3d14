"""A command in a process group of its own that never outlives whoever started it.

`start` runs this module as a process between the two. It starts the command, and ends the whole group of the command
when its standard input closes. The system closes that also when the starter is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LOOK = 0.2


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command whose output goes to ``log``; the returned process ends when the command does."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started; return when they have ended."""
    assert process.stdin is not None, "it was started with a pipe"
    process.stdin.close()
    process.wait()


def _watch(command: Sequence[str]) -> int:
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", flush=True)
        return 127
    while child.poll() is None and not select.select([0], [], [], _LOOK)[0]:
        pass
    _signal(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
    _signal(child.pid, signal.SIGKILL)
    return child.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    code = _watch(sys.argv[1:])
    print(f"ended with code {code}", flush=True)
    sys.exit(code if code >= 0 else 128 - code)
