"""A release names reflected streams; a replay rebuilds them from its reflections, or says which it does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from kedro.io import MemoryDataset
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner

from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import ReflectionParameters, ReleaseParameters, ReplayParameters
from everytoken.pipelines import release
from everytoken.pipelines.published_reflections.nodes import match_reflections, take_columns
from everytoken.pipelines.reflection.splicing import splicing_pipeline
from everytoken.pipelines.reflection.splicing_nodes import splice_of
from everytoken.pipelines.verification.nodes import compare_with_release, compared_kinds, require_equal_streams
from everytoken.provenance.releases import open_release, why_not_rebuilt
from everytoken.provenance.replay.parameters import rebuilding_pipelines, with_released_parameters
from everytoken.provenance.verification import release_checks
from everytoken.reflections import PUBLISHED_RUN, find_generation_run
from tests.provenance.reflected_job import RUN, columns_of, make, rows_of
from tests.provenance.replay.test_replay import Replay, replay
from tests.provenance.small_job import SmallJob, documents


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    return make(tmp_path_factory.mktemp("released") / "job", trained=False)


def released(job: SmallJob, texts: str, quotes: str) -> Path:
    """Release with one licence for all sources; return where."""
    given = job.parameters["release"]
    licences = {name: {**one, "text": texts} for name, one in given["licences"].items()}
    model = ReleaseParameters.model_validate({**given, "licences": licences, "reflections": {"quotes": quotes}})
    job.catalog["params:release"] = MemoryDataset(model)
    job.run(release)
    return job.release


def replayed(job: SmallJob, folder: Path) -> tuple[Replay, dict[str, Any]]:
    """Replay a release; return it with the parameters that it takes from the release."""
    names = ("ingestion", "subsampling", "tokenization", "expect", "reflection")
    own = {name: job.catalog.load(f"params:{name}") for name in names}
    own["reflection"] = own["reflection"].model_copy(update={"rows": (0, 1)})  # another one than that of the release
    upstream = str(job.folder / "upstream")
    upstreams = {name: {"kind": "path", "root": upstream, "pattern": f"{name}.jsonl"} for name in documents()}
    made = replay(folder, job.release, own, upstreams=upstreams)
    plain = {name: one.model_dump(mode="json") for name, one in own.items()}
    taken = with_released_parameters({**plain, "replay": {"release": str(job.release), "memory": 1 << 27}})
    return made, taken["reflection"]


def test_all_reflections_in_a_release_rebuild_the_stream_byte_for_byte(job: SmallJob, tmp_path: Path) -> None:
    folder = released(job, "all", "allow")
    opened, stream = open_release(folder), job.catalog.load("reflected_stream")
    assert opened.streams["reflected"]["root_digest"] == stream.root_digest
    assert opened.recipe["parameters"]["reflection"].keys() == {"rows", "splice"}, "no server, no file of this machine"
    assert why_not_rebuilt(opened, "reflected") is None and "reflection" in rebuilding_pipelines(opened)
    made, taken = replayed(job, tmp_path / "replayed")
    parameters = ReflectionParameters.model_validate(taken)
    assert parameters.rows is None and parameters.generator_of(RUN) == stream.statistics["generator"]
    assert parameters.published is not None
    root = Path(parameters.published.upstream.root)  # type: ignore[union-attr]
    files = [UpstreamFile(PUBLISHED_RUN, path.name, path, None) for path in sorted(root.glob("*.parquet"))]
    annotated, tokenizer, tokenization = (
        made[name] for name in ("annotated_stream", "tokenizer", "params:tokenization")
    )
    matched = match_reflections({PUBLISHED_RUN: files}, annotated, tokenizer, parameters, tokenization)
    made.save("published_reflections_index", matched, "05_model_input")
    columns = take_columns(made["published_reflections_index"], annotated, parameters)
    made.save(f"{RUN}_columns", columns, "05_model_input")
    spliced = splice_of(find_generation_run(RUN)[0])(
        annotated, made[f"{RUN}_columns"], tokenizer, tokenization, parameters
    )
    made.save("reflected_stream", spliced, "05_model_input")
    assert made["reflected_stream"].root_digest == stream.root_digest
    checks = release_checks(opened, {"reflected": made["reflected_stream"].folder}, full=True, documents=4, seed=1)
    assert not [check for check in checks if check.outcome == "failed"]
    ids = np.memmap(made["reflected_stream"].folder / "reflected.bin", np.uint16, "r+").reshape(-1, 65)
    ids[7, 2] += 1
    checks = release_checks(opened, {"reflected": made["reflected_stream"].folder}, full=True, documents=4, seed=1)
    failed = {check.name: check.text for check in checks if check.outcome == "failed"}
    assert (
        "window 7 " in failed["reflected windows"] and "it holds\n  annotated document" in failed["reflected windows"]
    )


@pytest.mark.parametrize(
    ("texts", "quotes", "reason"),
    [
        ("all", "withhold", "they repeat 50 characters of their document"),
        ("none", "allow", "the licence of their document keeps its text back"),
    ],
)
def test_a_replay_says_by_name_what_it_cannot_rebuild_and_why(
    job: SmallJob, tmp_path: Path, caplog: pytest.LogCaptureFixture, texts: str, quotes: str, reason: str
) -> None:
    let_one_quote(job)
    opened = open_release(released(job, texts, quotes))
    reflected = job.catalog.load("reflected_stream").statistics["reflected_windows"]
    withheld = {"no_text": 0, "quotes": 1} if texts == "all" else {"no_text": reflected}
    assert opened.streams["reflected"]["withheld"] == withheld
    said = why_not_rebuilt(opened, "reflected")
    assert said == f"the release withholds reflections of it: {sum(withheld.values()):,} ({reason})"
    assert "reflection" not in rebuilding_pipelines(opened)
    made, taken = replayed(job, tmp_path / "replayed")
    assert taken["published"] is None
    parameters = made["params:replay"]
    assert isinstance(parameters, ReplayParameters)
    checks = compare_with_release(parameters, *(made.held.get(kind.dataset) for kind in compared_kinds()))
    assert [one["text"] for one in checks if one["name"] == "reflected"] == [f"not rebuilt: {said}"]
    with caplog.at_level("WARNING"):
        counts = require_equal_streams(checks, made["replay_metrics"], parameters)
    assert counts["not_rebuilt"] == 1 and counts["failed"] == 0
    assert f"stream reflected of the release is not rebuilt: {said}" in caplog.text


def let_one_quote(job: SmallJob) -> None:
    """Let one reflection repeat its document, and make the stream again."""
    sidecar = job.catalog.load("annotated_stream").path("sidecar.parquet")
    rows, texts = rows_of(job), pq.read_table(sidecar, columns=["text"]).column(0).to_pylist()
    chosen = next(row for row in rows if row["status"] == "ok" and len(texts[row["row"]]) > 80)
    chosen["reflection_1p"] = f"It says: {texts[chosen['row']][10:70]}"
    job.catalog.save(f"{RUN}_columns", columns_of(rows))
    SequentialRunner().run(Pipeline(splicing_pipeline(find_generation_run(RUN)[0]).nodes), job.catalog)
