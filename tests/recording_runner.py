"""A runner that only remembers what it was given to run."""

from __future__ import annotations

from typing import Any, ClassVar

from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner


class RecordingRunner(SequentialRunner):
    """Runs nothing."""

    given: ClassVar[list[Pipeline]] = []

    def run(self, pipeline: Pipeline, *_: Any, **__: Any) -> dict[str, Any]:
        """Remember the pipeline."""
        self.given.append(pipeline)
        return {}
