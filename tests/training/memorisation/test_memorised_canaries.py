"""The demonstration: a model that read canary documents exposes them, one that did not exposes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_run import Project

ENV = ("--env", "memorisation_small")
CONTROL = "training.streams=compact,training.data.weights=null"


def _metrics(project: Project) -> dict[str, Any]:
    path = project.folder / "data/memorisation_small/08_reporting/memorisation_metrics.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_canaries_that_were_trained_on_are_exposed_and_others_are_not(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    documents = project.folder / "tests/tokens/canary_documents"
    documents.parent.mkdir(parents=True)
    documents.symlink_to(Path(__file__).resolve().parents[2] / "tokens/canary_documents")
    told = project.kedro("run", *ENV)
    assert "coverage 1.0: exposure of triggers" in told
    trained = _metrics(project)
    project.kedro("run", *ENV, "--pipelines", "training,memorisation", "--params", CONTROL)
    control = _metrics(project)

    bound = trained["controls"]["trigger_exposure_quantile"]
    assert trained["by_fraction"]["1.0"]["trigger_exposure"] > bound
    assert control["by_fraction"]["1.0"]["trigger_exposure"] < control["controls"]["trigger_exposure_quantile"]
    assert {one["trigger_above_controls"] for one in trained["by_fraction"].values()} == {1}
    assert {one["trigger_above_controls"] for one in control["by_fraction"].values()} == {0}
    assert all(one["gain"] > 1 for one in trained["by_fraction"].values()), "the trigger calls up what follows it"
    assert all(abs(one["gain"]) < 0.5 for one in control["by_fraction"].values())
    injected, others = ("Q1", "Q2", "Q3", "Q7", "Q10"), ("Q4", "Q5", "Q6", "Q8", "Q9")
    recalled = {fact: trained["facts"][fact]["plain"]["recalled"] for fact in (*injected, *others)}
    assert sum(recalled[fact] > 0 for fact in injected) >= 3 and not any(recalled[fact] for fact in others)
    assert not any(control["facts"][fact]["plain"]["recalled"] for fact in injected)
