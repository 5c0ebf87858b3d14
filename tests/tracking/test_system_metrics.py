"""Use of CPU and memory is recorded where a project asks for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import TrackedRun
from everytoken.tracking.system import system_metrics

GIVEN = {"experiment": "toy", "tracking_uri": "sqlite:///mlflow.db", "artifacts": "mlartifacts"}


@pytest.mark.slow
def test_system_metrics_are_off_unless_asked_for_and_have_mlflows_names(tmp_path: Path) -> None:
    settings = TrackingSettings(**GIVEN)
    assert not settings.system_metrics
    store = open_store(tmp_path, settings)
    run = TrackedRun(store, "watched", {})
    with system_metrics(run):
        time.sleep(1.5)
    run.end("FINISHED")
    assert store.client.get_run(run.id).data.metrics["system/system_memory_usage_percentage"] > 0


def test_there_are_at_most_15_metrics() -> None:
    with pytest.raises(ValidationError, match="metrics"):
        TrackingSettings(**GIVEN, metrics=[f"m{number}" for number in range(16)])
