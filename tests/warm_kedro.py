"""Runs of kedro in processes that do not begin by importing for seconds.

One process imports what kedro runs import (third-party packages only: the project is imported by each run, from its own
folder) and forks a child for each run. From there on the child does what ``python -m kedro`` does: same command line,
folder, environment, output, exit. What Python itself reads when it starts (``PYTHONHASHSEED``) it cannot be given, nor a
module in the place of one that is imported already.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_IMPORTED = """
    kedro.framework.cli.cli kedro.framework.project kedro.framework.session kedro.runner kedro_datasets.pandas
    kedro_datasets.json kedro_datasets.plotly mlflow mlflow.artifacts mlflow.data mlflow.store.tracking.sqlalchemy_store
    alembic.migration pandas pyarrow.parquet pyarrow.dataset pyarrow.compute plotly.express plotly.graph_objects plotly.io
    plotly.offline plotly.subplots sklearn.linear_model sklearn.feature_extraction.text tokenizers duckdb
    kedro_viz.integrations.kedro.hooks pathspec fsspec.implementations.local safetensors.torch torch
""".split()


def run_kedro(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m kedro`` to its end; both outputs are in ``stdout``, in their order."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", suffix=".txt") as output:
        job = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "output": output.name,
        }
        code = _server().run(json.dumps(job), timeout)
        return subprocess.CompletedProcess(["kedro", *arguments], code, output.read(), "")


class _Server:
    """The process with everything imported."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_kedro"],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT), "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def run(self, job: str, timeout: float) -> int:
        assert self._process.stdin and self._process.stdout
        print(job, file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        too_long = threading.Timer(timeout, os.killpg, (child, 9))
        too_long.start()
        try:
            return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        finally:
            too_long.cancel()

    def _end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _become(job: dict[str, object]) -> None:
    """Make this process what ``python -m kedro`` is when it starts."""
    folder, output = str(job["folder"]), os.open(str(job["output"]), os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(job["environment"])  # type: ignore[arg-type]
    command = ["-m", "kedro", *job["arguments"]]  # type: ignore[misc]
    sys.orig_argv[:] = [sys.executable, *command]
    sys.argv[:] = command[1:]
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
        reader, writer = os.pipe()  # the child leads its group before its number is told
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(writer)
            _become(json.loads(line))
            break
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
    else:
        return
    runpy.run_module("kedro", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
