"""Compiled training, killed and resumed in a process that compiles again, has the bytes of a run that was not cut."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.training.resuming import job
from tests.training.tiny import file_digests, newest, write_inputs

COMPILER = os.environ.get("CXX", "g++")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sensitive,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"torch.compile needs a C++ compiler: no {COMPILER}"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    write_inputs(folder)
    return folder


def process(folder, cache, *arguments):
    """Run a part of a compiled run in a process that finds no compiled code of another one; return its exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / cache),
    }
    command = [sys.executable, "-m", "tests.training.resuming", "compiled", str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert any((folder / "cache" / cache).rglob("*.so")), "nothing was compiled"
    return done.returncode


@pytest.mark.parametrize(("family", "precision"), [("llama", "float32"), ("llama", "bfloat16"), ("mamba3", "float32")])
def test_a_compiled_run_that_was_killed_ends_with_the_bytes_of_one_that_was_not(folder, family, precision):
    run = [(f"{family}_{name}", precision, family) for name in ("whole", "killed")]
    assert process(folder, f"{family}_{precision}_whole", *run[0]) == 0
    assert process(folder, f"{family}_{precision}_killed", *run[1], "12") == -signal.SIGKILL
    assert newest(job(folder, run[1][0], precision)).step == 10
    assert process(folder, f"{family}_{precision}_resumed", *run[1]) == 0
    whole, resumed = (newest(job(folder, name, precision)) for name, _, _ in run)
    assert resumed.step == 20
    assert file_digests(resumed) == file_digests(whole)
    assert resumed.digest == whole.digest
