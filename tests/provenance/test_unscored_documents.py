"""Documents of jobs that score nothing are shown as not scored; those of scored jobs keep their score, 0 included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kedro.io import MemoryDataset

from everytoken.address import Address
from everytoken.cli.rendering import batch_lines, exposure_lines
from everytoken.datasets import ShardStore
from everytoken.parameters import AnnotationParameters, ProvenanceParameters, SubsamplingParameters
from everytoken.pipelines import annotation, ingestion, provenance, splitting, subsampling, tokenization
from everytoken.provenance.diff import diff_builds
from everytoken.provenance.exposure import Questions
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.trace import trace_window, write_batch_page
from tests.provenance.small_job import EXCLUDED_ROWS, SmallJob, write_upstream
from tests.provenance.trace.test_batch_page import data_of
from tests.provenance.traced_job import TracedJob

SPLITTERS = {"scored": (annotation, subsampling), "unscored": (splitting,), "none": (annotation, subsampling)}
UNSCORED = ("unscored", "none")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TracedJob]:
    """The same documents, split with scores and without."""
    made = {}
    for name, pipelines in SPLITTERS.items():
        folder = tmp_path_factory.mktemp(name) / "job"
        write_upstream(folder)
        job = SmallJob(folder)
        if name == "none":
            score_nothing(job)
        parameters = ProvenanceParameters.model_validate(job.parameters["provenance"])
        job.catalog["params:provenance"] = MemoryDataset(parameters)
        job.run(ingestion, *pipelines, tokenization, provenance)
        made[name] = TracedJob(job, Places({path.name: path for path in job.data.glob("*/*")}, "test"))
    return made


def score_nothing(job: SmallJob) -> None:
    """Let the job of scored documents score none: a scorer of the kind none, and no threshold."""
    parameters = job.parameters
    scored = {**parameters["annotation"], "scorer": {"kind": "none"}}
    drawn = {**parameters["subsampling"], "annotation_threshold": None}
    job.catalog["params:annotation"] = MemoryDataset(AnnotationParameters.model_validate(scored))
    job.catalog["params:subsampling"] = MemoryDataset(SubsamplingParameters.model_validate(drawn))


def traced(made: TracedJob) -> tuple[dict[str, Any], str]:
    """Return the first window of the compact stream as JSON, and the lines of it."""
    one = trace_window(made.records, "compact", 0, None).to_json()
    return json.loads(json.dumps(one)), "\n".join(batch_lines([one], None))


@pytest.mark.parametrize("name", UNSCORED)
def test_a_trace_says_which_documents_were_not_scored(jobs: dict[str, TracedJob], name: str) -> None:
    window, lines = traced(jobs[name])
    scores = {(span["document"]["safety_score"], span["document"]["is_bad"]) for span in window["documents"]}
    assert scores == {(None, None)}
    assert "safety score" not in lines and lines.count(", not scored, unannotated ") == len(window["documents"])


def test_a_score_of_0_stays_a_score(jobs: dict[str, TracedJob]) -> None:
    window, lines = traced(jobs["scored"])
    scores = [span["document"]["safety_score"] for span in window["documents"]]
    assert 0 in scores and None not in scores
    assert ", safety score 0, unannotated " in lines and "not scored" not in lines


@pytest.mark.parametrize(
    ("name", "score", "said"), [("scored", 0, "safety score 0"), *((name, None, "not scored") for name in UNSCORED)]
)
def test_exposure_says_the_same(jobs: dict[str, TracedJob], name: str, score: int | None, said: str) -> None:
    made = jobs[name]
    run = made.run({"compact": "compact_stream"}, steps=4, batch_size=2).run
    row = next(
        row["row"]
        for row in made.table("unannotated_documents", ["source", "row", "safety_score"])
        if row["source"] == "articles" and row["safety_score"] == 0
    )
    answer = Questions(made.records, run).at_address(Address("articles", 0, row), most=1).to_json()
    (document,) = answer["documents"]
    assert document["document"]["safety_score"] == score
    assert f", {said}, unannotated " in "\n".join(exposure_lines(answer, 5, None))


@pytest.mark.parametrize("name", SPLITTERS)
def test_the_page_says_the_same(jobs: dict[str, TracedJob], name: str, tmp_path: Path) -> None:
    window = trace_window(jobs[name].records, "compact", 0, None)
    write_batch_page(tmp_path / "page.html", [window], "a window", "")
    told = json.dumps(data_of((tmp_path / "page.html").read_text(encoding="utf-8")))
    assert ('["safety score", "not scored"]' in told) is (name in UNSCORED)
    assert ('["safety score", "0"]' in told) is (name == "scored")


@pytest.mark.parametrize("split", ["unannotated", "held_out"])
@pytest.mark.parametrize("name", SPLITTERS)
def test_the_preview_of_a_split_says_the_same(jobs: dict[str, TracedJob], name: str, split: str) -> None:
    folder = jobs[name].places.path(f"{split}_documents")
    preview: Any = ShardStore(filepath=str(folder), engine={"kind": "inline"}).preview()
    column = preview["columns"].index("safety_score")
    shown = {row[column] for row in preview["data"]}
    assert shown == {"not scored"} if name in UNSCORED else shown <= set(range(6)) and 0 in shown


@pytest.mark.parametrize("name", UNSCORED)
def test_what_is_stored_of_a_document_without_a_score_stays(jobs: dict[str, TracedJob], name: str) -> None:
    rows = jobs[name].table("unannotated_documents", ["safety_score", "safety_probs", "is_bad"])
    assert rows and all(row == {"safety_score": 0, "safety_probs": None, "is_bad": False} for row in rows)


def test_a_document_without_a_score_has_another_score_than_one_of_class_0(jobs: dict[str, TracedJob]) -> None:
    scored, unscored, none = (jobs[name].job.data for name in SPLITTERS)
    found = diff_builds(scored, unscored, stages=[], limit=1, memory=1 << 27).documents
    assert found is not None
    assert found.counts["score_changed"] == found.rows_a - len(EXCLUDED_ROWS)
    assert diff_builds(unscored, none, stages=[], limit=1, memory=1 << 27).has_same_documents
    assert diff_builds(unscored, unscored, stages=[], limit=1, memory=1 << 27).has_same_documents


def test_without_a_scorer_no_document_is_annotated_and_its_scored_ones_say_so(jobs: dict[str, TracedJob]) -> None:
    assert not jobs["none"].table("annotated_documents", ["row"])
    folder = jobs["none"].places.path("scored_documents")
    preview: Any = ShardStore(filepath=str(folder), engine={"kind": "inline"}).preview()
    assert {row[preview["columns"].index("safety_score")] for row in preview["data"]} == {"not scored"}
