"""Files that a command adds to a run which has ended, such as the report of what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import MADE
from everytoken.tracking.store import mlflow_environment, reason


@mlflow_environment()
def add_to_newest_run(
    project: Path, settings: TrackingSettings, env: str, files: Sequence[Path], folder: str
) -> str | None:
    """Add files to the newest finished run of an environment that made a dataset; return its id, or None.

    Args:
        folder: of the artifacts; a file that it has already is replaced.

    Raises:
        TrackingError: the store cannot be reached, or takes no file.
    """
    store = open_store(project, settings)
    try:
        for run in store.runs():
            if run.info.status == "FINISHED" and run.data.tags.get("kedro.env") == env and _has_made(run.data.tags):
                for file in files:
                    store.client.log_artifact(run.info.run_id, str(file), folder)
                return str(run.info.run_id)
    except Exception as error:  # each kind of store has its own
        raise TrackingError(f"{store.shown} takes no file: {reason(error)}. Run again when it does.") from error
    return None


def _has_made(tags: Mapping[str, str]) -> bool:
    return any(key.startswith(f"{MADE}.") for key in tags)
