"""What differs between two runs: parameters, seeds, contents of datasets, metrics, machine and versions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.mlflow_keys import flatten, parameter_text
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.store import TrackingStore

if TYPE_CHECKING:
    from mlflow.entities import Run

_ABSENT = "-"
_MOST_RESULTS = 50_000  # that MLflow gives at once
_SHOWN = 60  # characters of a value
_DIGEST = "digest"
_PARAMETERS = "parameters.json"
_ALWAYS_OTHER = ("kedro.run_id", "process.", "mlflow.", "kedro.command", "working_folder", "error")


@dataclass(frozen=True)
class RecordedRun:
    """What MLflow knows of a run, by kind: each a mapping from name to text."""

    id: str
    name: str
    status: str
    parameters: Mapping[str, str] = field(repr=False)
    digests: Mapping[str, str] = field(repr=False)
    metrics: Mapping[str, str] = field(repr=False)
    surroundings: Mapping[str, str] = field(repr=False)


def compare_lines(project: Path, settings: TrackingSettings, first: str, second: str) -> Iterator[str]:
    """Yield the lines of ``everytoken compare``.

    Args:
        project: folder of the project.
        settings: where its runs are kept.
        first: a run: its id or the beginning of it, ``last``, or ``last~N`` for the N-th before the last.
        second: another.

    Raises:
        TrackingError: there is no such run, or several.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of a file of some kilobytes
    store = open_store(project, settings)
    runs = (read_run(store, first), read_run(store, second))
    for letter, run in zip("AB", runs, strict=True):
        yield f"{letter}  {run.id}  {run.name}  {run.status}"
    a, b = runs
    kinds = {
        "seeds": (_seeds(a.parameters), _seeds(b.parameters)),
        "parameters": (_others(a.parameters), _others(b.parameters)),
        "datasets": (a.digests, b.digests),
        "metrics": (a.metrics, b.metrics),
        "machine and versions": (a.surroundings, b.surroundings),
    }
    for kind, (left, right) in kinds.items():
        rows = differing(left, right)
        equal = len(left.keys() | right.keys()) - len(rows)
        yield ""
        yield f"{kind}: {len(rows)} differ, {equal} are equal" if rows else f"{kind}: all {equal} are equal"
        width = max((len(name) for name in rows), default=0)
        for name, values in rows.items():
            yield f"  {name:<{width}}  {_short(values[0])}  |  {_short(values[1])}"


def _is_seed(name: str) -> bool:
    return any(part.endswith(("seed", "seeds")) for part in name.split("."))


def _seeds(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if _is_seed(name)}


def _others(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if not _is_seed(name)}


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the names with two values, or a value on one side only (the other is ``-``), sorted."""
    names = sorted(a.keys() | b.keys())
    return {name: (a.get(name, _ABSENT), b.get(name, _ABSENT)) for name in names if a.get(name) != b.get(name)}


def read_run(store: TrackingStore, which: str) -> RecordedRun:
    """Return a run by id, by the beginning of its id, or as ``last`` and ``last~N``.

    Raises:
        TrackingError: there is no such run, or several.
    """
    run = _find(store, which)
    data = run.data
    prefix = f"{_DIGEST}."
    shown = {key.removeprefix(prefix): value for key, value in data.params.items() if key.startswith(prefix)}
    inputs = [] if run.inputs is None else run.inputs.dataset_inputs
    whole = {entry.dataset.name: tag.value for entry in inputs for tag in entry.tags if tag.key == _DIGEST}
    return RecordedRun(
        id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        parameters=_parameters(store, run),
        digests={**shown, **{name: digest[:16] for name, digest in whole.items()}},
        metrics={key: f"{value:.6g}" for key, value in data.metrics.items()},
        surroundings={key: value for key, value in data.tags.items() if not key.startswith(_ALWAYS_OTHER)},
    )


def _parameters(store: TrackingStore, run: Run) -> dict[str, str]:
    """Return all parameters at full length: ``parameters.json`` of the run; MLflow's own values may be cut.

    A run that died before it was written has what MLflow has.
    """
    if not any(file.path == _PARAMETERS for file in store.client.list_artifacts(run.info.run_id)):
        return {key: value for key, value in run.data.params.items() if not key.startswith(f"{_DIGEST}.")}
    path = store.client.download_artifacts(run.info.run_id, _PARAMETERS)
    tree: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: parameter_text(value) for name, value in flatten(tree).items()}


def _find(store: TrackingStore, which: str) -> Run:
    if which == "last" or which.startswith("last~"):
        back = which.removeprefix("last").removeprefix("~") or "0"
        if not back.isdecimal():
            raise TrackingError(f"run {which!r}: expected last, last~1, last~2, and so on")
        newest = store.client.search_runs(
            [store.experiment_id],
            order_by=["attributes.start_time DESC"],
            max_results=min(int(back) + 1, _MOST_RESULTS),
        )
        if len(newest) <= int(back):
            raise TrackingError(f"run {which!r}: there are only {len(newest)} runs")
        return newest[int(back)]
    found: list[Run] = []
    token = None
    while True:
        page = store.client.search_runs([store.experiment_id], page_token=token)
        found += [run for run in page if run.info.run_id.startswith(which)]
        token = page.token
        if not token:
            break
    if len(found) != 1:
        what = f"{len(found)} runs begin" if found else "no run begins"
        raise TrackingError(f"{what} with {which!r}; give an id as MLflow shows it, or last~1")
    return found[0]


def _short(text: str) -> str:
    text = text.replace("\n", "\\n")  # a value is one line
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
