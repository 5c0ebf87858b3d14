"""The notebook of the model that chats runs: the recipe with fewer steps, and what its model learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_run import Project

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]


def test_the_notebook_of_chat_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    training = project.folder / "conf/mythos_small/parameters_training.yml"
    training.write_text(training.read_text().replace("steps: 300", "steps: 30"))
    shown = project.notebook("chat_model")
    assert "Ġ u n i v e r s i t y" in shown and "of_unigram" in shown
    assert "at most 3 loops" in shown
