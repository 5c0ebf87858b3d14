"""The notebook of the model that chats runs: the recipe with fewer steps, and what its model learned."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.test_run import ROOT, Project

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]


def test_the_notebook_of_chat_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    training = project.folder / "conf/mythos_small/parameters_training.yml"
    training.write_text(training.read_text().replace("steps: 300", "steps: 30"))
    notebook = nbformat.read(ROOT / "notebooks/chat_model.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    where = {"metadata": {"path": str(project.folder)}}
    NotebookClient(notebook, timeout=600, startup_timeout=600, resources=where).execute()
    shown = "".join(str(cell.get("outputs")) for cell in notebook.cells)
    assert "Ġ u n i v e r s i t y" in shown and "of_unigram" in shown
    assert "at most 3 loops" in shown
