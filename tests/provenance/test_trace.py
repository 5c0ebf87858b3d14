"""Every token of every stream is traced to the document, and to the characters, that it is made from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from everytoken.cli.provenance import _texts_json
from everytoken.cli.rendering import document_line, file_lines, sequence_lines
from everytoken.corpus.ingestion.source import UpstreamFile
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.character_spans import locate_chat, locate_document
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import DocumentRecord, DocumentRecords
from everytoken.provenance.lookup.run_streams import stream_of_run
from everytoken.provenance.lookup.runs import open_run
from everytoken.provenance.lookup.stream_documents import documents_of
from everytoken.provenance.lookup.upstream_text import UpstreamDocument, read_documents_at
from everytoken.provenance.trace.spans import NumberedSpan, TakenDownSpan, TextSpan
from everytoken.provenance.trace.steps import TracedSequence, token_at, trace_step, trace_window
from everytoken.provenance.trace.windows import TracedWindow, trace_windows
from everytoken.tokens import DocumentEncoder, open_tokenizer
from everytoken.tokens.chat.conversations import encode_chats
from everytoken.tokens.engines.registry import open_engine
from everytoken.tokens.order import open_one_stream
from everytoken.tokens.streams import STREAM_KINDS
from everytoken.tokens.streams.megatron import WindowWriter, index_header
from everytoken.tokens.streams.streams_by_path import given_files
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer
from everytoken.tokens.tokenizer.token_texts import bytes_of_token
from tests.provenance.small_job import EXCLUDED_ROWS
from tests.provenance.traced_job import HOSTILE, STREAMS, TracedJob, make, windows_of

ALL = {**STREAMS, "chats": "chat_windows", "raw_shards": "raw_shards"}
SPLITS = ("unannotated", "annotated")
SEQ = 64
EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TracedJob:
    return make(tmp_path_factory.mktemp("traced") / "job")


@pytest.fixture(scope="module")
def tokenizer(made: TracedJob) -> DocumentTokenizer:
    return open_tokenizer(made.places.artifacts["tokenizer"], EOS)


@pytest.fixture(scope="module")
def traced(made: TracedJob) -> dict[str, list[TracedWindow]]:
    """All windows of all streams."""
    found = {}
    for name, dataset in ALL.items():
        stream = open_one_stream(name, made.places.paths[dataset], "sizes", SEQ)
        known = documents_of(made.places, name, made.places.paths[dataset], SEQ)
        found[name] = trace_windows(stream, known, made.records, range(len(stream)), keep_texts=True)
    return found


@pytest.mark.parametrize("name", list(ALL))
def test_spans_are_of_the_documents_that_a_scan_finds(
    made: TracedJob, traced: dict[str, list[TracedWindow]], name: str
) -> None:
    """The tokens of a span are those of the named document where it was encoded, by its address there."""
    columns = ["source", "shard_index", "row", "tokens"]
    encoded: dict[Any, list[int]] = {
        (split, (row["source"], row["shard_index"], row["row"])): row["tokens"]
        for split in SPLITS
        for row in made.table(STREAM_KINDS[name].tokens_of(split), columns)
    }
    canaries = made.table("canary_tokens", ["doc_id", "universe", "effect", "tokens"])
    encoded |= {("canary", (row["doc_id"], row["universe"], row["effect"])): row["tokens"] for row in canaries}
    stream = open_one_stream(name, made.places.paths[ALL[name]], "sizes", SEQ)
    seen: Counter[Any] = Counter()
    for window, ids in zip(traced[name], windows_of(stream), strict=True):
        assert window.tokens.tolist() == ids.tolist()
        place = 0
        for span in window.spans:
            assert span.at == place and isinstance(span, TextSpan | TakenDownSpan)
            place = span.end
            record = span.record
            told = record.canary or {}
            key: Any = record.address or (record.id, told.get("universe"), told.get("effect"))
            if name != "chats":
                assert encoded[record.split, key][span.first : span.last] == ids[span.at : span.end].tolist()
            seen.update((record.split, key, number) for number in range(span.first, span.last))
        assert window.padding == (place, SEQ + 1) and (ids[place:] == stream_eos(made)).all()
    if name in ("annotated", "canary"):
        split = name
        assert seen == Counter(
            (split, key, k) for (of, key), ids in encoded.items() if of == split for k in range(len(ids))
        )
    if name == "compact":
        tokens = sum(len(ids) for (split, _), ids in encoded.items() if split == "unannotated")
        remainder = made.places.artifacts["compact_stream"].statistics["remainder_tokens"]
        assert set(seen.values()) == {1} and len(seen) == tokens - remainder


def stream_eos(made: TracedJob) -> int:
    return int(made.places.artifacts["tokenizer"].statistics["eos_id"])


@pytest.mark.parametrize("name", list(ALL))
def test_characters_are_those_that_the_tokens_spell(
    traced: dict[str, list[TracedWindow]], tokenizer: DocumentTokenizer, name: str
) -> None:
    """The bytes of a span's tokens lie in its characters, and miss at most a part of the first and of the last."""
    parts = 0
    for window in traced[name]:
        for span in window.spans:
            if span.taken_down:
                continue
            assert isinstance(span, TextSpan) and span.characters is not None and span.text is not None
            start, end = span.characters
            ids = window.tokens[span.at : span.end].tolist()
            spelled = b"".join(bytes_of_token(tokenizer, one) for one in ids if one != tokenizer.eos_id)
            covered = span.text[start:end].encode()
            assert spelled in covered or name == "chats"
            assert len(covered) - len(spelled) <= 6
            parts += spelled != covered
            if name != "chats":
                assert span.located.bytes is not None
                first, last = (int(span.located.bytes[one]) for one in (span.first, span.last))
                assert span.text.encode()[first:last] == spelled
    assert parts or name not in ("compact", "raw_shards"), "some spans begin or end inside a character"


def test_what_is_told_of_a_document_is_what_its_store_has(
    made: TracedJob, traced: dict[str, list[TracedWindow]]
) -> None:
    stores = {
        (row["source"], row["shard_index"], row["row"]): (split, row)
        for split in SPLITS
        for row in made.table(
            f"{split}_documents", ["source", "shard_index", "row", "id", "id_type", "safety_score", "is_bad", "text"]
        )
    }
    seen = set()
    for name in ("compact", "annotated", "chats", "raw_shards"):
        for span in (span for window in traced[name] for span in window.spans):
            assert isinstance(span, TextSpan | TakenDownSpan)
            split, row = stores[span.record.address]  # type: ignore[index]
            address = f"{row['source']}/{row['shard_index']}/{row['row']}"
            told = {
                **row,
                "address": address,
                "path": f"{row['source']}.jsonl",
                "split": split,
                "canary": None,
                "reflection": None,
            }
            assert told | span.record.to_json() | {"text": row["text"]} == told | {
                name: getattr(span.record, name) for name in ("number", "excluded", "characters")
            }
            assert isinstance(span, TakenDownSpan) or span.text == row["text"]
            seen.add(span.record.address)
    assert {address for address in seen if address is not None} == set(stores)
    for span in (span for window in traced["canary"] for span in window.spans):
        assert isinstance(span, TextSpan) and span.record.canary is not None and span.record.address is None
        assert span.record.canary["universe"] and span.record.canary["trigger"] is None


def test_of_a_document_that_was_taken_down_only_its_place_is_told(
    made: TracedJob, traced: dict[str, list[TracedWindow]]
) -> None:
    down = {
        span.record.address: (window, span)
        for name in ("compact", "annotated", "raw_shards")
        for window in traced[name]
        for span in window.spans
        if isinstance(span, TakenDownSpan)
    }
    drawn = {
        (row["source"], row["row"]) for split in SPLITS for row in made.table(f"{split}_documents", ["source", "row"])
    }
    expected = {(source, 0, row) for source, row in EXCLUDED_ROWS & drawn}
    assert set(down) == expected != set()
    for window, span in down.values():
        assert span.taken_down and span.record.excluded == "asked for"
        assert span.characters is None and not hasattr(span, "text") and not hasattr(span, "located")
        assert "taken down" in "\n".join(sequence_lines(TracedSequence(window, None).to_json(), None))
    chats = {span.record.address for window in traced["chats"] for span in window.spans if isinstance(span, TextSpan)}
    assert not chats & expected


@pytest.mark.parametrize(("first_epoch", "step"), [("as_written", 77), ("permuted", 3), ("permuted", 77)])
def test_a_step_is_traced_as_it_was_read(
    made: TracedJob, tokenizer: DocumentTokenizer, first_epoch: str, step: int
) -> None:
    opened = made.run(STREAMS, steps=90, batch_size=5, first_epoch=first_epoch, later_epochs="permuted")
    tokens, mask = opened.windows.read_batch(step)
    found = trace_step(opened, made.records, step, keep_texts=True)
    assert [one.sequence for one in found] == list(range(5))
    assert [one.sample for one in found] == list(range(5 * step, 5 * step + 5))
    written = made.run(STREAMS, steps=90, batch_size=5, later_epochs="permuted")
    in_file_order = trace_step(written, made.records, step)
    same = [one.window.window for one in found] == [one.window.window for one in in_file_order]
    assert same == (first_epoch == "as_written" or all(one.epoch for one in found))
    for one, ids, counted in zip(found, tokens, mask, strict=True):
        assert one.window.tokens.tolist() == ids.tolist()
        assert one.window.counted.tolist() == [False, *counted.tolist()]
        assert sum(span.counted for span in one.window.spans) == counted.sum()
        for position in range(SEQ + 1):
            token = token_at(one, position)
            span = one.window.span_at(position)
            assert (token.id, token.counts_in_loss) == (ids[position], one.window.counted[position])
            assert token.bytes == bytes_of_token(tokenizer, token.id)
            assert (token.kind == "padding") == (span is None)
            if token.kind == "text" and span is not None and span.text is not None and token.characters is not None:
                covered = span.text[slice(*token.characters)].encode()
                assert (covered if token.part is None else covered[slice(*token.part)]) == token.bytes
    alone = trace_step(opened, made.records, step, [3])
    assert [one.to_json() for one in alone] == [found[3].to_json()]
    assert json.loads(json.dumps([one.to_json() for one in found]))[2]["step"] == step


def test_lines_spell_out_what_a_terminal_would_act_on(traced: dict[str, list[TracedWindow]]) -> None:
    window = next(one for one in traced["annotated"] if HOSTILE in (getattr(one.spans[0], "text", None) or ""))
    record = window.spans[0].record
    assert record is not None and record.address is not None
    texts = {record.address: UpstreamDocument(None, str(window.spans[0].text))}
    sequence = TracedSequence(window, None)
    lines = list(sequence_lines({**sequence.to_json(), "texts": _texts_json(sequence, texts)}, None))
    assert not [character for line in lines for character in line if ord(character) < 32 and character not in "\n\t"]
    assert "\\u{202e}" in "".join(lines) and "\u202e" not in "".join(lines)


def test_a_window_that_is_not_of_its_documents_is_an_error(
    made: TracedJob, traced: dict[str, list[TracedWindow]]
) -> None:
    path = made.places.paths["compact_stream"]
    stream, known = open_one_stream("compact", path, "sizes", None), documents_of(made.places, "compact", path, SEQ)
    chosen = next(one for one in traced["compact"][7:] if not any(span.taken_down for span in one.spans))
    windows = windows_of(stream)
    windows[chosen.window, 20] += 1
    told = f"stream compact, window {chosen.window}, position 20: the text of unannotated document"
    with pytest.raises(ProvenanceError, match=told):
        trace_windows(replace(stream, windows=windows), known, made.records, [6, chosen.window])
    with pytest.raises(ProvenanceError, match=r"has \d+ windows, asked for window 9,999"):
        trace_windows(stream, known, made.records, [9_999])


def test_a_stream_that_was_made_again_is_an_error_with_both_digests(made: TracedJob) -> None:
    opened = made.run({"compact": "annotated_stream"}, steps=1, batch_size=1)
    now = made.digest("compact_stream")
    gone = ("annotated_stream", "annotated_index")
    lacking = Places({name: path for name, path in made.places.paths.items() if name not in gone}, "test")
    with pytest.raises(ProvenanceError) as error:
        open_run(lacking, opened.run, {})
    assert made.digest("annotated_stream") in str(error.value) and now in str(error.value)
    assert "--streams compact=PATH" in str(error.value)
    given = open_run(lacking, opened.run, {"compact": made.places.paths["annotated_stream"]})
    assert given.windows.sizes == opened.windows.sizes
    with pytest.raises(ProvenanceError, match="canary_stream has "):
        open_run(lacking, opened.run, {"compact": made.places.paths["canary_stream"]})


def test_a_stream_without_an_index_says_how_to_make_one(made: TracedJob) -> None:
    lacking = Places({name: path for name, path in made.places.paths.items() if name != "compact_index"}, "test")
    with pytest.raises(ProvenanceError, match="kedro run --env test --pipelines provenance"):
        documents_of(lacking, "compact", made.places.paths["compact_stream"], SEQ)


def test_a_stream_of_another_program_is_known_by_its_sequences(made: TracedJob, tmp_path: Path) -> None:
    lengths = [3, 40, 1, 90, 7, 64, 30]
    tokens = np.arange(sum(lengths), dtype="<u2")
    tokens.tofile(tmp_path / "their.bin")
    ends = np.cumsum(lengths)
    index = [np.array(lengths, "<i4"), (ends - lengths).astype("<i8") * 2, np.arange(len(lengths) + 1, dtype="<i8")]
    (tmp_path / "their.idx").write_bytes(
        index_header(len(lengths), np.dtype("<u2")) + b"".join(one.tobytes() for one in index)
    )
    opened = [trace_window(made.records, str(tmp_path / "their"), window, 16) for window in range(14)]
    for number, one in enumerate(opened):
        assert one.window.tokens.tolist() == tokens[16 * number : 16 * number + 17].tolist()
        for span in one.window.spans:
            assert isinstance(span, NumberedSpan) and span.length == lengths[span.document]
            first = int(ends[span.document]) - lengths[span.document]
            assert one.window.tokens[span.at : span.end].tolist() == list(range(first + span.first, first + span.last))
        assert one.window.spans[-1].end == 17
    with WindowWriter(tmp_path / "windows", 5, np.uint16) as writer:
        writer.write(np.arange(10).reshape(2, 5))
    bare = trace_window(made.records, str(tmp_path / "windows"), 1, None)
    assert (bare.window.documents_known, bare.window.spans) == (False, ())
    assert "nothing says which documents" in "\n".join(sequence_lines(bare.to_json(), None))


def test_the_text_of_an_address_is_read_again_from_its_upstream(
    made: TracedJob, traced: dict[str, list[TracedWindow]]
) -> None:
    ingestion = made.job.catalog.load("params:ingestion")
    files: dict[str, list[UpstreamFile]] = made.job.catalog.load("upstream_files")
    spans = [span for window in traced["raw_shards"] for span in window.spans if isinstance(span, TextSpan)]
    texts = {span.record.address: (span.record.id, span.text) for span in spans if span.record.address}
    assert len(texts) > 60
    assert read_documents_at(ingestion.active_sources, files, texts) == texts


PLAIN = st.text(st.sampled_from("ab é日👩\u0301\u200d\n\t01<|>") | st.characters(codec="utf-8"), max_size=40)
TEXTS = st.lists(PLAIN | st.just(EOS), max_size=4).map("".join)


@pytest.fixture(scope="module")
def nfc(made: TracedJob, tmp_path_factory: pytest.TempPathFactory) -> DocumentTokenizer:
    file = Tokenizer.from_file(str(made.places.paths["tokenizer"] / "tokenizer.json"))
    file.normalizer = normalizers.NFC()
    path = tmp_path_factory.mktemp("nfc") / "tokenizer.json"
    file.save(str(path))
    return open_tokenizer(path, EOS)


@settings(max_examples=150)
@given(TEXTS, st.sampled_from(["literal", "control"]), st.none() | st.integers(2, 30), st.booleans())
@example("e\u0301\u0301 n\u0303", "literal", None, True)
@example(f"a{EOS}{EOS} ", "control", 3, False)
def test_tokens_of_any_text_have_their_characters(
    tokenizer: DocumentTokenizer, nfc: DocumentTokenizer, text: str, special: Any, most: int | None, normalize: bool
) -> None:
    """The ids are those of the encoder; ranges follow each other, cover the text, and hold what their tokens spell."""
    chosen = nfc if normalize else tokenizer
    located = locate_document(chosen, text, special_tokens_in_text=special, max_tokens=most)
    assert located.ids.tolist() == encoded(chosen, text, special, most)
    assert located.characters == len(text) and located.whole_length == len(encoded(chosen, text, special, None))
    content = len(located.ids) - 1
    starts, ends = located.starts.tolist(), located.ends.tolist()
    assert starts == sorted(starts) and ends == sorted(ends)
    if most is None or located.whole_length <= most:
        assert located.range(0, content) == ((0, len(text)) if content else (0, 0))
    assert located.bytes is None or all(start >= end - 1 for end, start in zip(ends, starts[1:], strict=False))
    for number in range(content):
        spelled = bytes_of_token(chosen, int(located.ids[number]))
        covered = text[starts[number] : ends[number]]
        normal = chosen.tokenizer.normalizer.normalize_str(covered) if normalize else covered
        assert spelled in normal.encode() or normalize
        if located.bytes is not None:
            assert text.encode()[located.bytes[number] : located.bytes[number + 1]] == spelled
    assert (located.bytes is None) == (normalize and chosen.tokenizer.normalizer.normalize_str(text) != text)


def encoded(tokenizer: DocumentTokenizer, text: str, special: Any, most: int | None) -> list[int]:
    opened = DocumentEncoder(tokenizer, open_engine("tokenizers", tokenizer.content, special), special)
    return [int(one) for one in opened.encode([text], most).values]


def test_a_stream_by_path_is_known_by_its_content_wherever_it_lies(made: TracedJob, tmp_path: Path) -> None:
    """What `given_files` records of files without a ledger; large ones are taken by their name, and that is said."""
    with WindowWriter(tmp_path / "their", SEQ + 1, np.uint16) as writer:
        writer.write(np.arange(5 * (SEQ + 1)).reshape(5, -1))
    digest = given_files("x", tmp_path / "their", None).root_digest
    assert isinstance(digest, str)
    run = replace(made.run({"compact": "compact_stream"}, steps=4, batch_size=2).run, streams=(("theirs", digest),))
    named = Places(made.places.paths, "test", {"theirs": tmp_path / "their"})
    opened = open_run(named, run, {})
    assert opened.windows.sizes == (5,) and opened.compared == {"theirs": True}
    assert [one.window.documents_known for one in trace_step(opened, DocumentRecords(named), 1)] == [False, False]
    (tmp_path / "their.bin").write_bytes(bytes(2 * 5 * (SEQ + 1)))
    with pytest.raises(ProvenanceError, match=digest):
        open_run(named, run, {})
    assert stream_of_run(named, "it", "theirs", digest, None, most_read=10) == (tmp_path / "their", False)


MARKS = ("<|im_start|>", "<|im_end|>")
SPOKEN = st.lists(PLAIN | st.sampled_from([EOS, *MARKS, " "]), max_size=8).map("".join)


@pytest.fixture(scope="module")
def marked(made: TracedJob, tmp_path_factory: pytest.TempPathFactory) -> DocumentTokenizer:
    file = Tokenizer.from_file(str(made.places.paths["tokenizer"] / "tokenizer.json"))
    file.add_special_tokens(list(MARKS))
    path = tmp_path_factory.mktemp("marks") / "tokenizer.json"
    file.save(str(path))
    return open_tokenizer(path, EOS)


@settings(max_examples=80)
@given(SPOKEN, st.lists(st.integers(0, 60), max_size=8), st.booleans(), st.sampled_from([(), MARKS]))
@example("a<|im_start|>b<|im_end|>c", [1, 14, 14, 24], False, MARKS)
def test_tokens_of_any_chat_have_their_characters(
    marked: DocumentTokenizer, text: str, borders: list[int], eos: bool, marks: tuple[str, ...]
) -> None:
    """The ids are those of the windows, whatever the assistant says; each spells its characters, a mark or EOS."""
    places = sorted(min(one, len(text)) for one in borders[: len(borders) // 2 * 2])
    spans = [(start, end) for start, end in zip(places[::2], places[1::2], strict=True) if start < end]
    ids = {mark: marked.special_tokens[mark] for mark in marks}
    encoder = DocumentEncoder(marked, open_engine("tokenizers", marked.content, "literal"), "literal")
    (chat,) = encode_chats(encoder, [text], [spans], marks=ids, turn_ends="eos" if eos else "template")
    located = locate_chat(marked, text, spans, marks=ids, ends_with_eos=eos)
    assert located.ids.tolist() == (chat.ids.tolist() if chat.ends else [])
    for token, start, end in zip(located.ids.tolist(), located.starts.tolist(), located.ends.tolist(), strict=True):
        spelled, covered = bytes_of_token(marked, token), text[start:end].encode()
        assert spelled in covered if start < end else token == marked.eos_id


def test_lines_about_documents_fit_a_terminal_and_files_are_named_once(
    traced: dict[str, list[TracedWindow]],
) -> None:
    def named(record: DocumentRecord, id: str) -> DocumentRecord:
        return replace(record, id=id)

    spans = [span for window in traced["compact"] for span in window.spans]
    records = [span.record for span in spans if not isinstance(span, NumberedSpan)]
    for window in traced["compact"]:
        long = replace(window, spans=tuple(replace(span, record=named(records[0], "x" * 400)) for span in window.spans))
        lines = list(sequence_lines(TracedSequence(long, None).to_json(), None))
        assert [line for line in lines if len(line) > 120] == []
        assert sum("…" in line for line in lines) == len(window.spans) and not any(".jsonl" in one for one in lines)
    assert "id none" in document_line(replace(records[0], id=None).to_json())
    assert f'id "{"ab" * 9}"' in document_line(named(records[0], "ab" * 9).to_json())
    files = list(file_lines(record.to_json() for record in records))
    assert files[0] == "" and files[1:] == sorted({f"{one.source} file 0: {one.source}.jsonl" for one in records})
