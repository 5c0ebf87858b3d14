"""All parameters of a run that MLflow has, as the tree that the run read: `parameters.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everytoken.tracking.compare import RecordedRun, read_run
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.store import TrackingStore

if TYPE_CHECKING:
    from mlflow.entities import Run

_PARAMETERS = "parameters.json"


def read_recorded(
    project: Path, settings: TrackingSettings, which: str, made: Collection[str]
) -> tuple[RecordedRun, dict[str, Any]]:
    """Return a run, and its parameters by pipeline.

    Args:
        project: folder of the project.
        settings: where its runs are kept.
        which: the id or its beginning, as `everytoken.tracking.compare.read_run` takes it; ``last`` and ``last~N``
            count only runs that made one of the datasets of ``made``.
        made: names of datasets.

    Raises:
        TrackingError: there is no such run, or several, or it died before its parameters were written.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of a file of some kilobytes
    store = open_store(project, settings)
    run = read_run(store, _last_that_made(store, which, made) if which.startswith("last") else which)
    if not any(file.path == _PARAMETERS for file in store.client.list_artifacts(run.id)):
        raise TrackingError(f"the run {run.id} ({run.name}, {run.status}) has no {_PARAMETERS}: it died before it")
    tree: dict[str, Any] = json.loads(
        Path(store.client.download_artifacts(run.id, _PARAMETERS)).read_text(encoding="utf-8")
    )
    return run, tree


def _last_that_made(store: TrackingStore, which: str, made: Collection[str]) -> str:
    back, token, seen = int(which.removeprefix("last").removeprefix("~") or "0"), None, 0
    while True:
        page = store.client.search_runs(
            [store.experiment_id], order_by=["attributes.start_time DESC"], page_token=token
        )
        for run in page:
            if not _made(run, made):
                continue
            if seen == back:
                return str(run.info.run_id)
            seen += 1
        token = page.token
        if not token:
            raise TrackingError(f"run {which!r}: there are only {seen} runs that made one of {sorted(made)}")


def _made(run: Run, names: Collection[str]) -> bool:
    inputs = [] if run.inputs is None else run.inputs.dataset_inputs
    return any(
        entry.dataset.name in names and tag.key == "mlflow.data.context" and tag.value == "output"
        for entry in inputs
        for tag in entry.tags
    )
