"""Documents that were drawn by a second score are released with it: a replay has the scores, and the same streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kedro.io import MemoryDataset

from everytoken.parameters import AnnotationParameters, ProvenanceParameters
from everytoken.pipelines import annotation, ingestion, provenance, release, subsampling, tokenization
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import open_release
from everytoken.provenance.replay.manifest_files import manifest_parts, read_released_manifest
from everytoken.provenance.verification import release_checks
from everytoken.shards import Store, file_sha256
from tests.provenance.builds import parameters_of
from tests.provenance.replay.test_replay import Replay, replay
from tests.provenance.small_job import SmallJob, write_upstream

SPLITS = ("annotated", "unannotated", "held_out")
SECOND = {
    "tides": {"kind": "words", "words": {"tides": 1.0, "salt": -0.5}, "max_chars": 10_000},
    "split": {"kind": "words", "words": {"the": 1.0}, "max_chars": 10_000},  # as a column of replays
}


@pytest.fixture(scope="module", params=["published", "none"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A job whose draw has bounds of a second score, with its release."""
    folder = tmp_path_factory.mktemp(request.param) / "job"
    write_upstream(folder)
    changes: dict[str, Any] = {"subsampling.score_bounds": {"tides": {"at_least": -10.0, "at_most": 40.0}}}
    if request.param == "none":
        changes |= {"annotation.scorer": {"kind": "none"}}
    made = SmallJob(folder, changes=changes)
    drawn = made.parameters["subsampling"] | {"annotation_threshold": None if request.param == "none" else 3}
    scored = made.parameters["annotation"] | {"second_scores": SECOND}
    made.catalog["params:annotation"] = MemoryDataset(AnnotationParameters.model_validate(scored))
    model = type(made.catalog.load("params:subsampling"))
    made.catalog["params:subsampling"] = MemoryDataset(model.model_validate(drawn))
    made.catalog["params:provenance"] = MemoryDataset(ProvenanceParameters(**made.parameters["provenance"]))
    made.run(ingestion, annotation, subsampling, tokenization, provenance, release)
    return made


@pytest.fixture(scope="module")
def replayed(job: SmallJob) -> Replay:
    sources = job.catalog.load("params:ingestion").active_sources
    places = {name: source.upstream.model_dump(mode="json") for name, source in sources.items()}
    return replay(job.folder / "replayed", job.release, parameters_of(job.folder), upstreams=places)


def scores_of(documents: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = ["source", "shard_index", "row", *SECOND]
    return {
        tuple(row.values())[:3]: tuple(row.values())[3:] for part in documents for row in part.table(names).to_pylist()
    }


def test_a_replay_has_the_second_scores_of_every_document(job: SmallJob, replayed: Replay) -> None:
    found = 0
    for split in SPLITS:
        drawn = scores_of(Store(job.data / f"04_feature/{split}_documents").load())
        assert scores_of(replayed[f"{split}_documents"]) == drawn
        found += len({scores for scores in drawn.values()})
        if split != "held_out":
            assert all(-10 <= tides <= 40 for tides, _ in drawn.values())
    assert found > 10


def test_its_streams_and_the_release_pass_every_check(job: SmallJob, replayed: Replay) -> None:
    opened = open_release(job.release)
    folders = {kind: replayed[f"{kind}_stream"].folder for kind in ("annotated", "compact")}
    checks = release_checks(opened, folders, full=True, documents=5, seed=1)
    assert [check for check in checks if check.outcome == "failed"] == []
    (manifest,) = (check.text for check in checks if check.name == "manifest")
    assert "12 columns" in manifest
    card = (job.release / "README.md").read_text()
    assert "Every document has further scores: `split` (words), `tides` (words)." in card
    assert "| `second_scores` | struct" in card


def test_a_manifest_without_the_scores_that_its_recipe_names_is_refused(job: SmallJob, tmp_path: Path) -> None:
    value = next(one for one in manifest_parts(job.release).values if one["unannotated"] is not None)
    path = Path(value["unannotated"]["path"])
    pq.write_table(pq.read_table(path).drop(["second_scores"]), tmp_path / path.name)
    file = {**value["unannotated"], "path": str(tmp_path / path.name), "sha256": file_sha256(tmp_path / path.name)}
    with pytest.raises(ProvenanceError, match=r"not \['second_scores'\]: it is no manifest"):
        list(read_released_manifest({**value, "annotated": None, "unannotated": file}, ["split", "tides"]))
