"""The command submit-test: a run on its first parts, by worker processes and by jobs of submitit on this machine."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from everytoken.shards import read_any_ledger
from tests.test_run import Project

JOBS = (
    "{kind: slurm, cluster: local, folder: data/jobs, workers: 2, minutes: 5, parts_per_job: 2, ask_every: 0.3, "
    "patience: 0.5}"
)
TEST = ("--env", "test")
PARAMS = "subsampling.seed=7"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("trial") / "project")
    project.use_engine("{kind: processes, workers: 2}")
    return project


def parts(project: Project, dataset: str, data: str = "data/test") -> list[str]:
    ledger = read_any_ledger(project.folder / data / dataset)
    return [part["content_digest"] for part in ledger["parts"]]


def told(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.everytoken("status", *TEST, "--test", "--json"))
    return found


@pytest.mark.slow
def test_a_trial_reads_the_first_part_in_a_folder_of_its_own(project: Project) -> None:
    with pytest.raises(AssertionError, match=r"nothing was submitted in .*everytoken submit-test --env test"):
        project.everytoken("status", *TEST, "--test")
    shown = project.everytoken("submit-test", *TEST, "--params", PARAMS, "--wait")
    assert re.search(r"state +done\n", shown)
    assert "tried on     1 of 4 parts, in data/test/submit_test" in shown
    assert re.search(r"took +\d+\.\d s .*ingestion\.read_documents", shown)
    assert "did not run  provenance, training, evaluation: a trial ends with the tokens" in shown
    assert [path.name for path in (project.folder / "data/test").iterdir()] == ["submit_test"]
    made = project.folder / "data/test/submit_test/05_model_input"
    assert {path.name for path in made.iterdir()} >= {"tokenizer", "compact_stream", "annotated_stream"}

    project.kedro("run", *TEST, "--to-nodes", "ingestion.read_documents")
    whole, tried = (parts(project, f"{place}02_intermediate/upstream_documents") for place in ("", "submit_test/"))
    assert tried == whole[:1] and len(whole) == 4, "the trial reads the first part of the run"

    (made / "old").mkdir()
    project.everytoken("submit-test", *TEST, "--pipelines", "packing", "--parts", "3", "--wait")
    assert not (made / "old").exists() and not (made / "compact_stream").exists(), "it begins again"
    trial = told(project)["trial"]
    assert (trial["parts"], trial["parts_of_the_run"]) == (3, 4)
    assert trial["left_out"][0] == "packing.pack_raw_shards"
    assert {"packing.encode_whole_unannotated", "ingestion.read_documents"} <= {one["stage"] for one in trial["took"]}


def test_what_cannot_be_tried_is_refused_by_name(project: Project) -> None:
    for asked in ("training", "pretraining"):
        with pytest.raises(AssertionError, match=f"nothing of {asked} can be tried on a few parts"):
            project.everytoken("submit-test", *TEST, "--pipelines", asked)
    with pytest.raises(AssertionError, match=r"nothing was begun:\n +- training\.streams names raw_shards"):
        project.everytoken("submit-test", *TEST, "--params", "training.streams=compact+raw_shards")


def test_a_trial_that_fails_says_why_and_removes_nothing_but_trials(project: Project) -> None:
    shutil.rmtree(project.folder / "data/test/submit_test", ignore_errors=True)
    (own := project.folder / "data/test/submit_test/own").mkdir(parents=True)
    with pytest.raises(AssertionError, match=r"submit_test holds data that is of no trial .*Move it"):
        project.everytoken("submit-test", *TEST)
    own.rmdir()
    with pytest.raises(
        AssertionError, match=r"(?s)ended early: exit code 1.*Error: .*did not run  provenance, training"
    ):
        project.everytoken("submit-test", *TEST, "--params", "ingestion.min_chars=10000000", "--wait")


@pytest.mark.slow
def test_jobs_of_a_cluster_try_the_parts_of_one_job(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("submitit")
    project = Project(tmp_path_factory.mktemp("trial_in_jobs") / "project")
    project.use_engine(JOBS)
    shown = project.everytoken("submit-test", *TEST, "--wait")
    assert "submission 1 queued: everytoken submit-test --env test" in shown
    assert "tried on     2 of 4 parts" in shown and re.search(r"state +done\n", shown)
    assert [path.name for path in (project.folder / "data/test").iterdir()] == ["submit_test"]
    assert len(parts(project, "05_model_input/unannotated_tokens", "data/test/submit_test")) == 2
