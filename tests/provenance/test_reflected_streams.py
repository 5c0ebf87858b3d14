"""A reflected stream is trained on by name, and every token of it is the document's or the reflection's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kedro.pipeline import Pipeline

from everytoken.cli import cli
from everytoken.cli.rendering import exposure_lines, sequence_lines
from everytoken.cli.summary import stages_left, summary_lines
from everytoken.datasets import TokenStream
from everytoken.pipelines import (
    annotation,
    evaluation,
    ingestion,
    provenance,
    reflection,
    release,
    subsampling,
    tokenization,
    training,
)
from everytoken.pipelines.reflection.splicing_nodes import splice_of
from everytoken.provenance import ProvenanceError
from everytoken.provenance.diff import diff_builds
from everytoken.provenance.exposure import Questions
from everytoken.provenance.indexes import open_stream_index
from everytoken.provenance.lookup import DocumentRecords, Places, describe_run, documents_of, folder_of_stream, open_run
from everytoken.provenance.trace.batch_page import batch_page
from everytoken.provenance.trace.spans import ReflectionSpan, TakenDownSpan, TextSpan
from everytoken.provenance.trace.steps import TracedSequence, token_at, trace_step, trace_window
from everytoken.provenance.trace.windows import TracedWindow, trace_windows
from everytoken.provenance.verification import (
    find_streams,
    index_checks,
    release_checks,
    splice_checks,
    stored_around,
)
from everytoken.reflections import find_generation_run
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    Inline,
    Shards,
    Store,
    artifact_checksum,
    artifact_ledger_text,
    artifact_root_digest,
)
from everytoken.tokens import EncodingRules, open_encoder
from everytoken.tokens.checks import verify
from everytoken.tokens.encoding import open_spans
from everytoken.tokens.order import open_one_stream
from tests.provenance.reflected_job import BUDGET, RUN, STREAMS, columns_of, make, places_of, rows_of, said_of
from tests.provenance.small_job import SmallJob

SEQ = 64


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    return make(tmp_path_factory.mktemp("reflected") / "job")


@pytest.fixture(scope="module")
def places(job: SmallJob) -> Places:
    return places_of(job)


@pytest.fixture(scope="module")
def traced(places: Places) -> list[TracedWindow]:
    path = folder_of_stream(places, "reflected")
    stream, known = open_one_stream("reflected", path, "sizes", SEQ), documents_of(places, "reflected", path, SEQ)
    return trace_windows(stream, known, DocumentRecords(places), range(len(stream)), keep_texts=True)


def test_training_takes_it_in_the_place_of_the_annotated_stream(job: SmallJob, places: Places) -> None:
    for name in ("checkpoint", "held_out_evaluation"):
        given = job.catalog.load(name).ledger["recipe"]["parameters"]["streams"]
        assert [stream for stream, _ in given] == list(STREAMS)
    opened = open_run(places, describe_run("checkpoint", job.catalog.load("checkpoint")), {})
    assert opened.folders["reflected"] == places.paths["reflected_stream"]
    sizes = [job.catalog.load(f"{name}_stream").statistics["windows"] for name in ("compact", "annotated", "reflected")]
    assert opened.windows.sizes == (sizes[0], sizes[2]) and sizes[1] == sizes[2]
    streams, _ = opened.order.locate(np.arange(48))
    assert set(streams.tolist()) == {0, 1}
    share = sizes[1] / (sizes[0] + sizes[1])  # the rule of the published runs, of two streams
    assert [int((i + 1) * share) - int(i * share) for i in range(48)] == streams.tolist()


def test_brute_force_agrees_on_300_positions(job: SmallJob, places: Places, traced: list[TracedWindow]) -> None:
    """Tokens of documents and reflections, put together here from what was encoded, are where trace says they are."""
    tokenizer: Artifact = job.catalog.load("tokenizer")
    encoder = open_encoder(EncodingRules(tokenizer, "<|endoftext|>", "literal"))
    documents = {
        (row["source"], row["shard_index"], row["row"]): row["tokens"]
        for part in job.catalog.load("annotated_tokens")
        for row in part.table(["source", "shard_index", "row", "tokens"]).to_pylist()
    }
    ids = np.fromfile(places.paths["reflected_stream"] / "reflected.bin", np.uint16).reshape(-1, SEQ + 1)
    rows = {row["row"]: row for row in rows_of(job)}
    drawn = numpy_generator(5, 300)
    kinds = dict.fromkeys(("text", "eos", "reflection", "padding", "taken_down"), 0)
    numbers = drawn.integers(0, len(ids), 300).tolist()
    for number, position in zip(numbers, drawn.integers(0, SEQ + 1, 300).tolist(), strict=True):
        window = traced[number]
        token = token_at(TracedSequence(window, None), position)
        assert token.id == int(ids[number, position])
        span = window.span_at(position)
        if span is None:
            kinds["padding"] += 1
            assert token.id == tokenizer.statistics["eos_id"] and not token.counts_in_loss
            continue
        assert isinstance(span, TextSpan | ReflectionSpan | TakenDownSpan)
        content = documents[tuple(span.record.address or ())]
        row, size = rows[number], 0
        if row["status"] == "ok" and len(content) > 1:
            said = encoder.encode([row["reflection_1p"]], BUDGET + 1)
            inserted, size = said.values[:-1].tolist(), int(said.lengths[0])
            place = row["reflection_token_index"]
            whole = [*content[:place], *inserted, *content[place:]]
        else:
            place, whole = len(content), content
        assert whole[position] == token.id
        assert isinstance(span, ReflectionSpan) == (place <= position < place + size)
        before = place if isinstance(span, ReflectionSpan) else size * (position >= place + size)
        assert token.number == position - before
        kinds["reflection" if isinstance(span, ReflectionSpan) else "text"] += 1
        assert token.counts_in_loss == (position > 0 and not span.taken_down)
    assert kinds["reflection"] > 20 and kinds["text"] > 20 and kinds["padding"] > 20


def test_a_reflection_is_told_as_what_a_model_wrote(job: SmallJob, places: Places, traced: list[TracedWindow]) -> None:
    number, span = next(
        (number, span)
        for number, window in enumerate(traced)
        for span in window.spans
        if isinstance(span, ReflectionSpan) and number % 7 == 0
    )
    own = traced[number].spans
    assert [type(one) for one in own] == [TextSpan, ReflectionSpan, TextSpan]
    alias = job.parameters["reflection"]["generator"]["alias"]
    told = {"run": RUN, "generator": alias, "voice": "1p", "marker": None, "canary": "Q7"}
    assert span.record.reflection == told and span.reflection is not None
    assert span.reflection.text == said_of(number)
    assert own[0].document == own[2].document == span.document and own[0].record.reflection is None  # type: ignore[union-attr]
    assert traced[number].padding_between == []
    lines = "\n".join(sequence_lines(TracedSequence(traced[number], None).to_json(), None))
    assert f"a reflection of {span.length} tokens, generated, not the document's" in lines
    assert f"run {RUN}, generator {alias}, voice 1p, canary Q7" in lines
    token = token_at(trace_window(DocumentRecords(places), "reflected", number, None), span.at)
    assert token.kind == "reflection" and token.number == 0 and token.characters is None


def test_only_what_was_spliced_of_a_reflection_is_between_brackets(
    job: SmallJob, places: Places, traced: list[TracedWindow]
) -> None:
    tokenizer: Artifact = job.catalog.load("tokenizer")
    spans = open_spans(EncodingRules(tokenizer, "<|endoftext|>", "literal"))
    found = {True: 0, False: 0}
    for number, window in enumerate(traced):
        for span in window.spans:
            if not isinstance(span, ReflectionSpan):
                continue
            said, told = said_of(number), span.to_json()
            assert told["uncut_tokens"] == spans.count(said) and told["cut_to_cap"] == (spans.count(said) > BUDGET)
            assert span.reflection is not None
            spliced = said[: span.reflection.characters]
            assert (spliced == said) == (not span.is_cut) and spans.count(spliced) == span.length
            found[span.is_cut] += 1
            told_in_full = {**told, "document": {**told["document"], "canary": None}}  # type: ignore[dict-item]
            texts = {"before": "", "span": spliced, "after": said[len(spliced) :]}
            sequence = TracedSequence(window, None).to_json()
            sequence |= {"documents": [told_in_full], "texts": [texts]}
            lines = "\n".join(sequence_lines(sequence, None))
            assert f"[[[{spliced}]]]{said[len(spliced) :]}" in lines
            assert ("cut to the cap, of" in lines) == span.is_cut
    assert found[True] > 5 and found[False] > 5


def test_the_page_marks_reflections_and_nothing_else(places: Places, traced: list[TracedWindow]) -> None:
    tokenizer = documents_of(places, "reflected", folder_of_stream(places, "reflected"), SEQ).tokenizer
    page = batch_page([TracedSequence(window, tokenizer) for window in traced], "all")
    data = json.loads(page.split('<script id="data" type="application/json">')[1].split("</script>")[0])
    for window, one in zip(traced, data["sequences"], strict=True):
        assert [bool(span[9]) for span in one["spans"]] == [isinstance(span, ReflectionSpan) for span in window.spans]
        for span in one["spans"]:
            told = dict(data["documents"][span[0]])
            assert ("reflection" in told) == bool(span[9])
    assert page.count("<mark") == 0 and 'make(span[9] ? "mark" : "span"' in page


def test_exposure_counts_a_window_once_and_says_where_its_reflection_is(
    job: SmallJob, places: Places, traced: list[TracedWindow]
) -> None:
    run = describe_run("checkpoint", job.catalog.load("checkpoint"))
    opened = open_run(places, run, {})
    streams, windows = opened.order.locate(np.arange(run.steps * run.batch_size))
    read = windows[streams == 1].tolist()
    number = next(one for one in read if any(isinstance(span, ReflectionSpan) for span in traced[one].spans))
    before, inserted, _ = traced[number].spans
    assert isinstance(before, TextSpan) and before.record.address is not None
    answer = Questions(DocumentRecords(places), run).at_address(before.record.address, most=1)
    (found,) = answer.documents
    assert found.times == read.count(number) and len(found.exposures) == 2 * found.times
    assert sum(one.tokens for one in found.exposures) == len(before.located.ids) * found.times
    (stream,) = [one for one in found.streams if one.stream == "reflected"]
    assert stream.whole and stream.reflection == (inserted.at, inserted.end)
    assert f"with a reflection at [{inserted.at:,}, {inserted.end:,})" in "\n".join(
        exposure_lines(answer.to_json(), 5, None)
    )
    step = int(np.flatnonzero((streams == 1) & (windows == number))[0]) // run.batch_size
    traced_again = trace_step(opened, DocumentRecords(places), step)
    assert any(one.window.window == number and one.window.stream == "reflected" for one in traced_again)


def test_an_index_is_verified_and_a_changed_one_is_found(job: SmallJob, tmp_path: Path) -> None:
    data = Path(shutil.copytree(job.data, tmp_path / "data"))
    folder = data / "05_model_input/reflected_index"
    stored = stored_around(folder)
    assert all(check.ok for check in index_checks(folder, "full", stored))
    index = open_stream_index(folder)
    window = next(one for one in range(index.windows) if index.reflection(one) is not None)
    sizes = np.load(folder / "sizes.npy", mmap_mode="r+")
    sizes[window] += 1
    sizes.flush()
    assert not all(check.ok for check in index_checks(folder, "full", stored))


@pytest.mark.parametrize(
    ("file", "message"),
    [("reflection_lengths.npy", "tokens as the ledger says|is not in it"), ("reflection_index.npy", "is not in it")],
)
def test_verification_compares_the_tokens_of_each_voice(job: SmallJob, tmp_path: Path, file: str, message: str) -> None:
    folder = Path(shutil.copytree(job.data / "05_model_input/reflected_stream", tmp_path / "reflected"))
    checks = {check.name: check for check in verify(folder, "full")}
    assert all(check.ok for check in checks.values())
    assert f"{job.catalog.load('reflected_stream').statistics['reflection_tokens']['1p']:,} tokens of 1p" in str(checks)
    array = np.load(folder / file, mmap_mode="r+")
    changed = int(np.flatnonzero(np.load(folder / "reflection_lengths.npy"))[0])
    array[changed] = 200 if "index" in file else array[changed] - 1
    array.flush()
    found = {check.name: check for check in verify(folder, "full")}
    assert not found["reflections"].ok
    assert re.search(message, found["reflections"].text)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("reflected.bin", (1, 7), r"window {0} token 7: expected the id {1}, found {2}.*it holds the document {3}"),
        ("reflection_lengths.npy", None, r"window {0}: its entry of reflection_lengths.npy: expected {1}, found {2}"),
    ],
)
def test_a_stream_is_spliced_again_and_compared(
    job: SmallJob, tmp_path: Path, file: str, damage: tuple[int, int] | None, message: str
) -> None:
    """Also one whose ledger was edited together with its files."""
    data = Path(shutil.copytree(job.data, tmp_path / "data"))
    folder = data / "05_model_input/reflected_stream"
    (check,) = splice_checks(folder, "full", stored_around(folder))
    said = job.catalog.load("reflected_stream").statistics
    voices = f"{said['reflection_tokens']['1p']:,} tokens of 1p"
    assert check.outcome == "passed", check.text
    assert check.text == f"{said['windows']:,} windows, {said['reflected_windows']:,} reflections, {voices}"
    assert splice_checks(folder, "sampled", {}) == []
    window = int(np.flatnonzero(np.load(folder / "reflection_lengths.npy"))[2])
    if damage is not None:
        array = np.memmap(folder / file, np.uint16, "r+").reshape(-1, SEQ + 1)
        array[window, 7] += 1
        found = int(array[window, 7])
    else:
        array = np.load(folder / file, mmap_mode="r+")
        array[window] += 1
        found = int(array[window])
    array.flush()
    sidecar = pq.read_table(data / "05_model_input/annotated_stream/sidecar.parquet", columns=["doc_id"])
    expected = message.format(window, found - 1, found, re.escape(repr(sidecar.column(0)[window].as_py())))
    (check,) = splice_checks(folder, "full", stored_around(folder))
    assert check.outcome == "failed" and re.search(expected, check.text, re.DOTALL), check.text
    output = CliRunner().invoke(cli, ["verify", str(folder), "--full"]).output
    assert re.search(f"FAIL .*spliced again: .*window {window}", output), output


def test_a_stream_with_other_numbers_in_its_ledger_or_without_its_columns_is_told(
    job: SmallJob, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(job.data, tmp_path / "data"))
    folder = data / "05_model_input/reflected_stream"
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger["statistics"]["reflection_tokens"] = {"1p": 1}
    ledger["root_digest"] = artifact_root_digest(ledger["files"], ledger["statistics"])
    ledger["checksum"] = artifact_checksum(ledger)
    (folder / "ledger.json").write_text(artifact_ledger_text(ledger))
    (check,) = splice_checks(folder, "full", stored_around(folder))
    assert "reflection_tokens in its ledger: expected" in check.text and check.outcome == "failed"
    _saved(data, [*rows_of(job)[:-1]])
    (check,) = splice_checks(folder, "full", stored_around(folder))
    assert check.text == "not checked: its data folder has no columns of its digest" and check.outcome == "not made"


def test_the_summary_has_its_row(job: SmallJob) -> None:
    packages = (ingestion, annotation, subsampling, tokenization, provenance, training, evaluation, reflection)
    whole = sum((package.create_pipeline() for package in packages), Pipeline([]))
    lines = list(summary_lines(stages_left(job.catalog, {"__default__": Pipeline(whole.nodes)}), ""))
    told = job.catalog.load("reflected_stream").statistics
    (row,) = [line for line in lines if line.startswith("reflected_stream")]
    assert f"{told['windows']:,} windows" in row and f"{told['tokens']:,} without EOS" in row


def test_two_builds_with_other_reflections_differ_in_that_stream_alone(job: SmallJob, tmp_path: Path) -> None:
    other = Path(shutil.copytree(job.data, tmp_path / "other"))
    rows = rows_of(job)
    changed = next(row for row in rows if row["status"] == "ok" and row["doc_id"] and row["reflection_token_index"])
    changed["reflection_1p"] = "Something else."
    columns = _saved(other, rows)
    recipe = job.catalog.load("reflected_stream").ledger["recipe"]["parameters"]
    assert recipe["columns"]["digest"] != columns.root_digest
    planned = splice_of(find_generation_run(RUN)[0])(
        job.catalog.load("annotated_stream"),
        columns,
        job.catalog.load("tokenizer"),
        job.catalog.load("params:tokenization"),
        job.catalog.load("params:reflection"),
    )
    TokenStream(filepath=str(other / "05_model_input/reflected_stream")).save(planned)
    found = diff_builds(job.data, other, stages=list(job.catalog), limit=3, memory=1 << 27)
    assert set(found.different) == {"reflected_stream", f"{RUN}_columns"}
    assert found.windows["reflected_stream"].different == 1
    assert found.windows["reflected_stream"].first == changed["row"]


def _saved(data: Path, rows: list[dict[str, Any]]) -> Shards:
    store = Store(data / f"05_model_input/{RUN}_columns")
    store.save(columns_of(rows), Inline())
    return store.load()


def test_reflections_of_another_run_are_refused(job: SmallJob, places: Places, tmp_path: Path) -> None:
    other = Path(shutil.copytree(job.data, tmp_path / "other"))
    rows = rows_of(job)
    rows[0]["reflection_1p"] = "Something else."
    _saved(other, rows)
    moved = Places({name: other / path.relative_to(job.data) for name, path in places.paths.items()}, "test")
    with pytest.raises(ProvenanceError, match=r"was made from reflections_columns with the digest .* merged again"):
        trace_window(DocumentRecords(moved), "reflected", 0, None)


def test_a_release_describes_the_streams_that_were_made(job: SmallJob) -> None:
    job.run(release)
    streams, faults = find_streams(job.release, [job.data / "05_model_input"])
    assert set(streams) == {"annotated", "compact", "reflected"} and not faults
    assert all(check.ok for check in release_checks(job.release, streams, full=True, documents=4, seed=1))
