"""All parameters of a run that MLflow has, as the tree that the run read: `parameters.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .compare import RecordedRun, read_run
from .errors import TrackingError
from .store import TrackingSettings, open_store

_PARAMETERS = "parameters.json"


def read_recorded(project: Path, settings: TrackingSettings, which: str) -> tuple[RecordedRun, dict[str, Any]]:
    """Return a run, and its parameters by pipeline.

    Args:
        project: folder of the project.
        settings: where its runs are kept.
        which: as `everytoken.tracking.compare.read_run` takes it.

    Raises:
        TrackingError: there is no such run, or several, or it died before its parameters were written.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of a file of some kilobytes
    store = open_store(project, settings)
    run = read_run(store, which)
    if not any(file.path == _PARAMETERS for file in store.client.list_artifacts(run.id)):
        raise TrackingError(f"the run {run.id} ({run.name}, {run.status}) has no {_PARAMETERS}: it died before it")
    tree: dict[str, Any] = json.loads(
        Path(store.client.download_artifacts(run.id, _PARAMETERS)).read_text(encoding="utf-8")
    )
    return run, tree
