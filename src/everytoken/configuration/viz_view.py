"""What kedro-viz shows of an environment: rows of its datasets and nodes, and the newest run of its data folder.

kedro-viz runs no hooks, and reads ``.viz`` of the project, which all environments share. So the files of an
environment are put there when it opens the catalog of the environment, from the ledgers.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from kedro.io import CatalogProtocol
from kedro.pipeline import Node, Pipeline
from kedro.pipeline.preview_contract import TextPreview

from everytoken.configuration.viz_files import (
    UNREADABLE,
    amounts_held,
    show_events,
    without_namespace,
    write_statistics,
)
from everytoken.datasets import amounts_set_aside, rows_by_reason
from everytoken.shards import Artifact, Shards

_Stored = Shards | Artifact


def show(catalog: CatalogProtocol[Any, Any], pipelines: MutableMapping[str, Pipeline], data: str) -> None:
    """Let kedro-viz show the rows of an environment.

    Args:
        pipelines: their nodes get previews.
        data: its data folder, as ``globals.yml`` has it.
    """
    names = {name for pipeline in pipelines.values() for name in pipeline.datasets() if ":" not in name}
    write_statistics({name: held for name in sorted(names) if (held := amounts_held(catalog, name))})
    show_events(data)
    for name, pipeline in dict(pipelines).items():
        pipelines[name] = Pipeline([_with_preview(node, catalog) for node in _opened(pipeline).nodes])


def _opened(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline of one namespace without it: kedro-viz would show one box, with the products hidden in it."""
    if len({node.namespace for node in pipeline.nodes}) != 1:
        return pipeline
    return Pipeline([*map(without_namespace, pipeline.nodes)])


def _with_preview(node: Node, catalog: CatalogProtocol[Any, Any]) -> Node:
    """Return a copy that has its own ``preview``. Kedro would warn of ``preview_fn``, which is experimental."""
    shown = copy.copy(node)
    vars(shown)["preview"] = lambda: TextPreview("\n".join(node_lines(node, catalog)))
    return shown


def node_lines(node: Node, catalog: CatalogProtocol[Any, Any]) -> Iterator[str]:
    """Yield rows in and out of a node, and those that are set aside, each with the reason; from the ledgers of now."""
    yield from _datasets("in", node.inputs, catalog)
    made = {name: stored for name in node.outputs if (stored := _stored(catalog, name)) is not None}
    if (count := sum(map(_rows_read, made.values()))) and not any(_stored(catalog, name) for name in node.inputs):
        yield _line("in", count, "rows read")
    yield from _datasets("out", node.outputs, catalog)
    reasons = _by_reason(made)
    if not reasons:  # then what was decided before
        read = {name: _stored(catalog, name) for name in node.inputs}
        reasons = _by_reason({name: stored for name, stored in read.items() if isinstance(stored, Artifact)})
    yield from (_line("set aside", count, f"rows: {reason}") for reason, count in reasons)
    if made and not reasons:
        yield from (_line("set aside", count, words) for count, words in amounts_set_aside(made))


def _by_reason(stored: Mapping[str, _Stored]) -> list[tuple[str, int]]:
    return [pair for name, one in stored.items() for pair in rows_by_reason(name, one).items()]


def _rows_read(stored: _Stored) -> int:
    return 0 if isinstance(stored, Artifact) else sum(part.get("rows_in", 0) for part in stored.statistics)


def _stored(catalog: CatalogProtocol[Any, Any], name: str) -> _Stored | None:
    """Return what a dataset holds as far as it has a ledger; None: it is not made, a report, or parameters."""
    dataset: Any = None if ":" in name else catalog.get(name)
    if not hasattr(dataset, "ledger_summary"):
        return None
    with contextlib.suppress(*UNREADABLE):
        found = dataset.load() if dataset.exists() else None
        return found if isinstance(found, Shards | Artifact) else None
    return None


def _datasets(which: str, names: Iterable[str], catalog: CatalogProtocol[Any, Any]) -> Iterator[str]:
    for name in names:
        if ":" in name:  # parameters
            continue
        held = amounts_held(catalog, name)
        if "rows" in held:
            yield _line(which, held["rows"], f"rows of {name}")
        elif held or which == "out":
            yield f"{which:<9}  {'' if held else 'not made':>14}  {name}"


def _line(which: str, count: float, words: str) -> str:
    return f"{which:<9}  {count:>14,.0f}  {words}"
