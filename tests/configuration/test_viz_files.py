"""What kedro-viz shows after runs: rows and sizes from ledgers, of each environment its own, with all products."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.test_run import Project


def _events(project: Project) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((project.folder / ".viz/kedro_pipeline_events.json").read_text())
    return events


class Shown:
    """What kedro-viz shows of an environment."""

    def __init__(self, project: Project, env: str) -> None:
        build = project.folder / "build"
        shutil.rmtree(build, ignore_errors=True)
        self.output = project.kedro("viz", "build", "--include-previews", KEDRO_ENV=env)
        self.nodes = {file.name: json.loads(file.read_text()) for file in (build / "api/nodes").iterdir()}
        self.views = {file.name: json.loads(file.read_text()) for file in (build / "api/pipelines").iterdir()}
        self.stats: dict[str, dict[str, int]] = json.loads((project.folder / ".viz/stats.json").read_text())

    def node(self, view: str, name: str) -> dict[str, Any]:
        (found,) = (self.nodes[node["id"]] for node in self.views[view]["nodes"] if node["name"] == name)
        return dict(found)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which two pipelines ran, and then the second alone."""
    project = Project(tmp_path_factory.mktemp("viz") / "project")
    left = "ingestion.min_chars=200,ingestion.sources.wikipedia.max_text_bytes=300000"
    project.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation", "--params", left)
    project.kedro("run", "--env", "test", "--pipelines", "annotation")
    return project


@pytest.fixture(scope="module")
def shown(project: Project) -> Shown:
    return Shown(project, "test")


def test_rows_columns_and_bytes_are_those_of_the_ledgers(project: Project, shown: Shown) -> None:
    ledger = project.ledgers()["scored_documents"]
    assert shown.node("annotation", "scored_documents")["stats"] == {
        "rows": sum(part["rows"] for part in ledger["parts"]),
        "columns": 13,
        "file_size": sum(part["bytes"] for part in ledger["parts"]),
    }
    table = (project.folder / "data/test/08_reporting/score_report.csv").read_text().splitlines()
    assert shown.stats["score_report"]["rows"] == len(table) - 1
    sizes = {event["dataset"]: event.get("size") for event in _events(project) if "dataset" in event}
    off = {"score_files", "token_counts_when_made"}
    assert {name for name, size in sizes.items() if not size and not name.startswith("params:")} <= off
    assert {name for name, held in shown.stats.items() if not held["file_size"]} <= off


def test_a_node_shows_its_rows_and_why_some_are_set_aside(shown: Shown) -> None:
    read = shown.node("ingestion", "ingestion.read_documents")["preview"]["content"].splitlines()
    counts = {words.strip(): int(line.split()[0].replace(",", "")) for line, words in map(_after_the_label, read)}
    aside = [count for words, count in counts.items() if words.startswith("rows: ")]
    assert aside and counts["rows read"] == counts["rows of upstream_documents"] + sum(aside)
    taken = shown.node("__default__", "take_documents")["preview"]["content"]
    assert "rows of documents" in taken and "rows: beyond_payload_cap" in taken
    report = shown.node("ingestion", "ingestion.report_ingestion")["preview"]["content"]
    assert "ingestion_metrics" in report and "not made" not in report
    assert "not made  checkpoint" in shown.node("training", "training.train_model")["preview"]["content"]
    assert "experimental" not in shown.output


def _after_the_label(line: str) -> tuple[str, str]:
    number, _, words = line.removeprefix("set aside").removeprefix("in").removeprefix("out").strip().partition("  ")
    return (number, words) if number[:1].isdigit() else ("0", number)


def test_the_view_of_a_pipeline_has_its_products_and_no_box(project: Project, shown: Shown) -> None:
    for name in ("ingestion", "subsampling", "training"):
        view = shown.views[name]
        assert {node["type"] for node in view["nodes"]} == {"task", "data", "parameters"}
        visible = {child["id"] for child in view["modular_pipelines"]["__root__"]["children"]}
        of_view = {node["id"]: node for node in view["nodes"]}
        assert {of_view[one]["name"] for one in of_view if of_view[one]["type"] == "data"} <= {
            of_view[one]["name"] for one in visible & of_view.keys()
        }
        assert all(node["modular_pipelines"] in (None, []) for node in view["nodes"] if node["type"] == "task")
    code = shown.node("training", "training.train_model")
    assert code["code"].startswith("def train_model(")
    assert code["filepath"].endswith("everytoken/pipelines/training/nodes.py")
    assert {node["type"] for node in shown.views["__default__"]["nodes"]} >= {"modularPipeline"}


def test_a_partial_run_keeps_what_was_said_of_other_stages(project: Project) -> None:
    events = _events(project)
    nodes = {event["node"] for event in events if event["event"] == "after_node_run"}
    assert {"ingestion.read_documents", "annotation.score_documents"} <= nodes
    of_run = [event["event"] for event in events if event["event"].endswith("pipeline_run")]
    assert of_run == ["before_pipeline_run", "after_pipeline_run"] and events[-1]["event"] == "after_pipeline_run"


def test_a_node_has_its_event_in_both_views(project: Project, shown: Shown) -> None:
    ran = {event["node_id"] for event in _events(project) if event["event"] == "after_node_run"}
    for view, name in (("__default__", "score_documents"), ("annotation", "annotation.score_documents")):
        (node,) = (one["id"] for one in shown.views[view]["nodes"] if one["name"] == name)
        assert node in ran


def test_an_environment_shows_its_own_run(project: Project) -> None:
    events = _events(project)
    other = Shown(project, "mamba_small")
    assert other.stats == {} and _events(project) == [], "nothing was run in it"
    assert Shown(project, "test").stats and _events(project) == events


def test_what_was_cut_there_ends_no_run(project: Project) -> None:
    for file in (project.folder / ".viz").rglob("*.json"):
        file.write_bytes(file.read_bytes()[:40])
    project.kedro("run", "--env", "test", "--pipelines", "annotation")
    assert "scored_documents" in {event.get("dataset") for event in _events(project)}
    assert Shown(project, "test").stats
