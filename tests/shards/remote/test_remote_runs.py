"""Runs of Kedro whose datasets of parts are in a bucket, and what is asked about them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.s3_server import KEY, SECRET, S3Server
from tests.test_run import Project, made
from tests.warm_kedro import run_everytoken

STAGES = "ingestion,annotation,subsampling,tokenization"
ENTRY = {
    "type": "everytoken.datasets.ShardStore",
    "engine": "${globals:engine}",
    "cache": {"path": "data/cache", "bytes": 100_000_000},
    "credentials": "storage",
}
ENGINES = {
    "inline": "{kind: inline}",
    "2 processes": "{kind: processes, workers: 2}",
    "slurm": "{kind: slurm, cluster: local, folder: data/jobs, workers: 2, minutes: 5, ask_every: 0.2}",
    "ray": "{kind: ray, address: local, workers: 2}",
}


def in_bucket(project: Project, address: str, engine: str) -> None:
    """Let the environment test have its parts in the bucket, and its credentials in a file."""
    names = ("documents", "scored_documents", "{drawn}notated_documents", "{drawn}notated_tokens", "exclusions")
    catalog = {name: {**ENTRY, "filepath": f"s3://corpora/{name}"} for name in names}
    login = {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"}}
    (project.folder / "conf/test/catalog.yml").write_text(yaml.safe_dump(catalog))
    (project.folder / "conf/test/credentials.yml").write_text(yaml.safe_dump({"storage": login}))
    project.use_engine(engine)


def digests(project: Project) -> dict[str, str]:
    run = project.runs()[0]
    found = {key: value for key, value in run.data.params.items() if key.startswith("digest.")}
    assert {
        f"digest.{name}" for name in ("documents", "scored_documents", "annotated_tokens", "compact_stream")
    } <= set(found)
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose parts are on this machine."""
    project = Project(tmp_path_factory.mktemp("local") / "project")
    project.kedro("run", "--env", "test", "--pipelines", STAGES)
    yield project


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_parts_in_a_bucket_have_the_digests_of_local_ones(
    bucket: Any, server: S3Server, local: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    project = Project(tmp_path / "project")
    in_bucket(project, server.address, ENGINES[engine])
    said = project.kedro("run", "--env", "test", "--pipelines", STAGES)
    assert SECRET not in said
    assert not (project.folder / "s3:").exists()
    assert digests(project) == digests(local)
    shutil.rmtree(project.folder / "data/cache")
    assert made(project.kedro("run", "--env", "test", "--pipelines", STAGES)) == [], (
        "what is there is known by its ledger"
    )


@pytest.mark.slow
def test_questions_about_parts_in_a_bucket_have_the_answers_of_local_ones(
    bucket: Any, server: S3Server, local: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    project = Project(tmp_path / "project")
    in_bucket(project, server.address, ENGINES["inline"])
    for one in (local, project):
        one.kedro("run", "--env", "test", "--pipelines", f"{STAGES},provenance,training")
    for question in (
        ("trace", "--stream", "compact", "--window", "3", "--text", "--json"),
        ("exposure", "--id", "Jinn", "--everywhere", "--json"),
        ("exposure", "--text-contains", "the", "--limit", "3", "--json"),
    ):
        asked = [one.everytoken(*question, "--env", "test").replace(str(one.folder), "") for one in (project, local)]
        assert asked[0] == asked[1]
    assert "annotated_documents" in project.everytoken("verify", "--env", "test")


@pytest.mark.slow
def test_a_job_in_a_bucket_is_looked_at_before_it_begins_and_never_tried_in_it(
    bucket: Any, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    project = Project(tmp_path / "project")
    in_bucket(project, server.address, ENGINES["inline"])

    def told(*arguments: str) -> str:
        done = run_everytoken(arguments, folder=project.folder, environment=project.environment({}), timeout=300)
        assert SECRET not in done.stdout + done.stderr
        return done.stdout + done.stderr

    said = told("preflight", "--env", "test")
    assert "ok             documents  storage: s3://corpora/documents can be read and written, and is not made" in said
    assert "data/cache  locks" in said and bucket.find("corpora") == []
    assert "would be replaced: a trial or a sweep has" in told("submit-test", "--env", "test", "--wait")
    catalog = project.folder / "conf/test/catalog.yml"
    catalog.write_text(catalog.read_text().replace("corpora/documents", "nowhere/documents"))
    said = told("preflight", "--env", "test")
    assert "not ok         documents  storage: s3://nowhere/documents: there is no such bucket" in said
