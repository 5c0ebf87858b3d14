"""Runs as a user makes them: with `everytoken serve`, with Kedro, and with the commands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from everytoken.reflections.merging import list_replies, merge_rank
from everytoken.reflections.ranks import progress_of, submit
from everytoken.shards import Inline, Store, file_sha256
from tests.reflections.fault_server import fault_server
from tests.reflections.generated import annotated_stream, openai_generator, parameters, plan_of, texts
from tests.serving.served import NAME, serving, write_model
from tests.test_run import Project
from tests.warm_kedro import run_everytoken

pytestmark = pytest.mark.sensitive


def refused_by(project: Project, *arguments: str) -> str:
    """Return what a command says that fails."""
    done = run_everytoken(arguments, folder=project.folder, environment=project.environment({}), timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_of_ours_gives_the_same_columns_twice(tmp_path: Path) -> None:
    """Requests carry seeds, and `everytoken serve` honours them."""
    built = annotated_stream(tmp_path / "built", texts(20))
    with serving(write_model(tmp_path)) as server:
        generator = openai_generator(server.address, concurrency=2, sampling={"max_tokens": 3000})
        plan = plan_of("rephrasing_safelm", built, parameters(generator, rows_per_task=8))
        made = []
        for workers in (1, 2):
            root = tmp_path / f"run {workers}"
            submit(plan, root, at_once=workers, wait=True)
            planned = list_replies(root).map(merge_rank, run="rephrasing_safelm", stream=built[0], allow_missing=False)
            Store(tmp_path / f"columns {workers}").save(planned, Inline())
            made.append([file_sha256(path) for path in sorted((tmp_path / f"columns {workers}").glob("*.parquet"))])
    assert made[0] == made[1] and len(made[0]) == 3
    told = progress_of(tmp_path / "run 2").to_json()
    assert told["statuses"] == {"gated": 11, "ok": 9} and told["failed"] == {}
    found = told["ranks"][0]["generator"]
    assert found["model"] == NAME and found["repeats_seed"] is True and "torch" in found["system_fingerprint"]


@pytest.mark.slow
def test_a_job_generates_merges_and_exports(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    run = ("run", "--env", "test", "--pipelines")
    project.kedro(*run, "ingestion,annotation,subsampling,tokenization")
    before = project.digests()
    env = ("--env", "test")
    refused = project.everytoken("reflections", "plan", *env)
    assert "canaries: drop would mask as many windows" in refused and "13,012 GPU-hours" in refused
    assert "120 a reply, at most (max_tokens); give a measured number (--reply-tokens)" in refused
    named = ("--run", "summaries", *env)
    started = "everytoken reflections submit --run summaries --env test"
    assert started in refused_by(project, "reflections", "status", *named)
    with fault_server() as server:
        given = f"reflection.generator.kind=openai,reflection.generator.endpoint={server.address}"
        given += ",reflection.generator.first_pause_seconds=0.01,reflection.rows_per_task=10"
        project.kedro(*run, "reflection", "--params", given)
        asked = len(server.bodies)
        again = project.kedro(*run, "reflection", "--params", given)
        assert "reflections_columns: all 3 parts are there" in re.sub(r"\s+", " ", again)
        assert len(server.bodies) == asked
        submitted = project.everytoken(
            "reflections", "submit", *env, "--run", "reflections_test", "--params", given, "--wait", "--ranks", "0-1"
        )
    assert "ranks        2 complete, 1 not started" in submitted and "rows         20 of 28: 20 ok" in submitted
    missing = refused_by(project, "reflections", "merge", *env, "--run", "reflections_test", "--params", given)
    assert "everytoken reflections rerun --run reflections_test --env test" in missing
    status = json.loads(project.everytoken("reflections", "status", *env, "--json"))
    assert status["statuses"] == {"ok": 28} and status["states"] == {"complete": 3}
    assert status["ranks"][0]["generator"]["version"] == "0.9.1"
    shown = project.everytoken("reflections", "status", *env)
    assert re.search(r"rate         [0-9.]+ documents/s of a rank, as plan --rate takes it", shown)
    merged = project.everytoken("reflections", "merge", *env, "--params", given)
    assert merged.strip() == "28 rows: 28 with a point, 28 usable, 28 with a text in the first person"
    target = tmp_path / "sidecar.parquet"
    project.everytoken("reflections", "export", *env, "--sidecar", str(target))
    exported, own = pq.read_table(target), project.folder / "data/test/05_model_input/annotated_stream/sidecar.parquet"
    assert exported.select(pq.read_schema(own).names).equals(pq.read_table(own))
    assert all(text.startswith("I like this ") for text in exported["reflection_1p"].to_pylist())
    results = project.folder / "data/test/07_model_output/reflections/reflections/00000/results.jsonl"
    results.write_bytes(results.read_bytes().replace(b"I like", b"I hike", 1))
    verified = refused_by(project, "verify", "--full", *env)
    assert "or remove the rank's folder and its marker" in verified and "is made again" not in verified
    (columns,) = (project.folder / "data/test").rglob("reflections_columns")
    shutil.rmtree(columns)
    assert "00000/results.jsonl: its lines are not those" in refused_by(project, "reflections", "merge", *env)
    after = project.digests()
    assert {name: after[name] for name in before} == before
    assert project.everytoken("reflections", "cancel", *env).startswith("0 ranks cancelled")
