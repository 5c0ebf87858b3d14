"""Runs of kedro and everytoken in processes that do not begin by importing for seconds.

One process imports what kedro runs import (third-party packages only: the project is imported by each run, from its
own folder) and forks a child for each run. From there on the child does what ``python -m kedro`` does: same command
line, folder, environment, output, exit. What Python itself reads when it starts (``PYTHONHASHSEED``) it cannot be
given, nor a module in the place of one that is imported already. Its hash seed is `HASH_SEED`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HASH_SEED = "1"
_ROOT = Path(__file__).resolve().parents[1]
_IMPORTED = [
    "kedro.framework.cli.cli",
    "kedro.framework.project",
    "kedro.framework.session",
    "kedro.runner",
    "kedro_datasets.pandas",
    "kedro_datasets.json",
    "kedro_datasets.plotly",
    "mlflow",
    "mlflow.artifacts",
    "mlflow.data",
    "mlflow.store.tracking.sqlalchemy_store",
    "alembic.migration",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "pyarrow.compute",
    "plotly.express",
    "plotly.graph_objects",
    "plotly.io",
    "plotly.offline",
    "plotly.subplots",
    "sklearn.linear_model",
    "sklearn.feature_extraction.text",
    "tokenizers",
    "duckdb",
    "kedro_viz.integrations.kedro.hooks",
    "pathspec",
    "fsspec.implementations.local",
    "safetensors.torch",
    "profanity_check",
    "torch",
    "torch._dynamo",
]


def run_kedro(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m kedro`` to its end; both outputs are in ``stdout``, in their order."""
    return Started(["kedro", *arguments], folder, environment).run(timeout)


def run_everytoken(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``everytoken`` to its end, with the package that is installed."""
    return Started(["everytoken", *arguments], folder, environment, one_output=False).run(timeout)


class Started:
    """A run in a session of its own, with as much of ``subprocess.Popen`` as tests need."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, one_output: bool = True
    ) -> None:
        file = functools.partial(tempfile.NamedTemporaryFile, "r", encoding="utf-8", suffix=".txt")
        self._command, self._output = list(command), file()
        self._errors = self._output if one_output else file()
        job = {
            "command": self._command,
            "folder": str(folder),
            "environment": dict(environment),
            "outputs": [self._output.name, self._errors.name],
        }
        self.pid: int = _server().ask(job)
        self.returncode: int | None = None

    def run(self, timeout: float) -> subprocess.CompletedProcess[str]:
        output, errors = self.communicate(timeout)
        assert self.returncode is not None
        return subprocess.CompletedProcess(self._command, self.returncode, output, errors)

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Wait for the end, and return what it wrote to both outputs; both in the first if they are one."""
        self.wait(timeout)
        with self._output as output, self._errors as errors:
            return output.read(), errors.read() if errors is not output else ""

    def wait(self, timeout: float) -> int:
        """Wait for the end; after ``timeout`` seconds the run is killed."""
        too_long = threading.Timer(timeout, self._kill)
        too_long.start()
        try:
            while self.poll(block=True) is None:
                pass
        finally:
            too_long.cancel()
        assert self.returncode is not None
        return self.returncode

    def poll(self, *, block: bool = False) -> int | None:
        if self.returncode is None:
            status = _server().ask({"wait": self.pid, "block": block})
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode

    def first_line(self) -> str:
        """Wait for the first line of its output, and return it; or what there is when it ended without one."""
        while True:
            has_ended = self.poll() is not None
            shown = Path(self._output.name).read_text(encoding="utf-8")
            if has_ended or "\n" in shown:
                return shown.partition("\n")[0]
            time.sleep(0.01)

    def send_signal(self, number: int) -> None:
        """Signal the process alone, and not its session."""
        os.kill(self.pid, number)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class _Server:
    """The process with everything imported."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_kedro"],
            cwd=_ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "PYTHONHASHSEED": HASH_SEED,
                "DO_NOT_TRACK": "1",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def ask(self, question: dict[str, Any]) -> Any:
        """Start a job: the answer is its process. Or wait for a process: its status, or None if it lives."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _become(job: dict[str, Any]) -> None:
    """Make this process what ``python -m kedro``, or ``everytoken``, is when it starts."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(job["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    folder = job["folder"]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv[:] = job["command"]
    sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [folder, *given, *(entry for entry in sys.path if Path(entry or folder) != _ROOT)]


def _main() -> None:
    modules = {name: importlib.import_module(name) for name in _IMPORTED}
    plotly = modules["plotly.graph_objects"]
    for name in plotly.__all__:
        getattr(plotly, name)  # each is a module of its own, imported when it is asked for
    inspect.stack()  # reads the place of every module once; kedro's settings ask for it again
    for early in ("everytoken", "huggingface_hub"):
        assert early not in sys.modules, f"{early} must be imported by the run"
    gc.collect()
    gc.freeze()  # what is there is shared with the children as long as nobody writes to it
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            ended, status = os.waitpid(question["wait"], 0 if question["block"] else os.WNOHANG)
            print(json.dumps(status if ended else None), flush=True)
            continue
        reader, writer = os.pipe()  # the child leads its group before its number is told
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(writer)
            _become(question)
            break
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        print(child, flush=True)
    else:
        return
    if sys.argv[0] == "kedro":
        runpy.run_module("kedro", run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")  # what workers that are spawned import again
        importlib.import_module("everytoken.cli").cli()


if __name__ == "__main__":
    _main()
