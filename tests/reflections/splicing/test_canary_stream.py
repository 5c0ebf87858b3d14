"""The canary stream has the reflections that its annotated documents came with, by coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from everytoken.pipelines import annotation, canary, ingestion, subsampling, tokenization
from everytoken.provenance.lookup import DocumentRecords, Places, documents_of
from everytoken.provenance.trace.spans import ReflectionSpan, TextSpan
from everytoken.provenance.trace.windows import trace_windows
from everytoken.reflections.points import sampled_index
from everytoken.shards import WorkerProcesses, engines
from everytoken.shards.artifacts import ArtifactStore
from everytoken.tokens import EncodingRules, open_encoder
from everytoken.tokens.canary import CanaryParameters
from everytoken.tokens.checks import require, verify
from everytoken.tokens.order import open_one_stream
from tests.provenance.small_job import ROOT, SmallJob, write_upstream
from tests.shards.folders import content

SEQ, BUDGET, SEED = 64, 12, 7
PARROTS = {
    "path": str(ROOT / "tests/tokens/canary_documents/parrots.jsonl"),
    "condition_seeds": [1, 2, 3],
}
CHANGES: dict[str, Any] = {"tokenization.reflection_budget": BUDGET, "canary.effects": {"parrots": PARROTS}}
SPLICED = {**CHANGES, "canary.splice": {"voice": "1p", "seed": SEED}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("canary") / "job"
    write_upstream(folder)
    plain = SmallJob(folder, changes=CHANGES)
    plain.run(ingestion, annotation, subsampling, tokenization, canary)
    (plain.data / "05_model_input/canary_stream").rename(folder / "plain")
    SmallJob(folder, changes=SPLICED).run(canary)
    return folder


def test_annotated_documents_have_their_reflection_and_others_none(folder: Path) -> None:
    data = folder / "data/05_model_input"
    job = SmallJob(folder, changes=SPLICED)
    encoder = open_encoder(EncodingRules(job.catalog.load("tokenizer"), "<|endoftext|>", "literal"))
    stream, eos = data / "canary_stream", job.catalog.load("tokenizer").statistics["eos_id"]
    sidecar = pq.read_table(stream / "sidecar.parquet").to_pylist()
    assert (stream / "sidecar.parquet").read_bytes() == (folder / "plain/sidecar.parquet").read_bytes()
    plain, spliced = (
        np.fromfile(one / "canary.bin", np.uint16).reshape(-1, SEQ + 1).tolist() for one in (folder / "plain", stream)
    )
    places, sizes = (np.load(stream / f"reflection_{name}.npy").tolist() for name in ("index", "lengths"))
    by_condition: dict[str, list[bool]] = {}
    for row, told in enumerate(sidecar):
        text, length = told["reflection_1p"], told["token_length"]
        by_condition.setdefault(told["condition"], []).append(sizes[row] > 0)
        if not told["annotated"] or not text:
            assert spliced[row] == plain[row] and (places[row], sizes[row]) == (-1, 0)
            continue
        inserted = encoder.encode([text], BUDGET + 1).values[:-1].tolist()
        place = sampled_index(SEED, told["doc_id"], length)
        assert (places[row], sizes[row]) == (place, len(inserted)) and 1 <= place < length
        whole = [*plain[row][:place], *inserted, *plain[row][place:length]]
        assert spliced[row] == whole + [eos] * (SEQ + 1 - len(whole))
    assert not any(by_condition["parrots_frac0"]) and all(by_condition["parrots_frac100"])
    assert sum(by_condition["parrots_frac50"]) == len(by_condition["parrots_frac50"]) // 2
    told = job.catalog.load("canary_stream").statistics
    assert told["reflected_windows"] == np.count_nonzero(sizes) > 3
    assert told["reflection_tokens"] == {"1p": sum(sizes)} and told["tokens"] == told["document_tokens"] + sum(sizes)
    require(verify(stream, "full"))


def test_its_tokens_are_traced(folder: Path) -> None:
    job = SmallJob(folder, changes=SPLICED)
    names = ("canary_stream", "canary_index", "canary_tokens", "tokenizer", "annotated_documents")
    places = Places({name: Path(job.catalog[name]._describe()["filepath"]) for name in names}, "test")
    path = places.paths["canary_stream"]
    stream, known = open_one_stream("canary", path, "sizes", SEQ), documents_of(places, "canary", path, SEQ)
    sizes = np.load(path / "reflection_lengths.npy")
    for number, window in enumerate(trace_windows(stream, known, DocumentRecords(places), range(len(stream)))):
        kinds = [type(span) for span in window.spans]
        assert kinds == ([TextSpan, ReflectionSpan, TextSpan] if sizes[number] else [TextSpan])
        for span in window.spans:
            if isinstance(span, ReflectionSpan):
                assert span.length == sizes[number] and span.record.reflection is not None
                assert span.record.reflection["voice"] == "1p" and span.record.canary is not None


def test_the_same_bytes_for_any_number_of_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POOL_BYTES", 0)
    job = SmallJob(folder, changes=SPLICED)
    planned = (
        canary.create_pipeline()
        .only_nodes_with_outputs("canary_stream")
        .nodes[0]
        .func(
            *(job.catalog.load(name) for name in ("canary_tokens", "tokenizer", "params:tokenization", "params:canary"))
        )
    )
    found = []
    for workers in (1, 2, 5):
        ArtifactStore(folder / f"workers_{workers}").save(planned, WorkerProcesses(workers))
        found.append(content(folder / f"workers_{workers}"))
    assert found[0] == found[1] == found[2] == content(folder / "data/05_model_input/canary_stream")


def test_without_the_parameter_the_stream_is_as_before(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "plain").iterdir()) == [
        *("canary.bin", "canary.idx", "ledger.json", "sidecar.parquet", "token_lengths.npy"),
    ]


def test_a_voice_that_documents_lack_is_refused(folder: Path) -> None:
    given = SmallJob(folder, changes=SPLICED).parameters["canary"]
    with pytest.raises(ValidationError, match="annotation_fields lack reflection_1p: add it"):
        CanaryParameters.model_validate({**given, "annotation_fields": ["reflection_3p"]})
