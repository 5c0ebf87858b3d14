"""What kedro-viz keeps of a run in ``.viz``, completed: its hooks know only tables, and files of one name.

``stats.json`` gets rows, columns and bytes of every dataset from its ledger. The events, which its Workflow view shows,
get the bytes too. Both keep what an earlier run said of everything that this run did not touch: kedro-viz writes them
anew, also after ``--pipelines``.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from kedro.utils import find_kedro_project

from everytoken.shards import LEDGER_FILE, ShardsError, write_text

logger = logging.getLogger(__name__)

EVENTS_FILE = "kedro_pipeline_events.json"
_STATS_FILE = "stats.json"
_OF_RUN = ("before_pipeline_run", "after_pipeline_run", "on_pipeline_error")


def viz_file(name: str) -> Path | None:
    """Return a file of kedro-viz in the project of the working directory; None: there is no project."""
    project = find_kedro_project(Path.cwd())
    return None if project is None else project / ".viz" / name


class VizFilesHook:
    """Completes the files of kedro-viz after its own hooks have written them."""

    def __init__(self) -> None:
        self._begin_run(DataCatalog())

    def _begin_run(self, catalog: DataCatalog) -> None:
        self._catalog = catalog
        self._touched: dict[str, None] = {}
        self._earlier = {name: _read(name) for name in (EVENTS_FILE, _STATS_FILE)}

    @hook_impl
    def before_pipeline_run(self, catalog: DataCatalog) -> None:
        """Remember what was said of earlier runs."""
        self._begin_run(catalog)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str) -> None:
        """Remember a dataset that the run read."""
        self._touched[dataset_name] = None

    @hook_impl
    def after_dataset_saved(self, dataset_name: str) -> None:
        """Remember a dataset that the run wrote."""
        self._touched[dataset_name] = None

    @hook_impl(wrapper=True)
    def after_pipeline_run(self) -> Iterator[None]:
        """Complete both files."""
        try:
            return (yield)
        finally:
            self._complete()

    @hook_impl(wrapper=True)
    def on_pipeline_error(self) -> Iterator[None]:
        """Complete both files of a run that failed."""
        try:
            return (yield)
        finally:
            self._complete()

    def _complete(self) -> None:
        """Write both files again. They are for the eye: what goes wrong with them ends no run."""
        try:
            held = {name: found for name in self._touched if (found := _held(self._catalog.get(name)))}
            self._write_stats(held)
            self._write_events(held)
        except (OSError, ValueError, KeyError, TypeError, ShardsError) as error:
            logger.warning("kedro-viz may show less of this run: %s", error)

    def _write_stats(self, held: dict[str, dict[str, int]]) -> None:
        earlier, now = self._earlier[_STATS_FILE] or {}, _read(_STATS_FILE) or {}
        names = dict.fromkeys([*earlier, *now, *held])
        stats = {name: {**(now.get(name) or earlier.get(name, {})), **held.get(name, {})} for name in names}
        _write(_STATS_FILE, stats)

    def _write_events(self, held: dict[str, dict[str, int]]) -> None:
        earlier, now = self._earlier[EVENTS_FILE] or [], _read(EVENTS_FILE) or []
        if now == earlier:  # kedro-viz has written nothing of this run
            return
        told = {event.get("node_id") for event in now}
        kept = [event for event in earlier if event["event"] not in _OF_RUN and event.get("node_id") not in told]
        first = [event for event in now[:1] if event["event"] == "before_pipeline_run"]
        events = [*first, *kept, *now[len(first) :]]
        for event in events:
            if (found := held.get(event.get("dataset", ""))) is not None:
                event["size"] = found["file_size"]
        _write(EVENTS_FILE, events)


def _held(dataset: Any) -> dict[str, int]:
    """Return rows, columns and bytes of a dataset, each where it has them."""
    if not hasattr(dataset, "ledger_summary"):
        path = getattr(dataset, "_filepath", None)
        return {"file_size": Path(path).stat().st_size} if path is not None and Path(path).is_file() else {}
    summary = None
    with contextlib.suppress(ShardsError, OSError):  # the run has failed before it was made
        summary = dataset.ledger_summary()
    if summary is None:
        return {}
    columns = dataset.columns() if hasattr(dataset, "columns") else None
    ledger = Path(str(dataset._describe().get("filepath", ""))) / LEDGER_FILE
    in_ledger = ledger.stat().st_size if ledger.is_file() else 0  # of values, which are in it
    found = {"rows": summary["rows"], "columns": columns, "file_size": summary["bytes"] or in_ledger}
    return {name: value for name, value in found.items() if value is not None}


def _read(name: str) -> Any:
    file = viz_file(name)
    try:
        return None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or it was cut
        return None


def _write(name: str, value: Any) -> None:
    file = viz_file(name)
    if file is not None and file.parent.is_dir():  # else kedro-viz keeps nothing here
        write_text(file, json.dumps(value, indent=2, ensure_ascii=False))
