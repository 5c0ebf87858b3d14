"""A line for each stage of a run as it begins: its number, of how many, and its name."""

from __future__ import annotations

import logging

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

logger = logging.getLogger(__name__)


class StagesHook:
    """Counts the nodes of a run. Kedro's own line of a node names all its datasets, up to 500 characters."""

    def __init__(self) -> None:
        self._stages = self._begun = 0

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Count the stages that there are."""
        self._stages, self._begun = len(pipeline.nodes), 0

    @hook_impl(tryfirst=True)
    def before_node_run(self, node: Node) -> None:
        """Name the stage that begins."""
        self._begun += 1
        logger.info("Stage %d of %d: %s", self._begun, self._stages, node.name)
