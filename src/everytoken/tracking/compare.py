"""Recorded runs, read back: one found by its name, what differs between two, and files that are added to one later."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import MADE
from everytoken.tracking.store import TrackingStore, mlflow_environment, reason

if TYPE_CHECKING:
    from mlflow.entities import Run

_PARAMETERS = "parameters.json"
_PIPELINES = "kedro.pipelines"
_ALWAYS_OTHER = ("kedro.run_id", "process.", "mlflow.", "kedro.command", "working_folder", "error", f"{MADE}.")


@dataclass(frozen=True)
class RecordedRun:
    """What MLflow knows of a run.

    Attributes:
        digests: the beginning of the digest of each dataset that it read or made.
        parameters: all parameters by pipeline, at full length.
    """

    id: str
    name: str
    digests: Mapping[str, str]
    parameters: dict[str, Any]


@mlflow_environment()
def compare_runs(project: Path, settings: TrackingSettings, first: str | None, second: str) -> dict[str, Any]:
    """Return runs ``A`` and ``B`` (id, name, status), and what they have of each kind, by name.

    Args:
        first: a run: its id or the beginning of it, ``last``, or ``last~N`` for the N-th before the last; None: the
            last before the second that ran the same pipelines.

    Raises:
        TrackingError: there is no such run, or several.
    """
    store = open_store(project, settings)
    b = _find(store, second)
    a = _of_same_pipelines(store, b) if first is None else _find(store, first)
    others = _kinds(b)
    kinds = {kind: (values, others[kind]) for kind, values in _kinds(a).items()}
    return {"A": _named(a), "B": _named(b), "kinds": kinds}


def _named(run: Run) -> tuple[str, str, str]:
    return run.info.run_id, run.info.run_name or "", run.info.status


@mlflow_environment()
def read_recorded(project: Path, settings: TrackingSettings, which: str, made: Collection[str]) -> RecordedRun:
    """Return a run; ``last`` and ``last~N`` count only runs that made one of ``made``.

    Raises:
        TrackingError: there is no such run, or several, or it died before its parameters were written.
    """
    store = open_store(project, settings)
    run = _find(store, which, made)
    run_id, name, status = _named(run)
    if not any(file.path == _PARAMETERS for file in store.client.list_artifacts(run_id)):
        raise TrackingError(f"the run {run_id} ({name}, {status}) has no {_PARAMETERS}: it died before it")
    parameters = json.loads(Path(store.client.download_artifacts(run_id, _PARAMETERS)).read_text(encoding="utf-8"))
    return RecordedRun(run_id, name, _digests(run), parameters)


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
            if (
                run.info.status == "FINISHED"
                and run.data.tags.get("kedro.env") == env
                and any(key.startswith(f"{MADE}.") for key in run.data.tags)
            ):
                for file in files:
                    store.client.log_artifact(run.info.run_id, str(file), folder)
                return str(run.info.run_id)
    except Exception as error:  # each kind of store has its own
        raise TrackingError(f"{store.shown} takes no file: {reason(error)}. Run again when it does.") from error
    return None


def _kinds(run: Run) -> dict[str, Mapping[str, str]]:
    """Return seeds, parameters, digests of datasets, metrics and surroundings, as text by name."""
    own = {name: value for name, value in run.data.params.items() if not name.startswith("digest.")}
    seeds = {name for name in own if any(part.endswith(("seed", "seeds")) for part in name.split("."))}
    return {
        "seeds": {name: value for name, value in own.items() if name in seeds},
        "parameters": {name: value for name, value in own.items() if name not in seeds},
        "datasets": _digests(run),
        "metrics": {name: _number(value) for name, value in run.data.metrics.items()},
        "machine and versions": {k: value for k, value in run.data.tags.items() if not k.startswith(_ALWAYS_OTHER)},
    }


def _number(value: float) -> str:
    return f"{int(value)}" if value.is_integer() and abs(value) < 2**53 else f"{value:.6g}"


def _digests(run: Run) -> dict[str, str]:
    prefix = "digest."
    return {key.removeprefix(prefix): value for key, value in run.data.params.items() if key.startswith(prefix)}


def _find(store: TrackingStore, which: str, made: Collection[str] = ()) -> Run:
    """Return the run that a name means, of ``last`` among those that made one of the datasets, where any is named."""
    if which == "last" or which.startswith("last~"):
        back = which.removeprefix("last").removeprefix("~") or "0"
        if not back.isdecimal():
            raise TrackingError(f"run {which!r}: expected last, last~1, last~2, and so on")
        tags = {f"{MADE}.{name}" for name in made}
        counted = list(islice((run for run in store.runs() if not made or tags & run.data.tags.keys()), int(back) + 1))
        if len(counted) <= int(back):
            of = f" that made one of {sorted(made)}" if made else ""
            raise TrackingError(f"run {which!r}: there are only {len(counted)} runs{of}")
        return counted[-1]
    found = [run for run in store.runs() if run.info.run_id.startswith(which)]
    if len(found) != 1:
        what = f"{len(found)} runs begin" if found else "no run begins"
        raise TrackingError(f"{what} with {which!r}; give an id as MLflow shows it, or last~1")
    return found[0]


def _of_same_pipelines(store: TrackingStore, run: Run) -> Run:
    """Return the last run before one with the same pipelines."""
    pipelines, started = run.data.tags.get(_PIPELINES), run.info.start_time
    for other in store.runs():
        is_earlier = other.info.run_id != run.info.run_id and other.info.start_time <= started
        if is_earlier and other.data.tags.get(_PIPELINES) == pipelines:
            return other
    raise TrackingError(
        f"no run before {run.info.run_id} ran the same pipelines ({pipelines}); "
        "give two runs: everytoken compare last~1 last"
    )
