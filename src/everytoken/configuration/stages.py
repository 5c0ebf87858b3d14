"""A line for each stage of a run as it begins: its number, of how many, and its name; and this line read again."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from everytoken.progress import working
from everytoken.shards import Shards

logger = logging.getLogger(__name__)

_LINE = "Stage %d of %d: %s"
_IN_LOG = re.compile(r"Stage (\d+) of (\d+): (\S+)$", re.MULTILINE)
_TIME = re.compile(r"^\d\d:\d\d:\d\d ")


@dataclass(frozen=True)
class StageProgress:
    """How far a run is: ``number`` of ``stages`` has begun. ``progress`` is the last line that its log has of it."""

    number: int
    stages: int
    name: str
    progress: str | None


def stage_in(log: str) -> StageProgress | None:
    """Return how far a run is by the text of its log; None: it has begun no stage."""
    if not (found := [*_IN_LOG.finditer(log)]):
        return None
    begun = found[-1]
    lines = log[begun.end() :].strip().splitlines()
    return StageProgress(int(begun[1]), int(begun[2]), begun[3], _TIME.sub("", lines[-1]).strip() if lines else None)


class StagesHook:
    """Counts the nodes of a run. Kedro's own line of a node names all its datasets, up to 500 characters.

    What a node reads itself is shown too; what it plans is shown by the store that makes it.
    """

    def __init__(self) -> None:
        self._stages = self._begun = 0
        self._work = ExitStack()

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Count the stages that there are."""
        self._stages, self._begun = len(pipeline.nodes), 0

    @hook_impl(tryfirst=True)
    def before_node_run(self, node: Node, inputs: dict[str, Any]) -> None:
        """Name the stage that begins."""
        self._work.close()
        self._begun += 1
        logger.info(_LINE, self._begun, self._stages, node.name)
        rows = sum(data.rows for data in inputs.values() if _is_stored(data))
        self._work.enter_context(working(node.name, rows or None, "row", reads=True))

    @hook_impl
    def after_node_run(self) -> None:
        """The node has done its part."""
        self._work.close()

    @hook_impl
    def on_node_error(self) -> None:
        """The node has failed."""
        self._work.close()


def _is_stored(data: Any) -> bool:
    return isinstance(data, Shards) and data.ledger is not None and data.holds == "rows"
