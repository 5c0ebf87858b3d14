"""The notebook runs, with the model that is fetched."""

from __future__ import annotations

import pytest

from tests.test_run import Project

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]


def test_the_notebook_of_reflections_runs(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path_factory.mktemp("notebook") / "project")
    project.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation,subsampling,tokenization")
    monkeypatch.setenv("KEDRO_ENV", "test")
    shown = project.notebook("reflections")
    assert "a reflection of" in shown and "generated, not the document" in shown
    assert (project.folder / "data/test/08_reporting/reflections_page.html").is_file()
