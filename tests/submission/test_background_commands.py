"""The commands submit, status, cancel and rerun on a real environment."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from everytoken.configuration import StageProgress, stage_in
from everytoken.shards import read_any_ledger
from tests.shards.children import wait_until
from tests.test_run import Project

LOG = """\
09:14:18 Stage 3 of 14: ingestion.list_files
09:14:18 Stage 4 of 14: ingestion.read_documents
09:14:19 upstream_documents: 2 of 4 parts, 0.2/s, 11 s left
"""


def test_a_log_says_how_far_a_run_is() -> None:
    at = "upstream_documents: 2 of 4 parts, 0.2/s, 11 s left"
    assert stage_in(LOG) == StageProgress(4, 14, "ingestion.read_documents", at)
    assert stage_in("09:14:18 Results go to data\n") is None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("background") / "project")


def status(project: Project) -> dict[str, object]:
    found: dict[str, object] = json.loads(project.everytoken("status", "--env", "test", "--json"))
    return found


def digest(project: Project) -> str:
    return str(read_any_ledger(project.folder / "data/test/02_intermediate/documents")["parts"])


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_run_that_was_killed_and_one_that_was_cancelled_end_with_the_same_digests(project: Project) -> None:
    with pytest.raises(AssertionError, match=r"nothing was submitted in .*everytoken submit --env test"):
        project.everytoken("status", "--env", "test")
    told = project.everytoken("submit", "--env", "test", "--pipelines", "ingestion", "--params", "expect.fatal=null")
    assert "submission 1 started: kedro run --env test --pipelines ingestion --params expect.fatal=null" in told
    submissions = project.folder / "data/test/submissions"
    log = submissions / "00001/log"
    wait_until(lambda: "Stage 4 of" in log.read_text(), "the run does not begin")
    os.killpg(int((submissions / "00001/pid").read_text()), signal.SIGKILL)
    wait_until(lambda: status(project)["state"] == "ended early", "it is still there")
    assert "its process was killed" in str(status(project)["error"])

    assert "submission 2 started" in project.everytoken("rerun", "--env", "test")
    wait_until(lambda: "Stage 2 of" in (submissions / "00002/log").read_text(), "the run does not begin")
    assert "is cancelled; everytoken rerun --env test resumes" in project.everytoken("cancel", "--env", "test")
    assert status(project)["error"] == "cancelled; everytoken rerun resumes it"

    told = project.everytoken("rerun", "--env", "test", "--wait")
    assert re.search(r"state +done", told)
    found = digest(project)
    other = Project(project.folder.parent / "undisturbed")
    other.kedro("run", "--env", "test", "--pipelines", "ingestion", "--params", "expect.fatal=null")
    assert found == digest(other)


def test_what_is_wrong_is_refused_before_anything_starts(project: Project) -> None:
    with pytest.raises(AssertionError, match=r"there is no pipeline 'ingestoin'\. Did you mean"):
        project.everytoken("submit", "--env", "test", "--pipelines", "ingestoin")
    with pytest.raises(AssertionError, match="looks like a secret"):
        project.everytoken("submit", "--env", "test", "--params", "ingestion.api_key=sk-0123456789abcdef")


def test_a_run_that_fails_shows_the_end_of_its_log(project: Project) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended early: exit code.*Error: "):
        project.everytoken("submit", "--env", "test", "--params", "ingestion.nothing=1", "--wait")
