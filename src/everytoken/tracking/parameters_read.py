"""Which parameters a run reads, and a refusal of those given on the command line that it does not.

Kedro takes ``--params subsamplng.seed=7`` without a word and runs with the old seed. Names inside a typed
model are refused by the model itself (``extra="forbid"``); this module looks after the names that no node
asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.mlflow_keys import plain

_PREFIX = "params:"


def refuse_unread(
    runtime_params: Mapping[str, Any] | None, pipeline: Pipeline, read_by_every_run: Collection[str] = ()
) -> None:
    """Check that every runtime parameter lies within one that a node of ``pipeline`` reads.

    Args:
        runtime_params: of the command line, nested.
        read_by_every_run: names that are read also where no node does, as other parameters follow from them.

    Raises:
        TrackingError: naming those that do not, and all that is read.
    """
    if not runtime_params or _reads_all(pipeline):
        return
    read = sorted({*_names(pipeline), *read_by_every_run})
    unread = [path for path in _paths(runtime_params) if not any(f"{path}.".startswith(f"{name}.") for name in read)]
    if unread:
        raise TrackingError(
            f"--params sets {', '.join(unread)}, which no node of this run reads. "
            f"It reads: {', '.join(read) or 'nothing'}. Correct the name, or run the pipeline that reads it."
        )


def parameters_read(pipeline: Pipeline, catalog: DataCatalog) -> dict[str, Any]:
    """Return every parameter that a node of ``pipeline`` reads, as one plain nested dict."""
    if _reads_all(pipeline):
        return dict(plain(catalog["parameters"].load()))
    tree: dict[str, Any] = {}
    for name in _names(pipeline):  # sorted: "training" before "training.lr", which lies within it
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch.setdefault(last, plain(catalog[_PREFIX + name].load(), tuple(name.split("."))))
    return tree


def _names(pipeline: Pipeline) -> list[str]:
    return sorted(name.removeprefix(_PREFIX) for name in pipeline.inputs() if name.startswith(_PREFIX))


def _reads_all(pipeline: Pipeline) -> bool:
    return "parameters" in pipeline.inputs()


def _paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
