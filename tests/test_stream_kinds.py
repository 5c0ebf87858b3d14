"""A further kind of stream: with its entry, its node and its datasets, everything takes it without a change of its own.

It is a second packed stream of the unannotated documents, whose windows are shuffled a few at a time.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kedro.io import MemoryDataset
from kedro.pipeline import Node, Pipeline
from pydantic import ValidationError

import everytoken
from everytoken.cli.summary import stages_left, summary_lines
from everytoken.datasets import ArtifactFolder, TokenStream
from everytoken.parameters import (
    EvaluationParameters,
    ProvenanceParameters,
    ReplayParameters,
    TokenizationParameters,
    TrainingParameters,
)
from everytoken.pipelines import annotation, evaluation, ingestion, provenance, release, subsampling, tokenization
from everytoken.pipelines import training as training_pipeline
from everytoken.pipelines.verification.nodes import compare_with_release, compared_kinds
from everytoken.provenance.diff import diff_builds
from everytoken.provenance.lookup import DocumentRecords, Places, describe_run, documents_of, folder_of_stream, open_run
from everytoken.provenance.lookup.recorded_runs import recorded_run
from everytoken.provenance.takedown import compare_after, note_before, stream_indexes
from everytoken.provenance.trace.windows import trace_windows
from everytoken.provenance.verification import find_streams, release_checks
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens import StreamError
from everytoken.tokens.encoding import tombstones_of
from everytoken.tokens.order import open_one_stream
from everytoken.tokens.streams import STREAM_KINDS, chosen_kinds, chosen_streams, kind_of_dataset, write_compact_stream
from tests.provenance.small_job import SmallJob, write_upstream

SECOND = replace(STREAM_KINDS["compact"], name="second", dataset="second_stream", index="second_index")
STREAMS = ("second", "annotated")
SEQ = 64


def pack_second_stream(tokens: Shards, tokenizer: Artifact, parameters: TokenizationParameters) -> Artifact:
    """The node that writes the stream, with the writer of the compact stream."""
    tombstones = tombstones_of(tokens)
    return plan_artifact(
        write_compact_stream,
        tokens=tokens,
        tokenizer=tokenizer,
        seq_length=parameters.seq_length,
        seed=parameters.seed,
        shuffle_block=3,
        shuffle_memory=parameters.shuffle_memory,
        name=SECOND.name,
        **({"tombstones": tombstones} if tombstones else {}),
    )


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    """The entry, and the node in its pipeline."""
    inputs = ["unannotated_tokens", "tokenizer", "params:tokenization"]
    node = Node(pack_second_stream, inputs, SECOND.dataset, name="pack_second_stream", namespace="tokenization")
    known = tokenization.create_pipeline()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STREAM_KINDS, SECOND.name, SECOND)
        patch.setattr(tokenization, "create_pipeline", lambda: known + Pipeline([node]))
        yield


@pytest.fixture(scope="module")
def job(registered: None, tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """Everything up to the release, and a model of two of the streams."""
    folder = tmp_path_factory.mktemp("kinds") / "job"
    write_upstream(folder)
    changes = {
        "training.streams": list(STREAMS),
        "training.optimisation.steps": 5,
        "training.optimisation.batch_size": 3,
        "training.optimisation.micro_batch_size": 3,
        "training.optimisation.held_out": {"every_steps": 100, "documents": 1, "batch_size": 1},
        "training.optimisation.samples.every_steps": 100,
    }
    job = SmallJob(folder, changes=changes)
    models = {"provenance": ProvenanceParameters, "training": TrainingParameters, "evaluation": EvaluationParameters}
    for name, model in models.items():
        job.catalog[f"params:{name}"] = MemoryDataset(model.model_validate(job.parameters[name]))
    data = job.data / "05_model_input"
    job.catalog[SECOND.dataset] = TokenStream(filepath=str(data / SECOND.dataset))
    job.catalog[SECOND.index] = ArtifactFolder(filepath=str(data / SECOND.index))
    job.run(ingestion, annotation, subsampling, tokenization, provenance, release, training_pipeline, evaluation)
    return job


@pytest.fixture(scope="module")
def places(job: SmallJob) -> Places:
    described = {name: job.catalog[name]._describe() for name in job.catalog}
    return Places({name: Path(one["filepath"]) for name, one in described.items() if "filepath" in one}, "test")


def test_training_and_evaluation_read_the_streams_that_are_named(job: SmallJob, places: Places) -> None:
    for name in ("checkpoint", "held_out_evaluation"):
        recipe = job.catalog.load(name).ledger["recipe"]["parameters"]
        digests = {stream: job.catalog.load(STREAM_KINDS[stream].dataset).root_digest for stream in STREAMS}
        assert recipe["streams"] == [[stream, {"digest": digest}] for stream, digest in digests.items()]
    run = describe_run("checkpoint", job.catalog.load("checkpoint"))
    assert [name for name, _ in run.streams] == list(STREAMS)
    opened = open_run(places, run, {})
    assert opened.folders["second"] == places.paths["second_stream"]
    parameters = {
        "training": TrainingParameters.model_validate(job.parameters["training"]).model_dump(),
        "tokenization": TokenizationParameters.model_validate(job.parameters["tokenization"]).model_dump(),
    }
    read = {name: one.root_digest[:16] for name, one in places.artifacts.items()}
    assert recorded_run(places, "recorded", parameters, read).streams == run.streams


def test_a_stream_that_is_in_the_catalog_alone_cannot_be_chosen(job: SmallJob) -> None:
    assert "unannotated_tokens" in job.catalog
    known = (
        "'unannotated_tokens' is no stream that training can choose: there are compact, annotated, canary, raw_shards"
    )
    with pytest.raises(ValidationError, match=known):
        TrainingParameters.model_validate({**job.parameters["training"], "streams": ["compact", "unannotated_tokens"]})
    given = {**job.parameters["training"], "streams": "canary + second"}  # of a command line
    assert TrainingParameters.model_validate(given).streams == ("canary", "second")
    for names, found in {(): "none", ("second", "second"): "second, second"}.items():
        with pytest.raises(StreamError, match=f"at least one stream, each once, found {found}"):
            chosen_kinds(names)
    with pytest.raises(StreamError, match=r"there is no canary_stream yet: .*\(kedro run --pipelines canary\)"):
        chosen_streams(["second", "canary"], {"compact": 1, "annotated": 2, "canary": None, "second": 3})
    with pytest.raises(StreamError, match="names second, and the job of this environment trains on compact: name"):
        chosen_streams(["second"], {"compact": 1})


def test_every_token_is_traced(job: SmallJob, places: Places) -> None:
    path = folder_of_stream(places, "second")
    stream, known = open_one_stream("second", path, "sizes", SEQ), documents_of(places, "second", path, SEQ)
    assert known.index is not None and known.index.splits == ("unannotated",)
    encoded = [row["tokens"] for part in job.catalog.load("unannotated_tokens") for row in part.table().to_pylist()]
    eos = job.catalog.load("tokenizer").statistics["eos_id"]
    for window in range(len(stream)):
        held = [np.append(encoded[span.document], eos)[span.first : span.end] for span in known.index.spans(window)]
        assert np.concatenate(held).tolist() == stream.tokens(np.array([window]))[0].tolist()
    traced = trace_windows(stream, known, DocumentRecords(places), range(len(stream)), keep_texts=True)
    assert len(traced) == len(stream) > 3


def test_the_release_has_it_and_verification_finds_a_changed_token(job: SmallJob, tmp_path: Path) -> None:
    streams, faults = find_streams(job.release, [job.data / "05_model_input"])
    assert set(streams) == {"annotated", "compact", "second"} and not faults
    for full in (True, False):
        found = {check.name: check for check in release_checks(job.release, streams, full=full, documents=4, seed=1)}
        assert [name for name, check in found.items() if not check.ok] == []
    copied = Path(shutil.copytree(streams["second"], tmp_path / "second", copy_function=shutil.copy))
    tokens = np.memmap(copied / "second.bin", np.uint16, "r+")
    tokens[2 * (SEQ + 1) + 7] ^= 1
    tokens.flush()
    found = {
        check.name: check for check in release_checks(job.release, {"second": copied}, full=True, documents=4, seed=1)
    }
    assert found["second documents"].ok and "left over" in found["second documents"].text
    wrong = {name: check.text for name, check in found.items() if not check.ok}
    assert set(wrong) == {"second windows"}
    assert "window 2" in wrong["second windows"] and "of unannotated document" in wrong["second windows"]
    taken: list[Any] = [job.catalog.load(kind.input) for kind in compared_kinds()]
    replayed = _replay(job)
    assert all(check["ok"] for check in compare_with_release(replayed, *taken))
    taken[compared_kinds().index(SECOND)] = None
    absent = [check for check in compare_with_release(replayed, *taken) if not check["ok"]]
    assert absent == [{"name": "second", "ok": None, "text": "not rebuilt: run the whole job"}]


def _replay(job: SmallJob) -> ReplayParameters:
    verification = {"full": False, "documents": 4, "seed": 1}
    return ReplayParameters.model_validate(
        {**job.parameters["replay"], "release": str(job.release), "verification": verification}
    )


def test_the_summary_has_its_row_and_what_it_leaves_over(job: SmallJob) -> None:
    packages = (ingestion, annotation, subsampling, tokenization, provenance, training_pipeline, evaluation, release)
    whole = sum((package.create_pipeline() for package in packages), Pipeline([]))
    lines = list(summary_lines(stages_left(job.catalog, {"__default__": whole}), ""))
    statistics = job.catalog.load(SECOND.dataset).statistics
    (row,) = [line for line in lines if line.startswith("second_stream")]
    assert f"{statistics['windows']:,} windows" in row and f"{statistics['tokens']:,} with EOS" in row
    assert f"{statistics['remainder_tokens']} tokens at the end of the second stream that fill no window" in str(lines)
    (model,) = [line for line in lines if line.startswith("checkpoint")]
    assert "made from another" not in model, "compact_stream, which it did not choose, is not what it is made from"


def test_two_builds_that_differ_in_it_say_so(job: SmallJob, tmp_path: Path) -> None:
    stages = list(job.catalog)
    assert "second_stream" in diff_builds(job.data, job.release, stages=stages, limit=3, memory=1 << 27).equal
    other = Path(shutil.copytree(job.data, tmp_path / "other", copy_function=shutil.copy))
    shutil.rmtree(other / "05_model_input/second_stream")
    tokens, tokenizer = job.catalog.load("unannotated_tokens"), job.catalog.load("tokenizer")
    parameters = job.catalog.load("params:tokenization").model_copy(update={"seed": 7})
    TokenStream(filepath=str(other / "05_model_input/second_stream")).save(
        pack_second_stream(tokens, tokenizer, parameters)
    )
    found = diff_builds(job.data, other, stages=stages, limit=3, memory=1 << 27)
    assert list(found.different) == ["second_stream"] and not found.has_same_streams
    assert found.parameters["tokenization.seed"] == (42, 7)
    windows = found.windows["second_stream"]
    assert windows.in_a == windows.in_b and windows.different > 0


def test_a_take_down_looks_at_its_windows(job: SmallJob, places: Places, tmp_path: Path) -> None:
    indexes = stream_indexes(places, tmp_path)
    assert set(indexes) == {"compact", "annotated", "second"}
    before = note_before(tmp_path / "before", places, [], indexes, [], "0" * 64)
    report = json.loads(json.dumps(compare_after(before, places)))
    windows = job.catalog.load(SECOND.dataset).statistics["windows"]
    assert report["streams"]["second"]["windows"] == windows
    assert report["streams"]["second"]["changed_windows"] == [] and not report["faults"]


def test_streams_are_named_where_they_are_made_and_in_the_registry_alone() -> None:
    source = Path(everytoken.__file__).parent
    others = {"tokens/encoding/report.py"}  # the keys of a metric
    found = set()
    for path in sorted(source.rglob("*.py")):
        place = path.relative_to(source).as_posix()
        if place == "tokens/streams/kinds.py" or place in others:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                kind = kind_of_dataset(node.value)
                if kind is not None and kind.dataset != "raw_shards" and f"pipelines/{kind.pipeline}/" not in place:
                    found.add((place, node.value))
    assert not found
