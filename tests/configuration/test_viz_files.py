"""The files of kedro-viz after runs: sizes from ledgers, and nothing of an earlier run is lost by a partial one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_run import Project


def _events(project: Project) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((project.folder / ".viz/kedro_pipeline_events.json").read_text())
    return events


def _stats(project: Project) -> dict[str, dict[str, int]]:
    stats: dict[str, dict[str, int]] = json.loads((project.folder / ".viz/stats.json").read_text())
    return stats


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which two pipelines ran, and then the second alone."""
    project = Project(tmp_path_factory.mktemp("viz") / "project")
    project.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation")
    project.kedro("run", "--env", "test", "--pipelines", "annotation")
    return project


def test_rows_columns_and_bytes_are_those_of_the_ledgers(project: Project) -> None:
    stats, ledger = _stats(project), project.ledgers()["scored_documents"]
    assert stats["scored_documents"] == {
        "rows": sum(part["rows"] for part in ledger["parts"]),
        "columns": 13,
        "file_size": sum(part["bytes"] for part in ledger["parts"]),
    }
    sizes = {event["dataset"]: event.get("size") for event in _events(project) if "dataset" in event}
    off = {"score_files", "token_counts_when_made"}
    assert {name for name, size in sizes.items() if not size and not name.startswith("params:")} <= off


def test_a_partial_run_keeps_what_was_said_of_other_stages(project: Project) -> None:
    events = _events(project)
    nodes = {event["node"] for event in events if event["event"] == "after_node_run"}
    assert {"ingestion.read_documents", "annotation.score_documents"} <= nodes
    assert "upstream_documents" in _stats(project)
    of_run = [event["event"] for event in events if event["event"].endswith("pipeline_run")]
    assert of_run == ["before_pipeline_run", "after_pipeline_run"] and events[-1]["event"] == "after_pipeline_run"


def test_what_was_cut_there_ends_no_run(project: Project) -> None:
    for file in (project.folder / ".viz").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    project.kedro("run", "--env", "test", "--pipelines", "annotation")
    assert "scored_documents" in _stats(project) and Path(project.folder / ".viz").is_dir()
