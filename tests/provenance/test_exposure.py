"""When a run read a document is what a scan of all its samples finds, for every kind of stream and of run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from everytoken.address import Address
from everytoken.cli import cli
from everytoken.cli.rendering import exposure_lines, sequence_lines
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.exposure.counts import reads_of
from everytoken.provenance.exposure.phrases import RunDocuments, document_exposure
from everytoken.provenance.exposure.questions import Answer, Questions
from everytoken.provenance.exposure.unused_documents import unused_at
from everytoken.provenance.indexes.document_numbers import DocumentPlace
from everytoken.provenance.indexes.stream_index import MadeStream, index_padded_stream
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import DocumentRecords, StoreRow, planned_parts
from everytoken.provenance.lookup.recorded_runs import recorded_run
from everytoken.provenance.lookup.runs import OpenRun, Run, describe_run, find_run, open_run
from everytoken.provenance.lookup.stream_documents import documents_of, index_of_stream
from everytoken.provenance.trace.batch_page import batch_page
from everytoken.provenance.trace.steps import token_at, trace_step
from everytoken.seeds import numpy_generator
from everytoken.shards import ArtifactStore, plan_artifact
from everytoken.tokens import open_tokenizer
from everytoken.tokens.tokenizer.token_texts import bytes_of_token
from tests.provenance.small_job import EXCLUDED_ROWS
from tests.provenance.traced_job import STREAMS, TracedJob, make, rows_of, scanned

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = [
    {"from_step": 0, "weights": {"compact": 1.0, "annotated": 0.0, "canary": 2.0}},
    {"from_step": 20, "weights": {"compact": 0.0, "annotated": 3.0, "canary": 0.5}},
    {"from_step": 45, "weights": {"compact": 2.0, "annotated": 1.0, "canary": 0.0}},
]
RUNS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "spp": (STREAMS, {"schedule": "spp"}),
    "many epochs, permuted": (STREAMS, {"later_epochs": "permuted"}),
    "all epochs permuted": (STREAMS, {"first_epoch": "permuted", "later_epochs": "permuted"}),
    "weights that change": (STREAMS, {"weights": WEIGHTS, "later_epochs": "permuted"}),
    "a replay": (STREAMS, {"replay": [101, 700], "later_epochs": "permuted"}),
    "a replay with weights": (STREAMS, {"replay": [33, 1000], "weights": WEIGHTS, "first_epoch": "permuted"}),
    "flat tokens": ({"raw": "raw_shards"}, {"later_epochs": "permuted"}),
    "chats": ({"chats": "chat_windows"}, {"later_epochs": "permuted"}),
    "all": ({**STREAMS, "raw": "raw_shards", "chats": "chat_windows"}, {}),
}
STEPS, BATCH = 80, 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TracedJob:
    return make(tmp_path_factory.mktemp("exposed") / "job", trained=True)


def indexes(made: TracedJob, opened: OpenRun) -> dict[str, Any]:
    return {
        name: index_of_stream(made.places, name, folder, opened.run.seq_length)
        for name, folder in opened.folders.items()
    }


def brute_force(opened: OpenRun, of: dict[str, Any]) -> dict[DocumentPlace, list[tuple[Any, ...]]]:
    """Everything that a run read of every document, by reading every sample and looking into its window."""
    seen: dict[DocumentPlace, list[tuple[Any, ...]]] = {}
    ordinals = {name: opened.order.counts((opened.run.data.replay or (0, 0))[0])[i] for i, name in enumerate(of)}
    for sample, name, window in scanned(opened):
        epoch = ordinals[name] // of[name].windows
        ordinals[name] += 1
        for span in of[name].spans(window):
            place = of[name].numbers.place(span.document)
            one = (sample, name, window, epoch, span.at, span.first, span.end)
            seen.setdefault(place, []).append(one)
    return seen


@pytest.mark.parametrize("name", list(RUNS))
def test_exposures_are_what_a_scan_of_all_samples_finds(made: TracedJob, name: str) -> None:
    streams, data = RUNS[name]
    opened = made.run(streams, STEPS, BATCH, **data)
    of = indexes(made, opened)
    expected = brute_force(opened, of)
    places = [
        DocumentPlace(split, number)
        for split in dict.fromkeys(split for index in of.values() for split in index.splits)
        for number in range(next(i for i in of.values() if split in i.splits).numbers.documents_of(split))
    ]
    assert len(places) > 60 and set(expected) <= set(places)
    epochs = 0
    for place in places:
        found = reads_of([opened], [of], place)
        told = [
            (one.sample, one.held.stream, one.held.window, one.epoch, one.held.at, one.held.first, one.held.end)
            for one in found.exposures
        ]
        assert sorted(told) == sorted(expected.get(place, []))
        assert [one[0] for one in told] == sorted(one[0] for one in told)
        assert all(one.step * BATCH + one.sequence == one.sample for one in found.exposures)
        epochs = max([epochs, *(one.epoch for one in found.exposures)])
    assert epochs > 1 or name in ("a replay with weights", "all", "chats", "weights that change")


def test_the_tokens_of_a_document_stand_where_the_exposures_say(made: TracedJob) -> None:
    """In the very batches that training reads, counted in the loss as said; random documents."""
    opened = made.run(STREAMS, STEPS, BATCH, later_epochs="permuted")
    of = indexes(made, opened)
    rows = {split: made.table(f"{split}_tokens", ["tokens"]) for split in ("unannotated", "annotated", "canary")}
    drawn = numpy_generator(5)
    for _ in range(40):
        split = ("unannotated", "annotated", "canary")[drawn.integers(3)]
        number = int(drawn.integers(len(rows[split])))
        found = reads_of([opened], [of], DocumentPlace(split, number))
        assert found.exposures
        for one in found.exposures:
            tokens, mask = opened.windows.read_batch(one.step)
            at = slice(one.held.at, one.held.at + one.tokens)
            assert tokens[one.sequence, at].tolist() == rows[split][number]["tokens"][one.held.first : one.held.end]
            assert np.concatenate([[False], mask[one.sequence]])[at].sum() == one.held.counted


def test_steps_decide_what_counts_and_what_a_checkpoint_has_seen(made: TracedJob) -> None:
    last = 3 * STEPS
    opened = made.run(STREAMS, last, BATCH)
    of = indexes(made, opened)
    place = DocumentPlace("annotated", 3)
    whole = reads_of([opened], [of], place)
    steps = [one.step for one in whole.exposures]
    assert len(steps) > 3
    for at_step in (0, steps[0], steps[0] + 1, steps[2] + 1, last, last + 120):
        run = Run(**{**vars(opened.run), "checkpoints": tuple((k, str(k)) for k in (10, 25, 60, 80))})
        asked = OpenRun(run, opened.windows, opened.folders)
        found = reads_of([asked], [of], place, at_step)
        done = [one.step for one in found.exposures]
        assert done[: len(steps)] == [step for step in steps if step < at_step] and all(step < at_step for step in done)
        told = {one.step: one.times for one in found.checkpoints}
        assert told == {k: sum(step < k for step in steps) for k in (10, 25, 60, 80) if k <= at_step}
    assert len(done) > len(steps), "beyond its end a run would have gone on so"


@pytest.fixture(scope="module")
def asked(made: TracedJob) -> Questions:
    run = find_run(made.places, "checkpoint", made.checkpoint_folders)
    return Questions(made.records, run, {}, made.checkpoint_folders)


def addresses(answer: Answer) -> list[tuple[str, int, int] | None]:
    return [one.record.address for one in answer.documents]


def test_every_document_with_an_id_is_found_and_every_row_that_became_none(made: TracedJob, asked: Questions) -> None:
    """For each row of the upstreams: in a split, or the reason why not."""
    least = made.job.catalog.load("params:ingestion").min_chars
    reasons: dict[str, int] = {}
    for source in ("articles", "notes", "open"):
        rows = rows_of(source)
        for row in range(0, 60, 3 if source != "articles" else 1):
            answer = asked.at_address(Address(source, 0, row), most=5)
            if answer.unused:
                (unused,) = answer.unused
                reasons[unused.reason] = reasons.get(unused.reason, 0) + 1
                assert (unused.source, unused.row) == (source, row)
                assert (unused.reason == "too_short") == (len(rows[row]["text"]) < least)
                assert (unused.reason == "duplicate") == ((source, row) == ("articles", 10))
                assert unused.id in (rows[row]["id"], None)
            else:
                assert addresses(answer) == [(source, 0, row)]
    assert set(reasons) >= {"too_short", "duplicate", "not_drawn"}
    twice = asked.with_id("twice", most=9, everywhere=True)
    found = [row for address in addresses(twice) if address is not None for row in [address[2]]]
    assert sorted(found + [one.row for one in twice.unused]) == [12, 13]
    repeated = asked.at_address(Address("articles", 0, 10), most=5)
    assert repeated.unused[0].same_text_as == ("articles", 0, 4)
    told = "\n".join(exposure_lines(repeated.to_json(), 5, None))
    assert "articles/0/10, id" in told and "(of articles/0/4)" in told
    original = asked.at_address(Address("articles", 0, 4), most=5)
    assert addresses(repeated) == addresses(original) and repeated.documents == original.documents
    assert asked.with_id("articles-11", most=5).unused[0].reason == "too_short"
    nothing = (
        asked.at_address(Address("articles", 0, 60), most=5).unused[0],
        asked.at_address(Address("none", 3, 1), most=5).unused[0],
    )
    assert {one.reason for one in nothing} == {"not_planned"} or nothing[0].reason == "no_such_row"
    nobody = asked.with_id("nobody", most=5)
    assert (nobody.documents, nobody.unused) == ((), ())
    told = "\n".join(exposure_lines(nobody.to_json(), 5, None))
    splits = {
        split: len(made.table(f"{split}_documents", ["row"])) for split in ("annotated", "unannotated", "held_out")
    }
    canaries = len(made.table("canary_tokens", ["row"]))
    assert "no document was found" in told and "case counts" in told
    assert "an id is looked for whole: that of a file of text is its path below the folder" in " ".join(told.split())
    assert f"the ids of {sum(splits.values()) + canaries:,} documents" in told and "all 180 that were read" not in told
    assert {**nobody.searched.documents} == {
        **splits,
        "canary": canaries,
        "read": len(made.table("upstream_documents", ["row"])),
        "dropped": len(made.table("dropped_documents", ["row"])),
    }


def test_a_document_that_its_index_does_not_know_is_no_document_that_was_not_drawn(made: TracedJob) -> None:
    """What is in no index is only said to be in no split when no split has it."""
    row = made.table("unannotated_documents", ["source", "shard_index", "row", "id"])[3]
    with pytest.raises(ProvenanceError, match="the index of documents does not know it"):
        unused_at(made.records, Address.of(row))


def test_a_damaged_shard_plan_is_named_with_its_remedy(made: TracedJob) -> None:
    path = made.records.places.path("shard_plan")
    content = path.read_bytes()
    try:
        for damaged in (content[:100], b"", b"[]", b"{}"):
            path.write_bytes(damaged)
            with pytest.raises(
                ProvenanceError, match=r"shard_plan\.json is no shard plan .* Run the pipeline ingestion"
            ):
                planned_parts(made.records.places)
    finally:
        path.write_bytes(content)


def test_a_document_that_was_taken_down_says_so(made: TracedJob, asked: Questions) -> None:
    told = []
    for source, row in sorted(EXCLUDED_ROWS):
        answer = asked.at_address(Address(source, 0, row), most=5)
        told += [one.record.excluded for one in answer.documents] + [one.detail for one in answer.unused]
    assert told == ["asked for"] * len(EXCLUDED_ROWS)


def test_texts_are_found_in_every_split_and_counted_beyond_the_limit(made: TracedJob, asked: Questions) -> None:
    texts = {
        (row["source"], row["shard_index"], row["row"]): row["text"]
        for split in ("annotated", "unannotated", "held_out")
        for row in made.table(f"{split}_documents", ["source", "shard_index", "row", "text"])
    }
    canary = made.table("canary_tokens", ["doc_id", "text"])
    for wanted in ("日本語", "</script>", "notes", "harbour", canary[0]["text"][:30]):
        answer = asked.containing(wanted, most=1000)
        expected = {address for address, text in texts.items() if wanted in text}
        assert {one for one in addresses(answer) if one is not None} == expected
        made_texts = [one.record.id for one in answer.documents if one.record.canary]
        assert sorted(made_texts) == sorted(row["doc_id"] for row in canary if wanted in row["text"])
        few = asked.containing(wanted, most=2)
        assert len(few.documents) + few.more == len(answer.documents) and len(few.documents) <= 2
    with pytest.raises(ProvenanceError, match="an empty text is in every document"):
        asked.containing("", most=1)


def test_what_was_read_of_a_phrase_are_the_reads_of_the_windows_with_its_tokens(made: TracedJob) -> None:
    """Tokens by their bytes in the stored ids, reads by a scan of all samples; of phrases anywhere in a text."""
    opened = made.run(STREAMS, STEPS, BATCH, later_epochs="permuted")
    of = indexes(made, opened)
    seen, records = brute_force(opened, of), made.records
    known = {name: documents_of(made.places, name, folder, 64) for name, folder in opened.folders.items()}
    tokenizer = open_tokenizer(made.places.artifacts["tokenizer"], "<|endoftext|>")
    answer = Questions(records, opened.run).at_address(Address("articles", 0, 4), most=1)
    drawn, states = numpy_generator(11), Counter[str]()
    encoded = {split: made.table(f"{split}_tokens", ["tokens"]) for split in ("unannotated", "annotated")}
    for split in ("unannotated", "annotated") * 24:
        number = int(drawn.integers(len(encoded[split])))
        place = StoreRow(*of["compact" if split == "unannotated" else split].numbers.row(number))
        ((_, document),) = records.texts_at({0: place}, {0: number})
        text, ids = document.text, encoded[split][number]["tokens"]
        if document.record.excluded is not None or len(text) < 20:
            continue
        ends = np.cumsum([len(bytes_of_token(tokenizer, one)) for one in ids[:-1]])
        cuts = [one[5] for one in seen.get(DocumentPlace(split, number), []) if one[5]]
        at = (cuts or [len(ends)])[0] if drawn.integers(2) else len(ends)  # where a window begins, or the cap is
        near = len(text.encode()[: ends[at - 1]].decode(errors="ignore")) - 2
        start = int(drawn.integers(len(text) - 8) if drawn.integers(2) else min(max(near, 0), len(text) - 3))
        phrase = text[start : start + int(drawn.integers(3, 9))]
        asked_for = DocumentPlace(split, number)
        found = document_exposure([RunDocuments(opened, known)], asked_for, document, phrase=phrase, most=1000)
        assert found.occurrences is not None and found.more == 0
        starts = [k for k in range(len(text)) if text.startswith(phrase, k)]
        assert [one.characters for one in found.occurrences] == [(k, k + len(phrase)) for k in starts]
        (whole,) = found.streams
        assert whole.tokens == (0, len(ids)) and whole.whole == (int(ends[-1]) == len(text.encode()))
        for occurrence in found.occurrences:
            (part,) = occurrence.streams
            first, last = (len(text[:k].encode()) for k in occurrence.characters)
            touched = [k for k, end in enumerate(ends) if end > first and (ends[k - 1] if k else 0) < last]
            told = "\n".join(exposure_lines(replace(answer, documents=(found,)).to_json(), 1000, None))
            if not touched:
                assert (part.tokens, part.reason) == (None, "not_in_stream")
                assert (occurrence.held, occurrence.exposures) == ((), ())
                assert "beyond the cap: in no stream" in told and "it was never read" in told
                states["beyond"] += 1
                continue
            assert part.tokens == (touched[0], touched[-1] + 1)
            assert part.whole == (ends[-1] >= last)
            assert part.whole or "in part" in told
            states["whole" if part.whole else "in part"] += 1
            expected = [
                (sample, window, max(begin, touched[0]), min(end, touched[-1] + 1))
                for sample, _, window, _, _, begin, end in seen.get(DocumentPlace(split, number), [])
                if begin <= touched[-1] and end > touched[0]
            ]
            reads = [(one.sample, one.held.window, one.held.first, one.held.end) for one in occurrence.exposures]
            assert sorted(reads) == sorted(expected)
            for one in occurrence.exposures:
                at = slice(one.held.at, one.held.at + one.tokens)
                row = opened.windows.read_batch(one.step)[0][one.sequence]
                assert row[at].tolist() == ids[one.held.first : one.held.end]
            states["cut by a window"] += any(read[2:] != part.tokens for read in reads)
            states["not in every read"] += len(reads) < len(seen.get(DocumentPlace(split, number), []))
    assert min(states[one] for one in ("beyond", "whole", "in part", "cut by a window", "not in every read")) > 0, (
        states
    )


def test_of_a_text_that_was_taken_down_no_read_is_told(made: TracedJob, asked: Questions) -> None:
    row = next(
        row
        for split in ("annotated", "unannotated")
        for row in made.table(f"{split}_documents", ["source", "row", "text"])
        if (row["source"], row["row"]) in EXCLUDED_ROWS
    )
    answer = asked.containing(row["text"][:12], most=1000)
    (found,) = [one for one in answer.documents if one.record.address == (row["source"], 0, row["row"])]
    assert found.occurrences is not None
    for occurrence in found.occurrences:
        assert {one.reason for one in occurrence.streams} == {"taken_down"} and occurrence.exposures == ()


def test_what_was_read_of_a_stream_that_is_gone_is_told_by_its_index(made: TracedJob, tmp_path: Path) -> None:
    """As after a take-down: the windows, samples and counts of before, and that no id was compared."""
    opened = made.run(STREAMS, STEPS, BATCH, later_epochs="permuted")
    lacking = {name: path for name, path in made.places.paths.items() if not name.startswith("compact_")}
    shutil.copytree(
        made.places.paths["compact_index"], tmp_path / "former_indexes" / made.digest("compact_stream")[:16]
    )
    places = Places({**lacking, "compact_index": tmp_path / "compact_index"}, "test")
    before, after = Questions(made.records, opened.run), Questions(DocumentRecords(places), opened.run)
    for row in range(0, 60, 4):
        for source in ("articles", "open"):
            then, now = (one.at_address(Address(source, 0, row), most=1) for one in (before, after))
            assert len(then.documents) == len(now.documents)
            for first, second in zip(then.documents, now.documents, strict=True):
                if first.record.excluded is None:
                    assert (first.held, first.exposures) == (second.held, second.exposures)
    assert "was made again since" in "\n".join(exposure_lines(now.to_json(), 5, None))
    there, gone = (trace_step(open_run(one, opened.run, {}), DocumentRecords(one), 3) for one in (made.places, places))
    assert not all(one.window.ids_known for one in gone)
    for one, other in zip(there, gone, strict=True):
        assert (one.sample, one.window.window) == (other.sample, other.window.window)
        assert [(span.at, span.end, span.first, span.record) for span in one.window.spans] == [
            (span.at, span.end, span.first, span.record) for span in other.window.spans
        ]
        if not other.window.ids_known:
            assert "no id was compared" in "\n".join(sequence_lines(other.to_json(), "it"))
            assert other.to_json()["ids_compared"] is False
            with pytest.raises(ProvenanceError, match="which token stood at a position is not known"):
                token_at(other, 3)
            with pytest.raises(ProvenanceError, match="no tokens that a page could show"):
                batch_page([other], "it")


def test_phrases_of_a_stream_that_is_gone_are_found_as_the_one_that_has_its_name_was_encoded(
    made: TracedJob, tmp_path: Path
) -> None:
    statistics, digest = made.places.artifacts["annotated_stream"].statistics, "f" * 64
    planned = plan_artifact(
        index_padded_stream,
        lengths=made.job.catalog.load("annotated_tokens"),
        split="annotated",
        stream=MadeStream(digest, statistics),
        seq_length=64,
        seed=made.job.catalog.load("params:tokenization").seed,
    )
    ArtifactStore(tmp_path / "former_indexes" / digest[:16]).save(planned)
    places = Places({**made.places.paths, "chat_index": tmp_path / "chat_index"}, "test")
    now = made.run({"annotated": "annotated_stream"}, STEPS, BATCH).run
    former = replace(now, streams=(("annotated", digest),))
    answers = [
        Questions(DocumentRecords(places), run).containing("naïve", most=1000).documents for run in (now, former)
    ]
    assert [one.to_json() for one in answers[0]] == [one.to_json() for one in answers[1]]
    assert any(occurrence.exposures for one in answers[1] for occurrence in one.occurrences or ())


def test_a_trained_checkpoint_says_what_it_read(made: TracedJob, asked: Questions) -> None:
    """The recipe in its ledger and the folders of its run, without anything that was logged."""
    run = find_run(made.places, "checkpoint", made.checkpoint_folders)
    assert (run.steps, run.batch_size, run.seq_length) == (7, 3, 64)
    assert run.streams == (("compact", made.digest("compact_stream")), ("annotated", made.digest("annotated_stream")))
    assert [step for step, _ in run.checkpoints] == [3, 6, 7]
    folder = next(path for step, path in run.checkpoints if step == 3)
    earlier = find_run(made.places, folder)
    assert (earlier.steps, earlier.checkpoints, earlier.digest) == (3, run.checkpoints[:1], run.digest)
    at_path = find_run(made.places, str(made.places.paths["checkpoint"]))
    assert at_path.checkpoints == run.checkpoints
    with pytest.raises(ProvenanceError, match=r"Checkpoints of the environment 'test': .*'checkpoint'"):
        find_run(made.places, "nowhere")
    with pytest.raises(ProvenanceError, match="not by a training of this project"):
        describe_run("x", made.places.artifacts["tokenizer"])


def test_a_finetuned_checkpoint_has_the_past_of_the_one_that_it_began_from(made: TracedJob, asked: Questions) -> None:
    tuned = Questions(
        made.records,
        find_run(made.places, "finetuned_checkpoint", made.checkpoint_folders),
        {},
        made.checkpoint_folders,
    )
    both = 0
    for row in range(60):
        before, after = (one.at_address(Address("notes", 0, row), most=5) for one in (asked, tuned))
        for first, second in zip(before.documents, after.documents, strict=True):
            earlier = [one for one in second.exposures if one.run == "checkpoint"]
            assert [one.sample for one in earlier] == [one.sample for one in first.exposures]
            last = second.checkpoints[-1]
            assert (last.step, last.times) == (12, len(second.exposures))
            both += bool(earlier) and len(second.exposures) > len(earlier)
    assert both, "some documents were read in both"
    assert [one.name for one in after.runs] == ["checkpoint", "finetuned_checkpoint"]
    assert "begun from checkpoint (7 steps)" in "\n".join(exposure_lines(after.to_json(), 5, None))


def test_a_past_of_which_the_streams_are_gone_is_said_and_not_counted(made: TracedJob) -> None:
    gone = ("compact_stream", "compact_index")
    paths = {name: path for name, path in made.places.paths.items() if name not in gone}
    records = DocumentRecords(Places(paths, "test"))
    tuned = Questions(records, find_run(records.places, "finetuned_checkpoint"))
    answer = tuned.containing("B: ", most=50)
    assert [one.name for one in answer.runs] == ["finetuned_checkpoint"]
    assert "what checkpoint read, and what it began from, is not counted here" in answer.notes[0]
    assert {one.run for document in answer.documents for one in document.exposures} == {"finetuned_checkpoint"}
    with pytest.raises(ProvenanceError, match="checkpoint read the stream 'compact' with the digest"):
        Questions(records, find_run(records.places, "checkpoint"))


@pytest.fixture(scope="module")
def project(made: TracedJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder whose environment ``traced`` is the small job."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (folder / "conf" / "traced").mkdir(parents=True)
    (folder / "conf" / "base").symlink_to(ROOT / "conf" / "base")
    (folder / "conf" / "traced" / "globals.yml").write_text(json.dumps({"data": str(made.job.data)}))
    base = yaml.safe_load((ROOT / "conf" / "base" / "parameters_ingestion.yml").read_text())["ingestion"]["sources"]
    sources = {**dict.fromkeys(base), **made.job.parameters["ingestion"]["sources"]}
    (folder / "conf" / "traced" / "parameters_ingestion.yml").write_text(
        json.dumps({"ingestion": {"sources": sources}})
    )
    return folder


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(project)
    yield


def ask(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--env", "traced"])
    assert result.exit_code == code, result.output
    return result.output


def test_the_commands_answer_in_lines_and_in_json(inside: None) -> None:
    step = json.loads(ask("trace", "--step", "5", "--json"))
    assert (step["run"], len(step["sequences"])) == ("checkpoint", 3)
    (document, *_) = step["sequences"][1]["documents"]
    address = document["document"]["address"]
    found = json.loads(ask("exposure", "--address", address, "--json"))
    assert [one for one in found["documents"][0]["exposures"] if (one["step"], one["sequence"]) == (5, 1)]
    assert {"times", "tokens_seen", "first_step", "last_step", "checkpoints"} <= set(found["documents"][0])
    lines = ask("trace", "--step", "5", "--sequence", "1", "--position", "2", "--text")
    assert document["document"]["path"] in lines and "sample 16 is window" in lines and "[[[" in lines
    assert "it counts in the loss, as the target of prediction 1" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trace"], "give --step"),
        (["trace", "--stream", "compact"], "give --step"),
        (["trace", "--step", "1", "--position", "2"], "give --sequence"),
        (["trace", "--stream", "none", "--window", "1"], "there is no stream 'none'"),
        (["trace", "--stream", "compact", "--window", "0", "--seq-length", "99"], "--seq-length is 99, expected"),
        (["trace", "--step", "1", "--run", "none"], "there is no run 'none'"),
        (["trace", "--step", "1", "--streams", "x=/tmp"], "none named 'x'"),
        (["exposure"], "give one of"),
        (["exposure", "--address", "web/1"], "expected SOURCE/FILE/ROW"),
        (["exposure", "--id", "1", "--text-contains", "2"], "give one of"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(inside: None, arguments: list[str], message: str) -> None:
    assert message in ask(*arguments, code=2 if "give" in message or "expected" in message else 1)


def test_an_answer_imports_only_what_it_reads_with(project: Path) -> None:
    script = (
        "import sys\nfrom everytoken.cli import cli\n"
        "try: cli(['trace', '--step', '2', '--env', 'traced'])\nexcept SystemExit as end: assert not end.code\n"
        "import os; print('\\n' + ' '.join(sys.modules), os.environ['OPENBLAS_NUM_THREADS'] + '-thread')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=project)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert {"numpy", "everytoken.provenance.lookup.runs", "1-thread"} <= loaded
    makes = {
        "everytoken.corpus.ingestion.source",
        "everytoken.corpus.sampling.splits",
        "everytoken.reflections.splicing",
        "everytoken.tokens.canary.encode",
        "everytoken.tracking",
    }
    heavy = {"torch", "mlflow", "pandas", "plotly", "sklearn", "kedro", "omegaconf", "scipy", "pyarrow.compute"}
    assert not loaded & (heavy | makes)


def test_a_run_that_mlflow_recorded_is_the_run_that_its_checkpoint_describes(made: TracedJob) -> None:
    """Where the checkpoint was made again since: from the parameters and the beginnings of the digests."""
    parameters = {
        name: made.job.catalog.load(f"params:{name}").model_dump(mode="json")
        for name in ("training", "finetuning", "tokenization")
    }
    for checkpoint in ("checkpoint", "finetuned_checkpoint"):
        expected = find_run(made.places, checkpoint)
        read = ["compact_stream", "annotated_stream", "checkpoint", "chat_windows", checkpoint]
        recorded = recorded_run(made.places, "it", parameters, {name: made.digest(name)[:16] for name in read})
        if checkpoint == "checkpoint":
            recorded = recorded_run(
                made.places,
                "it",
                parameters,
                {name: made.digest(name)[:16] for name in (*STREAMS.values(), checkpoint)},
            )
        for name in ("streams", "data", "batch_size", "seq_length", "steps", "special_tokens_in_text", "initial"):
            assert getattr(recorded, name) == getattr(expected, name), name
    with pytest.raises(ProvenanceError, match="no checkpoint of which streams and parameters are recorded"):
        recorded_run(made.places, "it", parameters, {"documents": "0" * 16})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exposure", "--id", "\udcff"], "is not UTF-8"),
        (["exposure", "--text-contains", "a\udc80"], "is not UTF-8"),
        (["trace", "--step", "99999999999999999999"], "not in the range"),
    ],
)
def test_what_can_be_no_id_or_step_is_refused_with_a_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2 and message in result.output
