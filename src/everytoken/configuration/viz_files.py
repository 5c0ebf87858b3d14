"""The files in ``.viz`` of a project, which kedro-viz reads: the events of the newest run, and numbers of datasets.

All environments share the folder. So the events are kept by data folder too, in `_KEPT`, and are put in place when
kedro-viz opens an environment. Its hooks write only those of runs without ``--pipelines``, sizes only of files, and
forget what an earlier run said of stages that this run did not touch.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import update_wrapper
from inspect import unwrap
from pathlib import Path
from typing import Any

from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol, DataCatalog, DatasetError
from kedro.pipeline import Node, Pipeline
from kedro.utils import find_kedro_project

from everytoken.datasets import CsvFile
from everytoken.redaction import Redaction
from everytoken.shards import LEDGER_FILE, ShardsError, write_text

logger = logging.getLogger(__name__)

EVENTS_FILE = "kedro_pipeline_events.json"
_STATS_FILE = "stats.json"
_KEPT = "events_of"
UNREADABLE = (ShardsError, DatasetError, OSError, ValueError, KeyError, TypeError)
"""What reading a dataset raises that was not made, or is damaged: kedro-viz then shows it without numbers."""

_OF_RUN = ("before_pipeline_run", "after_pipeline_run", "on_pipeline_error")


def is_of_viz(hook_manager: object) -> bool:
    """Return whether a context is one of kedro-viz: that has a hook manager which runs no hooks."""
    return type(hook_manager).__module__.partition(".")[0] == "kedro_viz"


def viz_file(name: str) -> Path | None:
    """Return a file of kedro-viz in the project of the working directory; None: there is no project."""
    project = find_kedro_project(Path.cwd())
    return None if project is None else project / ".viz" / name


def show_events(data: str) -> None:
    """Let kedro-viz show the newest runs of a data folder, and of no other."""
    kept = viz_file(_KEPT)
    if kept is not None and kept.is_dir():  # else an older version has run here, and its events are all that there is
        _write(EVENTS_FILE, _read(_kept(data)) or [])


def write_statistics(held: Mapping[str, Mapping[str, int]]) -> None:
    """Write rows, columns and bytes of datasets, by name, for kedro-viz to read when it begins."""
    _write(_STATS_FILE, held)


def _kept(data: str) -> str:
    return f"{_KEPT}/{data.strip('/').replace('/', '+')}.json"


def without_namespace(node: Node) -> Node:
    """Return a node to look at in the view of its own pipeline, where it is in no box.

    It has its whole name, so that kedro-viz takes it for another than the one in the box.
    """

    def unnamed(*_: Any) -> None:  # of inputs by keyword, the keywords are lost
        raise TypeError(f"{node.name} without its namespace is there to be looked at")

    unnamed.__code__ = unnamed.__code__.replace(co_filename=unwrap(node.func).__code__.co_filename)  # its file is shown
    shown = update_wrapper(unnamed, node.func)
    return Node(shown, node.inputs, node.outputs, name=node.name, tags=node.tags, confirms=node.confirms)


class VizFilesHook:
    """Completes the events of a run after the hooks of kedro-viz have written them."""

    def __init__(self) -> None:
        self._data = ""
        self._begin_run(Pipeline([]), DataCatalog())

    def _begin_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        self._nodes, self._catalog = {node.name: node for node in pipeline.nodes}, catalog
        self._touched: dict[str, None] = {}
        self._before = _read(EVENTS_FILE)

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the data is."""
        self._data = str(context.config_loader["globals"]["data"])

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
        """Remember which events are there."""
        self._begin_run(pipeline, catalog)

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
        """Complete the events."""
        try:
            return (yield)
        finally:
            self._complete()

    @hook_impl(wrapper=True)
    def on_pipeline_error(self) -> Iterator[None]:
        """Complete the events of a run that failed."""
        try:
            return (yield)
        finally:
            self._complete()

    def _complete(self) -> None:
        """Write the events again. They are for the eye: what goes wrong with them ends no run."""
        try:
            earlier, now = _read(_kept(self._data)) or [], _read(EVENTS_FILE) or []
            if now == self._before:  # kedro-viz has written nothing of this run
                now = []
            now = [one for event in now for one in self._for_both_views(event)]
            told = {event.get("node_id") for event in now}
            kept = [event for event in earlier if not now or event["event"] not in _OF_RUN]
            first = [event for event in now[:1] if event["event"] == "before_pipeline_run"]
            events = [*first, *(event for event in kept if event.get("node_id") not in told), *now[len(first) :]]
            sizes = {name: amounts_held(self._catalog, name).get("file_size") for name in self._touched}
            for event in events:
                if (size := sizes.get(event.get("dataset", ""))) is not None:
                    event["size"] = size
            for name in (EVENTS_FILE, _kept(self._data)):
                _write(name, Redaction().tree(events))
        except UNREADABLE as error:
            logger.warning("kedro-viz may show less of this run: %s", error)

    def _for_both_views(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield an event, and that of its node in the view of its pipeline."""
        from kedro_viz.integrations.kedro.hooks_utils import hash_node  # not for `everytoken --help`

        yield event
        if "node_id" in event and (node := self._nodes.get(event.get("node", ""))) is not None:
            yield {**event, "node_id": hash_node(without_namespace(node))}


def amounts_held(catalog: CatalogProtocol[Any, Any], name: str) -> dict[str, int]:
    """Return ``rows``, ``columns`` and ``file_size`` of a dataset, each where it has them; nothing of parameters."""
    dataset: Any = None if ":" in name else catalog.get(name)
    if not hasattr(dataset, "ledger_summary"):
        path = Path(str(getattr(dataset, "_filepath", "")))
        if not path.is_file():
            return {}
        shape = dict(zip(("rows", "columns"), dataset.shape(), strict=True)) if isinstance(dataset, CsvFile) else {}
        return {**shape, "file_size": path.stat().st_size}
    summary = None
    with contextlib.suppress(*UNREADABLE):
        summary = dataset.ledger_summary() if dataset.exists() else None
    if summary is None:
        return {}
    columns = dataset.columns() if hasattr(dataset, "columns") else None
    ledger = Path(str(dataset._describe().get("filepath", ""))) / LEDGER_FILE
    in_ledger = ledger.stat().st_size if ledger.is_file() else 0  # of values, which are in it
    found = {"rows": summary["rows"], "columns": columns, "file_size": summary["bytes"] or in_ledger}
    return {key: value for key, value in found.items() if value is not None}


def _read(name: str) -> Any:
    file = viz_file(name)
    try:
        return None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or it was cut
        return None


def _write(name: str, value: Any) -> None:
    file = viz_file(name)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(value, indent=2, ensure_ascii=False))
