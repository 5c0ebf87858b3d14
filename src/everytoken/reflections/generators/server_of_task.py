"""A server that a task starts for itself and stops: it is asked only when it is healthy."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from everytoken.reflections.generators.asking import GeneratorError
from everytoken.reflections.generators.process_group import start, stop

_TAIL = 2_000  # characters of the log in an error


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started.

    Attributes:
        command: its words; ``{port}`` in a word is the port.
        port: 0: a free one.
        health: path that answers with status 200 when the server is ready.
        check_seconds: between two looks.
        start_seconds: that it may take.
        environment: variables besides those of this process.
    """

    command: Sequence[str]
    port: int
    health: str
    check_seconds: float
    start_seconds: float
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """What the messages call it: the module or program that is started."""
        words = [word for word in self.command if not word.startswith("-")]
        module = self.command[self.command.index("-m") + 1] if "-m" in self.command[:-1] else Path(words[0]).name
        return module.partition(".")[0]


@dataclass(frozen=True)
class RunningServer:
    """A healthy server; ``address`` is with ``/v1``."""

    command: ServerCommand
    address: str
    log: Path
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Check that it runs.

        Raises:
            GeneratorError: it has ended; the message has the end of its log.
        """
        if (code := self.process.poll()) is not None:
            raise GeneratorError(
                f"FATAL: {self.command.name} process died, exit code {code}. The end of its log {self.log}:\n"
                f"{_tail(self.log)}"
            )


@contextmanager
def task_server(command: ServerCommand, log: Path) -> Iterator[RunningServer]:
    """Start a server, wait until it is healthy, and stop it with all its processes at the end, however that comes.

    Raises:
        GeneratorError: it ends, or is not healthy in time; the message has the end of its log.
    """
    port = command.port or _free_port()
    words = [word.replace("{port}", str(port)) for word in command.command]
    environment = {"NO_PROXY": "localhost,127.0.0.1", "no_proxy": "localhost,127.0.0.1", **command.environment}
    process = start(words, log, environment)
    try:
        server = RunningServer(command, f"http://127.0.0.1:{port}/v1", log, process)
        _wait_until_healthy(server, f"http://127.0.0.1:{port}{command.health}")
        yield server
    finally:
        stop(process)


def _wait_until_healthy(server: RunningServer, url: str) -> None:
    end = time.monotonic() + server.command.start_seconds
    while time.monotonic() < end:
        server.check()
        if _is_healthy(url, server.command.check_seconds):
            return
        time.sleep(server.command.check_seconds)
    raise GeneratorError(
        f"FATAL: {server.command.name} failed to start after {server.command.start_seconds / 60:g} minutes: {url} does "
        f"not answer with status 200. The end of its log {server.log}:\n{_tail(server.log)}"
    )


def _is_healthy(url: str, seconds: float) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=max(1.0, seconds)) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip() or "(empty)"
