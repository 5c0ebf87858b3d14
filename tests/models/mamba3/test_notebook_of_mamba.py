"""The notebook of Mamba-3 runs: the recipe with fewer steps, and what the state of its model does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_run import Project

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]


def test_the_notebook_of_mamba_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    training = project.folder / "conf/mamba_small/parameters_training.yml"
    training.write_text(training.read_text().replace("steps: 400", "steps: 40"))
    shown = project.notebook("mamba")
    assert "parity is right at all 500 of 500 bits" in shown
    assert "of_unigram" in shown and "256 tokens read" in shown
