"""Recorded runs, read back: one found by its name, and what differs between two."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.mlflow_keys import flatten, parameter_text
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.store import TrackingStore

if TYPE_CHECKING:
    from mlflow.entities import Run

_DIGEST = "digest"
_PARAMETERS = "parameters.json"
_ALWAYS_OTHER = ("kedro.run_id", "process.", "mlflow.", "kedro.command", "working_folder", "error")


@dataclass(frozen=True)
class RecordedRun:
    """What MLflow knows of a run.

    Attributes:
        kinds: seeds, parameters, digests of datasets, metrics and surroundings: of each a mapping from name to text.
        tree: all parameters by pipeline, at full length; None: it died before they were written.
    """

    id: str
    name: str
    status: str
    kinds: Mapping[str, Mapping[str, str]]
    tree: dict[str, Any] | None

    @property
    def digests(self) -> Mapping[str, str]:
        """The beginning of the digest of each dataset that it read or made."""
        return self.kinds["datasets"]


def compare_runs(project: Path, settings: TrackingSettings, first: str, second: str) -> dict[str, Any]:
    """Return runs ``A`` and ``B`` (id, name, status), and what they have of each of the ``kinds``, by name.

    Args:
        first: a run: its id or the beginning of it, ``last``, or ``last~N`` for the N-th before the last.

    Raises:
        TrackingError: there is no such run, or several.
    """
    store = open_store(project, settings)
    a, b = (_described(store, _find(store, which)) for which in (first, second))
    kinds = {kind: (names, b.kinds[kind]) for kind, names in a.kinds.items()}
    return {"A": (a.id, a.name, a.status), "B": (b.id, b.name, b.status), "kinds": kinds}


def read_recorded(
    project: Path, settings: TrackingSettings, which: str, made: Collection[str]
) -> tuple[RecordedRun, dict[str, Any]]:
    """Return a run, and its parameters by pipeline; ``last`` and ``last~N`` count only runs that made one of ``made``.

    Raises:
        TrackingError: there is no such run, or several, or it died before its parameters were written.
    """
    store = open_store(project, settings)
    run = _described(store, _find(store, which, made))
    if run.tree is None:
        raise TrackingError(f"the run {run.id} ({run.name}, {run.status}) has no {_PARAMETERS}: it died before it")
    return run, run.tree


def _described(store: TrackingStore, run: Run) -> RecordedRun:
    data, prefix = run.data, f"{_DIGEST}."
    shown = {key.removeprefix(prefix): value for key, value in data.params.items() if key.startswith(prefix)}
    whole = {name: tags[_DIGEST][:16] for name, tags in _inputs(run) if _DIGEST in tags}
    tree = _parameter_tree(store, run.info.run_id)
    own = {key: value for key, value in data.params.items() if not key.startswith(prefix)}  # which MLflow may have cut
    values = own if tree is None else {name: parameter_text(value) for name, value in flatten(tree).items()}
    kinds = {
        "seeds": {name: value for name, value in values.items() if _is_seed(name)},
        "parameters": {name: value for name, value in values.items() if not _is_seed(name)},
        "datasets": {**shown, **whole},
        "metrics": {key: f"{value:.6g}" for key, value in data.metrics.items()},
        "machine and versions": {key: value for key, value in data.tags.items() if not key.startswith(_ALWAYS_OTHER)},
    }
    return RecordedRun(run.info.run_id, run.info.run_name or "", run.info.status, kinds, tree)


def _is_seed(name: str) -> bool:
    return any(part.endswith(("seed", "seeds")) for part in name.split("."))


def _parameter_tree(store: TrackingStore, run_id: str) -> dict[str, Any] | None:
    """Return all parameters of a run at full length; None: it died before they were written."""
    if not any(file.path == _PARAMETERS for file in store.client.list_artifacts(run_id)):
        return None
    path = store.client.download_artifacts(run_id, _PARAMETERS)
    tree: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return tree


def _find(store: TrackingStore, which: str, made: Collection[str] = ()) -> Run:
    """Return the run that a name means, of ``last`` among those that made one of the datasets, where any is named."""
    if which == "last" or which.startswith("last~"):
        back = which.removeprefix("last").removeprefix("~") or "0"
        if not back.isdecimal():
            raise TrackingError(f"run {which!r}: expected last, last~1, last~2, and so on")
        counted = list(islice((run for run in store.runs() if _made(run, made)), int(back) + 1))
        if len(counted) <= int(back):
            of = f" that made one of {sorted(made)}" if made else ""
            raise TrackingError(f"run {which!r}: there are only {len(counted)} runs{of}")
        return counted[-1]
    found = [run for run in store.runs() if run.info.run_id.startswith(which)]
    if len(found) != 1:
        what = f"{len(found)} runs begin" if found else "no run begins"
        raise TrackingError(f"{what} with {which!r}; give an id as MLflow shows it, or last~1")
    return found[0]


def _made(run: Run, names: Collection[str]) -> bool:
    return not names or any(
        name in names and tags.get("mlflow.data.context") == "output" for name, tags in _inputs(run)
    )


def _inputs(run: Run) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield name and tags of each dataset that a run read or made."""
    for entry in [] if run.inputs is None else run.inputs.dataset_inputs:
        yield entry.dataset.name, {tag.key: tag.value for tag in entry.tags}
