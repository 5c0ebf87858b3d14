"""One toy project for all tests: each ``kedro run`` costs seconds."""

from __future__ import annotations

import os

import pytest

from tests.tracking.toy_project import ToyProject

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before a test module imports mlflow


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    return ToyProject(tmp_path_factory.mktemp("tracking") / "project")
