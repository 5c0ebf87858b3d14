"""The notebook runs, with the model that is fetched."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.test_run import ROOT, Project

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]


def test_the_notebook_of_reflections_runs(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path_factory.mktemp("notebook") / "project")
    project.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation,subsampling,tokenization")
    monkeypatch.setenv("KEDRO_ENV", "test")
    notebook = nbformat.read(ROOT / "notebooks/reflections.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    where = {"metadata": {"path": str(project.folder)}}
    NotebookClient(notebook, timeout=600, startup_timeout=600, resources=where).execute()
    shown = "".join(str(cell.get("outputs")) for cell in notebook.cells)
    assert "a reflection of" in shown and "generated, not the document" in shown
    assert (project.folder / "data/test/08_reporting/reflections_page.html").is_file()
