"""One MLflow run: what may be written to it, and how it ends.

Everything goes through ``MlflowClient`` with an explicit run id. There is no "active run" (MLflow's is global
to a thread), so runs of several sessions in one process cannot mix.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everytoken.urls import Redaction, redacted

from . import figures
from .contents import Contents
from .errors import TrackingError
from .flatten import Point, flat_key, flat_parameters, shorten
from .store import Store

if TYPE_CHECKING:
    from mlflow.entities import Metric

T = TypeVar("T")

_PARAMETERS_A_BATCH = 100  # MLflow's own limits
_METRICS_A_BATCH = 1000
_TAG_LIMIT = 8000
_DIGEST_LIMIT = 36  # of an MLflow dataset; the whole digest is a tag of the input
_DIGEST_SHOWN = 16  # characters in the parameter digest.<dataset>


class TrackedRun:
    """A RUNNING run. Methods may be called from several threads of the process that opened it."""

    def __init__(self, store: Store, name: str, tags: Mapping[str, str]) -> None:
        """Open the run. Tags longer than MLflow's 8,000 characters are cut with a mark."""
        self._client = store.client
        shown = Redaction().tree(tags)
        cut = {key: shorten(value, _TAG_LIMIT, "no artifact") for key, value in shown.items()}
        created = self._client.create_run(store.experiment_id, run_name=name, tags=cut)
        self.id: str = created.info.run_id
        self._lock = threading.RLock()
        self._digests: dict[str, str] = {}
        self._metric_owner: dict[str, str] = {}
        self._figures: dict[str, str] = {}
        self._series: dict[str, tuple[int, int]] = {}  # first and last step of each key that is recorded

    def log_parameters(self, tree: Mapping[str, Any]) -> None:
        """Record a plain nested mapping: flat parameters, and all of it as ``parameters.json``."""
        from mlflow.entities import Param

        tree = Redaction().tree(tree)
        pairs = [Param(key, text) for key, text in flat_parameters(tree).items()]
        for batch in _batches(pairs, _PARAMETERS_A_BATCH):
            self._client.log_batch(self.id, params=batch)
        self.log_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", "parameters.json")

    def log_dataset(self, name: str, held: Contents, context: str, source: str) -> None:
        """Record that the run read ("input") or made ("output") a dataset, once: its first context stays.

        Raises:
            TrackingError: if the dataset held something else when the run touched it before.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        with self._lock:
            known = self._digests.get(name)
            if known is not None and known != held.digest:
                raise TrackingError(
                    f"dataset {name} changed during the run: SHA-256 {known} before, {held.digest} now. Something else "
                    f"writes to it, or two datasets share its place; give each its own."
                )
            if known is not None:
                return
            profile = {"num_rows": held.rows, "bytes": held.bytes}
            dataset = Dataset(
                name=name,
                digest=held.digest[:_DIGEST_LIMIT],
                source_type="local",
                source=json.dumps({"uri": redacted(source)}),
                profile=json.dumps({key: value for key, value in profile.items() if value is not None}),
            )
            tags = {"mlflow.data.context": context, "digest": held.digest, "bytes": str(held.bytes)}
            if held.rows is not None:
                tags["rows"] = str(held.rows)
            self._client.log_inputs(self.id, [DatasetInput(dataset, [InputTag(key, tags[key]) for key in tags])])
            # a parameter too: MLflow's compare page shows no datasets
            self._client.log_batch(self.id, params=[Param(flat_key("digest", name), held.digest[:_DIGEST_SHOWN])])
            self._digests[name] = held.digest

    def log_metrics(self, values: Mapping[str, float], dataset: str) -> None:
        """Record single numbers, each at step 0."""
        self.log_points([(key, 0, value) for key, value in values.items()], dataset)

    def log_series(self, points: Sequence[Point], dataset: str) -> None:
        """Record points of a history that grows: what was announced while it did is not recorded again at the end."""
        with self._lock:
            recorded = dict(self._series)
            new = [
                (key, step, value)
                for key, step, value in points
                if key not in recorded or not recorded[key][0] <= step <= recorded[key][1]
            ]
            self.log_points(new, dataset)
            for key, step, _ in new:
                first, last = self._series.get(key, (step, step))
                self._series[key] = (min(first, step), max(last, step))

    def log_points(self, points: Sequence[Point], dataset: str) -> None:
        """Record series, in batches of 1,000 (one at a time costs 23 ms each on SQLite).

        MLflow keeps NaN as it is, an infinity as the largest double.

        Raises:
            TrackingError: if another dataset has already given one of the keys.
        """
        from mlflow.entities import Metric

        with self._lock:
            for key in dict.fromkeys(key for key, _, _ in points):
                owner = self._metric_owner.setdefault(key, dataset)
                if owner != dataset:
                    raise TrackingError(
                        f"metric {key}: both {owner} and {dataset} give it. Rename the key in one of them."
                    )
            now = int(time.time() * 1000)
            metrics: list[Metric] = [Metric(key, value, now, step) for key, step, value in points]
            for batch in _batches(metrics, _METRICS_A_BATCH):
                self._client.log_batch(self.id, metrics=batch)

    def log_figure(self, name: str, figure: Any) -> None:
        """Record a Plotly figure: its JSON, and the page ``figures.html`` with all figures of the run so far."""
        with self._lock:
            self._figures[name] = figures.figure_fragment(name, figure)
            self.log_text(figure.to_json(), f"figures/{name}.json")
            self.log_text(figures.figure_page("Figures", self._figures), "figures.html")

    def log_file(self, name: str, path: Path, folder: str) -> None:
        """Record a file as ``<folder>/<name><its suffix>``, or a folder as ``<folder>/<name>/``."""
        if path.is_dir():
            self._client.log_artifacts(self.id, str(path), f"{folder}/{name}")
            return
        with tempfile.TemporaryDirectory() as temporary:  # MLflow keeps the file's own name, and two may be report.json
            renamed = Path(temporary, name + path.suffix)
            shutil.copyfile(path, renamed)
            self._client.log_artifact(self.id, str(renamed), folder)

    def log_text(self, text: str, file: str) -> None:
        """Record a text as an artifact."""
        self._client.log_text(self.id, text, file)

    def set_tag(self, key: str, value: str) -> None:
        """Set one tag."""
        self._client.set_tag(self.id, key, shorten(redacted(value), _TAG_LIMIT, "no artifact"))

    def log_error(self, error: BaseException) -> None:
        """Record why the run failed: the tag ``error`` and ``traceback.txt`` with all causes."""
        text = redacted(f"{type(error).__name__}: {error}")
        self._client.set_tag(self.id, "error", shorten(text, _TAG_LIMIT, "traceback.txt"))
        self.log_text(redacted("".join(traceback.format_exception(error))), "traceback.txt")

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self.id, status)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
