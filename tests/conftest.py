"""Settings of all tests: no telemetry, quiet hypothesis deadlines on a busy machine, long files first."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections import Counter

import pytest
from hypothesis import settings

gc.disable()  # while tests are collected: what modules make stays, and is looked through for nothing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is in its background: runs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.update(DO_NOT_TRACK="1", MLFLOW_DISABLE_TELEMETRY="true")

# One thread computes in each process, unless a test says more: there are as many processes as cores, and threads that
# wait for others take three times as much of a core as the small sums that tests do.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests leave the user's cache alone. Processes of one run share a folder, which goes with the first of them.
if "EVERYTOKEN_CACHE_OF_TESTS" not in os.environ:
    os.environ["EVERYTOKEN_CACHE_OF_TESTS"] = tempfile.mkdtemp(prefix="everytoken-cache-")
    atexit.register(shutil.rmtree, os.environ["EVERYTOKEN_CACHE_OF_TESTS"], ignore_errors=True)
os.environ["EVERYTOKEN_CACHE"] = os.environ["EVERYTOKEN_CACHE_OF_TESTS"]

# The machine may be busy: a slow example is not a failure, a wrong one is. Examples are the same in every run.
settings.register_profile("everytoken", deadline=None, derandomize=True)
settings.load_profile("everytoken")


# What takes long, longest first. pytest-xdist would begin with the files of most tests, and end with one process at
# work on a file of few long ones while the others have nothing left.
_LONGEST = [
    "tests/test_run.py",
    "tests/cli/test_job_report.py",
    "tests/reflections/test_ranks.py",
    "tests/cli/test_sweep.py",
    "tests/project/test_jobs.py",
    "tests/shards/workers/test_slurm.py",
    "tests/configuration/test_mistakes.py",
    "tests/test_stream_kinds.py",
    "tests/shards/workers/test_ray_cluster.py",
    "tests/provenance/replay/test_replay.py",
    "tests/configuration/test_contract.py",
    "tests/tracking/test_runs.py",
    "tests/training/step/test_distribution.py",
    "tests/training/run/test_training_run.py",
    "tests/serving/test_process.py",
    "tests/reflections/test_generators.py",
    "tests/project/test_troubleshooting.py",
    "tests/tracking/test_tracking_store.py",
    "tests/provenance/test_verify_release.py",
    "tests/shards/test_crash.py",
    "tests/training/run/test_resume.py",
    "tests/corpus/test_expected_corpus.py",
    "tests/benchmark_tasks/test_harness.py",
    "tests/corpus/scoring/test_transformer.py",
    "tests/models/test_gguf.py",
    "tests/provenance/test_diff.py",
    "tests/configuration/test_missing_configuration.py",
    "tests/test_own_text.py",
    "tests/cli/test_command_process.py",
    "tests/tokens/streams/test_streams_in_ranges.py",
    "tests/shards/remote/test_remote_stores.py",
    "tests/training/run/test_remote_streams.py",
    "tests/provenance/takedown/test_forgotten_reflections.py",
]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # of pytest-xdist, which may be switched off
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Counter(_file(item) for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        file = _file(item)
        return (_LONGEST.index(file) if file in _LONGEST else len(_LONGEST), -tests[file], file)

    items.sort(key=place)  # within a file the order stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
