"""One MLflow run: what may be written to it, and how it ends.

Everything goes through a `Sender` with an explicit run id. There is no "active run" (MLflow's is global to a thread),
so runs of several sessions in one process cannot mix.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.redaction import Redaction, redacted
from everytoken.shards import file_sha256
from everytoken.tracking.delivery import Sender
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.mlflow_keys import Point, flat_key, flat_parameters, shorten
from everytoken.tracking.store import DISCARDED, TrackingStore, reason

_PARAMETERS_A_BATCH = 100  # MLflow's own limits
_METRICS_A_BATCH = 1000
_OPENING_SECONDS = 60.0
_TAG_LIMIT = 8000
_DIGEST_LIMIT = 36  # of an MLflow dataset; the whole digest is a tag of the input
_DIGEST_SHOWN = 16  # characters in the parameter digest.<dataset>


@dataclass(frozen=True)
class Contents:
    """Content of a dataset at one moment: hex digest, rows (None if it has no rows) and bytes."""

    digest: str
    rows: int | None
    bytes: int


NOTHING = Contents("", None, 0)
"""Of an optional dataset that was not made, or of what is switched off."""


def contents(dataset: Any) -> Contents | None:
    """Return what a Kedro dataset object holds now, or None if nothing tells (a database, a remote file).

    A dataset with ``ledger_summary() -> {"root_digest": str, "rows": int | None, "bytes": int}`` is asked; where that
    is None, it is an optional one that was not made, and holds `NOTHING`; so does one
    with ``is_empty``, of what is switched off.
    Otherwise a local file gives the SHA-256 of its bytes, and a local folder that of its files' names and SHA-256s.
    """
    if hasattr(dataset, "ledger_summary"):
        summary = dataset.ledger_summary()
        if summary is None or summary.get("is_empty"):
            return NOTHING
        return Contents(summary["root_digest"], summary["rows"], summary["bytes"])
    path = local_path(dataset)
    if path is None:
        return None
    if not path.is_dir():
        return Contents(file_sha256(path), None, path.stat().st_size)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file_sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Contents(digest, None, sum(file.stat().st_size for file in files))


def state_of(dataset: Any) -> object:
    """Return what differs after something was made in a dataset; where nothing tells, another thing each time.

    A dataset with ``state()`` is asked, a local file gives its SHA-256.
    """
    if hasattr(dataset, "state"):
        return dataset.state()
    if hasattr(dataset, "ledger_summary") or (path := local_path(dataset)) is None:
        return object()
    return file_sha256(path) if path.is_file() else None


def local_path(dataset: Any) -> Path | None:
    """Return the local file or folder of a Kedro dataset (of a versioned one the version in use), or None."""
    path = getattr(dataset, "_filepath", None)
    if path is None or getattr(dataset, "_protocol", "file") not in ("file", "local", ""):
        return None
    return Path(str(dataset._get_load_path() if getattr(dataset, "_version", None) else path))


MADE = "made"
"""What is before the name of a dataset in the tag of a run that made it."""


class TrackedRun:
    """A RUNNING run. Kedro may load datasets in threads: `log_dataset` may be called from several."""

    def __init__(self, store: TrackingStore, name: str, tags: Mapping[str, str]) -> None:
        """Open the run. Tags longer than MLflow's 8,000 characters are cut with a mark.

        Raises:
            TrackingError: if the store does not take it.
        """
        shown = Redaction().tree(tags)
        cut = {key: shorten(value, _TAG_LIMIT, "no artifact") for key, value in shown.items()}
        try:
            self.id = store.create_run(name, cut)
        except Exception as error:  # each kind of store has its own
            raise TrackingError(f"{store.shown} takes no run: {reason(error)}. Run again when it does.") from error
        self._store = store.shown
        try:
            self._sender = Sender(store, self.id)
        except (OSError, RuntimeError) as error:  # no file, or no thread
            text = f"{store.backlogs}: the run cannot begin: {error}. Make room there, and make it writable."
            with contextlib.suppress(Exception):  # the error says it
                store.send(self.id, {"tags": {"error": redacted(text)}}, store.backlogs)
                store.send(self.id, {"end": "FAILED", "time": int(time.time() * 1000)}, store.backlogs)
            raise TrackingError(text) from error
        self._datasets: dict[str, Mapping[str, Any]] = {}
        self._metric_owner: dict[str, str] = {}
        self._figures: dict[str, Any] = {}
        self._series: dict[str, tuple[int, int]] = {}  # first and last step of each key that is recorded

    def require_recorded(self) -> None:
        """Check that the store has everything so far.

        Raises:
            TrackingError: if it has not within a minute.
        """
        if problem := self._sender.flush(_OPENING_SECONDS):
            raise TrackingError(f"{self._store} does not take run {self.id}: {problem}. Run again when it does.")

    def log_parameters(self, tree: Mapping[str, Any]) -> None:
        """Record a plain nested mapping: flat parameters, and all of it as ``parameters.json``."""
        tree = Redaction().tree(tree)
        pairs = list(flat_parameters(tree).items())
        for start in range(0, len(pairs), _PARAMETERS_A_BATCH):
            self._sender.put({"params": dict(pairs[start : start + _PARAMETERS_A_BATCH])})
        self.log_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", "parameters.json")

    def log_dataset(self, name: str, held: Contents, context: str, source: str, *, is_data: bool = True) -> None:
        """Record that the run read ("input") or made ("output") a dataset, once: its first context stays.

        What was read is an MLflow dataset, unless it is a report (not ``is_data``); what was made is a tag with its
        digest. Both are parameters, which MLflow compares.

        Raises:
            TrackingError: if the dataset held something else when the run touched it before.
        """
        rows = {} if held.rows is None else {"rows": held.rows}
        shown = {"was": context, "digest": held.digest, **rows, "bytes": held.bytes}
        known = self._datasets.setdefault(name, shown)
        if known["digest"] != held.digest:
            raise TrackingError(
                f"dataset {name} changed during the run: SHA-256 {known['digest']} before, {held.digest} now. Another "
                f"'kedro run' in this data folder made it again (give each run its own: globals.yml: data), or two "
                f"datasets of the catalog share its place (give each its own)."
            )
        if known is not shown:
            return
        if context == "output":
            self._sender.put({"tags": {flat_key(MADE, name): held.digest}})
        elif is_data:
            dataset = {
                "name": name,
                "digest": held.digest[:_DIGEST_LIMIT],
                "source_type": "local",
                "source": json.dumps({"uri": redacted(source)}),
                "profile": json.dumps({f"num_{key}": count for key, count in rows.items()} | {"bytes": held.bytes}),
            }
            tags = {"mlflow.data.context": context, "digest": held.digest, "bytes": str(held.bytes)}
            tags |= {key: str(count) for key, count in rows.items()}
            self._sender.put({"dataset": dataset, "tags_of_dataset": tags})
        # a parameter too: MLflow's compare page shows no datasets
        self._sender.put({"params": {flat_key("digest", name): held.digest[:_DIGEST_SHOWN]}})

    def log_metrics(self, values: Mapping[str, float], dataset: str) -> None:
        """Record single numbers, each at step 0."""
        self.log_points([(key, 0, value) for key, value in values.items()], dataset)

    def log_series(self, points: Sequence[Point], dataset: str) -> None:
        """Record points of a history that grows: what was announced while it did is not recorded again at the end."""
        recorded = dict(self._series)
        new = []
        for key, step, value in points:
            if key not in recorded or not recorded[key][0] <= step <= recorded[key][1]:
                new.append((key, step, value))
                first, last = self._series.get(key, (step, step))
                self._series[key] = (min(first, step), max(last, step))
        self.log_points(new, dataset)

    def log_points(self, points: Sequence[Point], dataset: str) -> None:
        """Record series, in batches of 1,000 (one at a time costs 23 ms each on SQLite).

        MLflow keeps NaN as it is, an infinity as the largest double.

        Raises:
            TrackingError: if another dataset has already given one of the keys.
        """
        for key in dict.fromkeys(key for key, _, _ in points):
            owner = self._metric_owner.setdefault(key, dataset)
            if owner != dataset:
                raise TrackingError(f"metric {key}: both {owner} and {dataset} give it. Rename the key in one of them.")
        now = int(time.time() * 1000)
        rows = [(key, value, now, step) for key, step, value in points]
        for start in range(0, len(rows), _METRICS_A_BATCH):
            self._sender.put({"metrics": rows[start : start + _METRICS_A_BATCH]})

    def log_figure(self, name: str, figure: Any) -> None:
        """Record a Plotly figure: its JSON now, and its place in ``figures.html`` when the run ends."""
        self._figures[name] = figure
        self.log_text(figure.to_json(), f"figures/{name}.json")

    def log_file(self, path: Path, file: str) -> None:
        """Record a file as the artifact ``file``."""
        self._sender.put_file(path, file)

    def log_text(self, text: str, file: str) -> None:
        """Record a text as an artifact."""
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary, "text")
            path.write_text(text, encoding="utf-8")
            self.log_file(path, file)

    def set_tag(self, key: str, value: str, complete_in: str = "no artifact") -> None:
        """Set one tag; a long value is cut, with a mark that names the artifact that has all of it."""
        self._sender.put({"tags": {key: shorten(redacted(value), _TAG_LIMIT, complete_in)}})

    def log_error(self, error: BaseException) -> None:
        """Record why the run failed: the tag ``error`` and ``traceback.txt`` with all causes."""
        self.set_tag("error", f"{type(error).__name__}: {error}", complete_in="traceback.txt")
        self.log_text(redacted("".join(traceback.format_exception(error))), "traceback.txt")

    def log_model(self, model: Mapping[str, Any], dataset: tuple[str, str]) -> None:
        """Record a model that was made.

        Args:
            model: ``name``, ``step`` of its training, ``params``, ``tags`` (digests), and ``metrics``: key, step and
                value on held-out documents.
            dataset: name and digest of these documents.
        """
        now, (name, digest) = int(time.time() * 1000), dataset
        metrics = [(flat_key(key), value, now, step) for key, step, value in model["metrics"]]
        shown = {**model, "metrics": metrics, "dataset": [name, digest[:_DIGEST_LIMIT]]}
        self._sender.put({"model": shown})

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED, KILLED or `DISCARDED`; a later process delivers what the store lacks."""
        if self._datasets and status != DISCARDED:
            self.log_text(json.dumps(self._datasets, indent=1, ensure_ascii=False) + "\n", "datasets.json")
        if self._figures and status != DISCARDED:
            self.log_text(_page(self._figures), "figures.html")
        self._sender.put({"end": status, "time": int(time.time() * 1000)})
        self._sender.close()


def record_results(
    store: TrackingStore,
    name: str,
    *,
    tags: Mapping[str, str],
    parameters: Mapping[str, Any],
    metrics: Mapping[str, float],
    report: str,
) -> str:
    """Record what a command found as a run of its own, with the JSON ``reports/<name>.json``; return its id."""
    run = TrackedRun(store, name, tags)
    run.log_parameters(parameters)
    run.log_metrics(metrics, name)
    run.log_text(report, f"reports/{name}.json")
    run.end("FINISHED")
    return run.id


def is_figure(data: Any) -> bool:
    """Tell whether ``data`` is a Plotly figure, without importing plotly."""
    return type(data).__module__.partition(".")[0] == "plotly" and hasattr(data, "to_plotly_json")


def _page(figures: Mapping[str, Any]) -> str:
    """Return one page for all figures, in the order of their names, that works without a network.

    MLflow shows an HTML artifact in a sandboxed frame that can load nothing beside it, so plotly.js (4.8 MB) is in the
    page, once. (``MlflowClient.log_figure`` points to a CDN: an empty frame offline.)
    """
    parts = ['<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Figures</title></head>\n<body>']
    for number, (name, figure) in enumerate(sorted(figures.items())):
        # a given id: the same bytes each time
        body = figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=name)
        parts.append(f"<h2>{html.escape(name)}</h2>\n{body}")
    return "\n".join([*parts, "</body></html>\n"])
