"""A document that is taken down loses its reflection: in result files, in the columns, and in the stream."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner

from everytoken import settings
from everytoken.address import Address
from everytoken.cli import cli
from everytoken.cli.project import session_of
from everytoken.configuration import ConfigurationHook
from everytoken.pipelines import provenance, reflection, subsampling, tokenization
from everytoken.provenance.lookup import DocumentRecords
from everytoken.provenance.takedown import (
    Before,
    compare_after,
    document_index,
    follow_take_down,
    forget_reflections,
    note_before,
    reflected_faults,
    runs_to_merge_again,
    stream_indexes,
)
from everytoken.provenance.takedown.exclusion_request import (
    ExcludedDocument,
    find_documents,
    list_in_force,
    read_wanted,
)
from everytoken.reflections import find_generation_run
from everytoken.reflections.ranks import RUN_CONFIG, forget_rows, ranks_of, read_content, read_run_config
from everytoken.reflections.ranks.annotated_rows import sidecar_facts
from everytoken.reflections.ranks.contents import marker_of
from everytoken.reflections.ranks.requests_of_rows import line_without_reply
from everytoken.shards import canonical_json, file_sha256
from tests.provenance.reflected_job import CHANGES, MODELS, RUN, make, places_of, rows_of
from tests.provenance.small_job import ROOT, SmallJob
from tests.provenance.takedown.test_exclude_command import Project


def write_run(job: SmallJob | Project, rows_per_task: int) -> Path:
    """The run of the rows of `reflected_job`, as ranks write it: lines in another order than rows, one failure."""
    root = job.data / "07_model_output/reflections" / RUN
    root.mkdir(parents=True)
    sidecar = job.data / "05_model_input/annotated_stream/sidecar.parquet"
    rows = rows_of(job)
    locked: dict[str, Any] = {"run_name": RUN, "rows": [0, len(rows)], "rows_per_task": rows_per_task, "model": "m"}
    locked["sidecar"] = {"sha256": file_sha256(sidecar), **sidecar_facts(sidecar)}
    (root / RUN_CONFIG).write_text(json.dumps(locked))
    run, _ = find_generation_run(RUN)
    for rank in ranks_of(root):
        rank.path.mkdir()
        lines = []
        for row in reversed(rows[rank.first : rank.end]):
            line = line_without_reply(run, row["row"], row["doc_id"], row["status"]) | {"reply": f"of {row['row']}"}
            told = {name: row[name] for name in run.schema().names}
            lines.append({**line, **told, "status": "ok" if row["status"] == "ok" else "empty"})
        rank.results.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
        rank.failures.write_text(json.dumps({"global_row_idx": rank.first, "class": "parse", "reply": "secret"}) + "\n")
        rank.complete(marker_of(rank, read_content(rank)))
    return root


@pytest.fixture
def job(tmp_path: Path) -> SmallJob:
    job = make(tmp_path / "job", trained=False)
    write_run(job, 20)
    _merge_and_splice(job)
    return job


def _merge_and_splice(job: SmallJob) -> None:
    nodes = reflection.create_pipeline().from_inputs(f"{RUN}_replies")
    SequentialRunner().run(Pipeline((nodes - nodes.only_nodes_with_tags("report")).nodes), job.catalog)


def _chosen(job: SmallJob | Project) -> tuple[int, dict[str, Any]]:
    """A window with a reflection, and its sidecar row."""
    sidecar = pq.read_table(job.data / "05_model_input/annotated_stream/sidecar.parquet").to_pylist()
    sizes = np.load(job.data / "05_model_input/reflected_stream/reflection_lengths.npy")
    row = int(np.flatnonzero(sizes)[3])
    return row, sidecar[row]


def _exclude(job: SmallJob, told: dict[str, Any], tmp_path: Path) -> tuple[SmallJob, Before]:
    """What `everytoken exclude` does before and while it rebuilds the streams of documents."""
    places = places_of(job)
    address = Address(told["source"], told["shard_index"], told["row"])
    (tmp_path / "addresses").write_text(f"{address}\n")
    indexes = stream_indexes(places, tmp_path)
    (tmp_path / "scratch").mkdir()
    index, records = document_index(places, tmp_path / "scratch"), DocumentRecords(places)
    wanted = read_wanted(None, tmp_path / "addresses", None)
    in_force = list_in_force(places, None, tmp_path / "lists")
    documents: tuple[ExcludedDocument, ...] = find_documents(
        wanted, index, records, in_force, "asked for", False
    ).documents
    before = note_before(tmp_path / "before", places, documents, indexes, [], "0" * 64)
    listed = job.folder / "upstream/more.jsonl"
    line = {**address._asdict(), "reason": "asked for"}
    listed.write_text((job.folder / "upstream/excluded.jsonl").read_text() + canonical_json(line) + "\n")
    exclude = {"path": str(listed), "sha256": file_sha256(listed)}
    again = SmallJob(job.folder, changes={**CHANGES, "subsampling.exclude": exclude})
    for name in MODELS:
        again.catalog[f"params:{name}"] = job.catalog[f"params:{name}"]
    return again, before


def test_it_leaves_result_files_columns_and_the_stream(job: SmallJob, tmp_path: Path) -> None:
    row, told = _chosen(job)
    root = job.data / "07_model_output/reflections" / RUN
    stream = job.data / "05_model_input/reflected_stream"
    plain = np.fromfile(stream / "reflected.bin", np.uint16).reshape(-1, 65)
    again, before = _exclude(job, told, tmp_path)
    (forgotten,) = forget_reflections(places_of(job), before)
    assert (forgotten.run, forgotten.rows, forgotten.ended) == (RUN, 1, ())
    again.run(subsampling, tokenization, provenance)
    places = places_of(job)  # whose catalog has looked at all of them
    follow_take_down(places, before)
    assert runs_to_merge_again(places) == {f"{RUN}_replies": "reflection"}
    assert list(reflected_faults(places, before)), "the stream still has it"
    _merge_and_splice(again)
    places = places_of(job)  # whose catalog has looked at all of them
    report = compare_after(before, places, reflected_faults(places, before))
    assert report["faults"] == []
    spliced = np.fromfile(stream / "reflected.bin", np.uint16).reshape(-1, 65)
    assert np.flatnonzero((spliced != plain).any(axis=1)).tolist() == [row]
    assert len(set(spliced[row].tolist())) == 1
    (columns,) = [
        one for part in again.catalog.load(f"{RUN}_columns") for one in part.table().to_pylist() if one["row"] == row
    ]
    assert columns["status"] == "excluded" and columns["reflection_1p"] == "" and columns["doc_id"] is None
    text = "".join(path.read_text() for path in root.rglob("*.jsonl"))
    assert f'"of {row}"' not in text and f'"of {row + 1}"' in text
    assert all(rank.completion() is not None for rank in ranks_of(root))
    assert read_run_config(root)["sidecar"]["sha256"] == file_sha256(
        again.data / "05_model_input/annotated_stream/sidecar.parquet"
    )


def test_it_leaves_the_replies_of_versions_of_a_prompt(job: SmallJob, tmp_path: Path) -> None:
    row, told = _chosen(job)
    folder = job.data / "07_model_output/prompt_development/reflections/generations/eval/model__reflection_v1"
    folder.mkdir(parents=True)
    (folder / "locked.json").write_text("{}")
    lines = [json.dumps({"id": str(number), "reply": f"of {number}"}) + "\n" for number in (row, row + 1)]
    (folder / "replies.jsonl").write_text("".join(lines))
    _, before = _exclude(job, told, tmp_path)
    _, tried = forget_reflections(places_of(job), before)
    assert (tried.run, tried.rows) == ("reflections (versions of its prompt)", 1)
    assert (folder / "replies.jsonl").read_text() == lines[1]


def test_forgetting_twice_changes_nothing_and_a_document_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    job = make(tmp_path / "job", trained=False)
    root = write_run(job, 20)
    rank = ranks_of(root)[0]
    assert forget_rows(root, {3, rank.first}).rows == 2
    assert "secret" not in rank.failures.read_text(), "what failed is about the document, too"
    before = rank.results.read_bytes()
    assert forget_rows(root, {3, rank.first}).rows == 0 and rank.results.read_bytes() == before
    content = read_content(rank)
    assert content.statuses["excluded"] == 2 and content.results == rank.rows
    assert forget_rows(root, {3}, come_back=True).rows == 1
    assert rank.completion() is None and read_content(rank).results == rank.rows - 1


def test_a_rank_that_is_being_made_is_ended_first(tmp_path: Path) -> None:
    job = make(tmp_path / "job", trained=False)
    root = write_run(job, 20)
    rank = ranks_of(root)[0]
    rank.marker.unlink()
    holds = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print(1, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", holds, str(rank.path)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    rank.pid.write_text(f"{process.pid}\n")
    try:
        found = forget_rows(root, {4})
        assert found.ended == (0,) and found.rows == 1
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
        process.wait()
    assert '"of 4"' not in rank.results.read_text() and rank.completion() is None


@pytest.mark.slow
def test_the_command_takes_reflections_down_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.INFO)
    monkeypatch.setattr(settings, "HOOKS", (ConfigurationHook(),))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    project = Project(tmp_path / "project")
    root = write_run(project, 20)
    with session_of(None, {}) as session:
        session.run(pipeline_names=["reflection"], from_inputs=[f"{RUN}_replies"], runner=SequentialRunner())
    before = np.fromfile(project.data / "05_model_input/reflected_stream/reflected.bin", np.uint16).reshape(-1, 65)
    row, told = _chosen(project)
    address = Address(told["source"], told["shard_index"], told["row"])
    page = project.data / "08_reporting/reflections_page.html"
    counted = re.compile(r"<td>with a reflection</td><td>(\d+)</td>")
    (shown,) = counted.findall(page.read_text())
    result = project.exclude([str(address)], file="addresses")
    assert result.exit_code == 0, result.output
    assert counted.findall(page.read_text()) == [str(int(shown) - 1)]
    assert f"<h3>window {row}:" not in page.read_text()
    assert f"generation run {RUN}: what was generated about 1 rows is removed" in result.output
    after = np.fromfile(project.data / "05_model_input/reflected_stream/reflected.bin", np.uint16).reshape(-1, 65)
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [row] and len(set(after[row].tolist())) == 1
    assert f'"of {row}"' not in "".join(path.read_text() for path in root.rglob("*.jsonl"))
    result = CliRunner().invoke(cli, ["exclude", "--revoke-all"])
    assert result.exit_code == 0, result.output
    assert "To ask about them: kedro run --pipelines reflection" in result.output
    assert [read_content(rank).results - rank.rows for rank in ranks_of(root)].count(-1) == 1
    bootstrap_project(ROOT)
    logging.disable(logging.NOTSET)
