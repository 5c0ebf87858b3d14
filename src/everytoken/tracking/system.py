"""Use of CPU and memory while a run is open, under the keys of MLflow's own system metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from everytoken.tracking.run import TrackedRun

_SECONDS = 10.0


@contextmanager
def system_metrics(run: TrackedRun) -> Iterator[None]:
    """Record the use of this machine every 10 seconds inside the block; steps count from 0."""
    ended = threading.Event()
    thread = threading.Thread(target=_record, args=(run, ended), name="system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _record(run: TrackedRun, ended: threading.Event) -> None:
    import psutil

    psutil.cpu_percent()  # the first call has nothing to compare with
    step = 0
    while not ended.wait(_SECONDS if step else 1.0):
        memory = psutil.virtual_memory()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
        }
        run.log_points([(f"system/{name}", step, value) for name, value in values.items()], "system metrics")
        step += 1
