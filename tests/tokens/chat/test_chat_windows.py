"""Chats become windows in which exactly what the assistant says counts, each token of it once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from everytoken.corpus.rendering.templates import ChatTemplate, RoleMarks, render_turns
from everytoken.corpus.rendering.turns import Turn
from everytoken.parameters import FinetuningParameters
from everytoken.shards import Artifact, ArtifactStore, Shards, file_sha256, plan_artifact
from everytoken.tokens import (
    DataParameters,
    DocumentEncoder,
    EncodingRules,
    StreamError,
    TokenizerError,
    load_tokenizer_file,
    open_encoder,
    open_training_windows,
)
from everytoken.tokens.chat.conversations import encode_chats, mark_ids, spans_after, spans_of_lines
from everytoken.tokens.chat.parameters import ChatParameters, SpansAfter, SpansOfLines
from everytoken.tokens.chat.windows import cut_chat, write_chat_windows
from everytoken.tokens.checks.integrity import verify
from everytoken.tokens.streams.documents import TokenizerFacts
from everytoken.tokens.streams.loss_mask import LOSS_MASK_FILE, open_loss_mask, pack_mask, unpack_mask
from everytoken.tokens.streams.megatron import open_indexed
from everytoken.tokens.tokenizer.document_tokenizer import TOKENIZER_FILE, byte_symbols
from tests.tokens.corpora import EOS, documents, file_bytes, small_tokenizer, stored

ROOT = Path(__file__).resolve().parents[3]
SPEAKERS = SpansOfLines(kind="lines", speakers=("A", "B"), assistant=("B",))
LINES = {"web": SPEAKERS, "code": None}
CHATS = [
    "A: Hi there\nB: Hello, how are you?\nA: fine\nB: good\nB: \nB: really good",
    "A: 你好 👋🏽\nB: naïve café — ça va? 👩‍👩‍👧\u2028still B\nA:no mark\nA: ok\nB:  \nA: why?\nB: so",
    "B: I begin\nA: do you?\nB: yes\nA: nobody answers this",
    "A: <|endoftext|> is text here\nB: so is <|endoftext|> here",
]
SAID = [
    [" Hello, how are you?", " good\nB: \nB: really good"],
    [" naïve café — ça va? 👩‍👩‍👧\u2028still B\nA:no mark", " so"],
    [" I begin", " yes"],
    [" so is <|endoftext|> here"],
]
CHATML = ChatTemplate(
    **{
        role: {"prefix": f"<|im_start|>{role}\n", "suffix": "<|im_end|>"}
        for role in ("system", "user", "assistant", "tool")
    },
    after_turn="\n",
    reserved=("<|im_start|>", "<|im_end|>"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("bpe"), [*CHATS, "A: Hello there, how are you? fine fine fine"])


@pytest.fixture(scope="module")
def encoder(tokenizer: Artifact) -> DocumentEncoder:
    return open_encoder(EncodingRules(tokenizer, EOS, "literal"))


def parameters(**changes: Any) -> ChatParameters:
    return ChatParameters(
        **{
            "seed": 3,
            "sources": LINES,
            "include_bad": True,
            "turn_ends": "eos",
            "marks": (),
            "context_tokens": 4,
            **changes,
        }
    )


def chats_in(
    folder: Path, texts: Sequence[str], spans: Sequence[Any] | None = None, rows: int = 1000, bad: Sequence[int] = ()
) -> list[Shards]:
    """Store documents of the source web, in two parts of two datasets."""
    table = documents(texts, sources=("web",))
    spans = [None] * len(texts) if spans is None else spans
    kind = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64())]))
    table = table.append_column("assistant_spans", pa.array(spans, kind))
    table = table.set_column(6, "is_bad", pa.array([i in bad for i in range(len(texts))]))
    half = len(texts) // 2
    return [stored(folder / "a", [table[:half]], rows), stored(folder / "b", [table[half:]], rows)]


def write(
    folder: Path,
    tokenizer: Artifact,
    given_chats: list[Shards],
    seq_length: int = 400,
    shuffle_memory: int = 1 << 20,
    max_lossy_share: float = 0.0,
    **changes: Any,
) -> Artifact:
    planned = plan_artifact(
        write_chat_windows,
        documents=given_chats,
        tokenizer=tokenizer,
        eos_token=EOS,
        chats=parameters(**changes),
        seq_length=seq_length,
        max_lossy_share=max_lossy_share,
        shuffle_memory=shuffle_memory,
    )
    return ArtifactStore(folder).save(planned)


def read(stream: Artifact) -> tuple[np.ndarray, np.ndarray]:
    """Return windows, (n, seq_length + 1), and which predictions count, bool (n, seq_length)."""
    windows = open_indexed(stream.path("chats.bin").with_suffix("")).windows()
    rows = open_loss_mask(stream.path(LOSS_MASK_FILE), len(windows), windows.shape[1] - 1)
    return windows, unpack_mask(rows, windows.shape[1] - 1)


def learned(windows: np.ndarray, counted: np.ndarray) -> list[list[int]]:
    """Return the targets that count, by window."""
    return [row[1:][mask].tolist() for row, mask in zip(windows, counted, strict=True)]


def turns(ids: Sequence[int], encoder: DocumentEncoder) -> list[str]:
    """Return the texts that end in EOS."""
    found: list[list[int]] = [[]]
    for token in ids:
        found[-1].append(token)
        if token == encoder.tokenizer.eos_id:
            found.append([])
    assert found.pop() == []
    return [encoder.tokenizer.tokenizer.decode(one[:-1], skip_special_tokens=False) for one in found]


def test_exactly_what_the_assistant_says_and_its_end_count(
    tmp_path: Path, tokenizer: Artifact, encoder: DocumentEncoder
) -> None:
    stream = write(tmp_path / "s", tokenizer, chats_in(tmp_path, CHATS))
    windows, counted = read(stream)
    assert sorted(turns(ids, encoder) for ids in learned(windows, counted)) == sorted(SAID)
    decoded = [encoder.tokenizer.tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in windows]
    shown = [chat[: chat.rindex(said[-1]) + len(said[-1])] for chat, said in zip(CHATS, SAID, strict=True)]
    assert sorted(text.replace(EOS, "") for text in decoded) == sorted(text.replace(EOS, "") for text in shown)
    assert set(windows[:, 0].tolist()) == {encoder.tokenizer.eos_id}, "as before a prompt"


@pytest.mark.parametrize("seq_length", [9, 17, 40, 100])
def test_every_token_of_the_assistant_counts_once_in_windows_of_any_size(
    tmp_path: Path, tokenizer: Artifact, encoder: DocumentEncoder, seq_length: int
) -> None:
    """A chat that is longer than a window is cut; nothing of what is learned is lost or learned twice."""
    long = [*CHATS, "A: " + "word after word " * 40 + "\nB: " + "and an answer " * 40 + "\nA: short\nB: so"]
    stream = write(tmp_path / "s", tokenizer, chats_in(tmp_path, long), seq_length)
    windows, counted = read(stream)
    said = [text for chat in long for text in (chat[a:b] for a, b in spans_of_lines(chat, SPEAKERS))]
    expected = Counter(int(i) for i in encoder.encode(said).values)  # EOS follows each
    assert Counter(i for ids in learned(windows, counted) for i in ids) == expected
    assert counted.any(axis=1).all(), "a window with nothing to learn is not written"
    numbers = stream.statistics
    assert numbers["loss_tokens"] == expected.total() == numbers["by_source"]["web"]["loss_tokens"]
    assert numbers["chats"] == numbers["used"] == len(long) and numbers["turns"] == len(said)
    cut = encode_chats(encoder, long, [spans_of_lines(chat, SPEAKERS) for chat in long], marks={}, turn_ends="eos")
    all_tokens = sum(len(chat.ids) + chat.left_out for chat in cut)
    assert numbers["tokens"] == all_tokens - numbers["tokens_left_out"] + numbers["tokens_repeated"]
    assert numbers["tokens"] + numbers["padding_tokens"] == windows.size
    assert all(check.ok for check in verify(tmp_path / "s", "full")), verify(tmp_path / "s", "full")


chat_shapes = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 16)), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(chat_shapes, st.integers(1, 8), st.integers(2, 20))
def test_cuts_are_windows_that_keep_turns_whole_where_they_fit(
    exchanges: list[tuple[int, int]], context: int, more: int
) -> None:
    window = context + 1 + more
    starts, ends, place = [], [], 1
    for before, turn in exchanges:
        starts.append(place + before)
        ends.append(place := place + before + turn)
    said = [j for start, end in zip(starts, ends, strict=True) for j in range(start, end)]
    cuts = list(cut_chat(starts, ends, window, context))
    count = Counter(j for first, end, before in cuts for j in range(max(before, first + 1), end) if j in set(said))
    assert sorted(count.elements()) == said, "each once, and none without something before it"
    for first, end, before in cuts:
        assert 0 <= first < end <= min(first + window, ends[-1])
        assert before - first <= context, "repeated"
        assert end in ends or end == first + window
    for start, end, begin in zip(starts, ends, [0, *ends], strict=False):
        (opens,) = [cut for cut in cuts if cut[2] <= start < cut[1]]
        assert start - opens[0] >= min(context, start - begin), "a turn has before it what it answers to"
        if end - start <= window - context:
            assert opens[1] >= end, "a turn that fits is whole"
        if start - begin > 0 and end - begin <= window and opens[2] == begin:
            assert opens[0] in (0, *ends), "an exchange that fits begins its window, or whole ones before it do"
        for first, _, before in cuts:
            assert not start < before < end or before - first == context, "a turn goes on after its own last tokens"


def test_the_ids_of_a_chat_are_those_that_a_chat_program_appends(encoder: DocumentEncoder) -> None:
    """Text before the assistant is encoded for itself, so a prompt that ends there has the same ids."""
    text = CHATS[0]
    spans = spans_of_lines(text, SPEAKERS)
    (chat,) = encode_chats(encoder, [text], [spans], marks={}, turn_ends="eos")
    prompt = encoder.encode([text[: spans[0][0]]]).values[:-1]
    np.testing.assert_array_equal(chat.ids[: chat.starts[0]], [encoder.tokenizer.eos_id, *prompt])
    follow_up = encoder.encode([text[spans[0][1] : spans[1][0]]]).values[:-1]
    np.testing.assert_array_equal(chat.ids[chat.ends[0] : chat.starts[1]], follow_up)
    assert chat.ids[chat.ends[0] - 1] == encoder.tokenizer.eos_id


def test_marks_of_a_template_become_their_special_tokens(tmp_path: Path) -> None:
    turns_of_chat = [
        Turn("system", "Be kind."),
        Turn("user", f"Say {EOS} 你好"),
        Turn("assistant", "naïve 👋🏽"),
        Turn("user", "ok"),
        Turn("assistant", ""),
    ]
    chat = render_turns(turns_of_chat, CHATML)
    plain = small_tokenizer(tmp_path, [chat.text])
    with pytest.raises(TokenizerError, match=r"no special token '<\|im_start\|>'"):
        mark_ids(open_encoder(EncodingRules(plain, EOS, "literal")), CHATML.reserved)
    own = Tokenizer.from_file(str(plain.path(TOKENIZER_FILE)))
    own.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in CHATML.reserved])
    own.save(str(tmp_path / "own.json"))
    encoder = open_encoder(EncodingRules(tmp_path / "own.json", EOS, "literal"))
    marks = mark_ids(encoder, CHATML.reserved)
    (made,) = encode_chats(encoder, [chat.text], [chat.assistant_spans], marks=marks, turn_ends="template")
    tokens = [made.ids[start:end].tolist() for start, end in zip(made.starts, made.ends, strict=True)]
    assert [encoder.tokenizer.tokenizer.decode(one, skip_special_tokens=False) for one in tokens] == [
        "naïve 👋🏽<|im_end|>",
        "<|im_end|>",
    ]
    assert [one[-1] for one in tokens] == [marks["<|im_end|>"]] * 2
    ids = made.ids.tolist()
    assert [ids.count(marks[mark]) for mark in CHATML.reserved] == [5, 5]
    assert ids.count(encoder.tokenizer.eos_id) == 1, "what a user spells stays text"
    assert made.left_out == len(encoder.encode(["\n"]).values) - 1
    assert encoder.tokenizer.tokenizer.decode(ids[1:], skip_special_tokens=False) == chat.text[:-1]


def test_spans_of_the_documents_are_used_as_they_are(
    tmp_path: Path, tokenizer: Artifact, encoder: DocumentEncoder
) -> None:
    words = ChatTemplate(
        **{role: {"prefix": f"{role}: ", "suffix": ""} for role in ("system", "user", "assistant", "tool")},
        after_turn="\n",
        reserved=(),
    )
    chats = [
        render_turns([Turn("user", "hi é"), Turn("assistant", "yes\n\nüber"), Turn("assistant", "more")], words),
        render_turns([Turn("user", "nobody answers")], words),
        render_turns([Turn("assistant", ""), Turn("assistant", "x")], words),
    ]
    spans = [[{"start": a, "end": b} for a, b in chat.assistant_spans] for chat in chats]
    given_chats = chats_in(tmp_path, [chat.text for chat in chats], spans)
    stream = write(tmp_path / "s", tokenizer, given_chats, sources={"web": {"kind": "spans"}})
    assert sorted(turns(ids, encoder) for ids in learned(*read(stream))) == [["x"], ["yes\n\nüber", "more"]]
    assert stream.statistics["set_aside"] == {"is_bad": 0, "no_answer": 1}


def test_a_turn_that_is_not_trained_is_in_the_window_and_in_no_loss(
    tmp_path: Path, tokenizer: Artifact, encoder: DocumentEncoder
) -> None:
    words = ChatTemplate(
        **{role: {"prefix": f"{role}: ", "suffix": ""} for role in ("system", "user", "assistant", "tool")},
        after_turn="\n",
        reserved=(),
        reasoning=RoleMarks(prefix="(", suffix=") "),
    )
    said = [
        *(Turn("user", "2+2?"), Turn("assistant", "five", trained=False)),
        *(Turn("user", "sure?"), Turn("assistant", "four", "two and two")),
    ]
    chats = [render_turns(said, words), render_turns(said[:2], words)]
    spans = [[{"start": a, "end": b} for a, b in chat.assistant_spans] for chat in chats]
    given_chats = chats_in(tmp_path, [chat.text for chat in chats], spans)
    stream = write(tmp_path / "s", tokenizer, given_chats, sources={"web": {"kind": "spans"}})
    ids, masks = read(stream)
    assert [turns(one, encoder) for one in learned(ids, masks)] == [["(two and two) four"]]
    assert "five" in encoder.tokenizer.tokenizer.decode(ids[0].tolist())
    assert stream.statistics["set_aside"] == {"is_bad": 0, "no_answer": 1}, "of the other chat nothing is trained"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Q: 1 + 1?\nA: 2\nA: no, 3", ["2\nA: no, 3"]),
        ("no mark", []),
        ("Q: 1 + 1?\nA: \n", []),
    ],
)
def test_an_answer_is_all_that_follows_the_first_mark(text: str, said: list[str]) -> None:
    rule = SpansAfter(kind="after", mark="\nA: ")
    assert [text[a:b] for a, b in spans_after(text, rule)] == said


def test_documents_that_are_no_chats_are_counted_or_refused(tmp_path: Path, tokenizer: Artifact) -> None:
    texts = [*CHATS, "A: nobody\nA: answers", "B:  \nA: nothing said"]
    given_chats = chats_in(tmp_path, texts, bad=[0, 4])
    stream = write(tmp_path / "s", tokenizer, given_chats, include_bad=False)
    numbers = stream.statistics
    assert numbers["set_aside"] == {"is_bad": 2, "no_answer": 1}
    assert numbers["chats"] == len(texts) == numbers["used"] + sum(numbers["set_aside"].values())
    for changes, message in (
        ({"sources": {"web": SPEAKERS, "books": SPEAKERS}}, r"none of source 'books'; set chats\.sources\.books"),
        ({"sources": {"web": {"kind": "spans"}}}, r"part_00000 row 0 \(source web\) has no assistant_spans"),
        ({"sources": {"web": {"kind": "after", "mark": "???"}}}, "no chat is left of sources .'web'.*'no_answer': 6"),
        ({"context_tokens": 400}, "context_tokens is 400; expected less than seq_length"),
    ):
        with pytest.raises(StreamError, match=message):
            write(tmp_path / "e", tokenizer, given_chats, **changes)
    wrong = chats_in(tmp_path / "w", ["ab", "ab"], [[{"start": 0, "end": 1}], [{"start": 1, "end": 3}]])
    with pytest.raises(StreamError, match=r"row 0 .*assistant_spans \[\(1, 3\)\] in 2 code points"):
        write(tmp_path / "e", tokenizer, wrong, sources={"web": {"kind": "spans"}})


def test_batches_and_memory_change_no_byte(tmp_path: Path, tokenizer: Artifact) -> None:
    texts = [f"A: question {i}\nB: answer {i} {i * i}" for i in range(40)] + CHATS
    made = [
        write(
            tmp_path / f"s{rows}",
            tokenizer,
            chats_in(tmp_path / str(rows), texts, rows=rows),
            20,
            shuffle_memory=memory,
        )
        for rows, memory in ((1000, 1 << 20), (3, 200))
    ]
    assert made[0].root_digest == made[1].root_digest
    files = file_bytes(made[0].folder or Path())
    assert {name: files[name] for name in made[0].ledger["files"]} == {
        name: file_bytes(made[1].folder or Path())[name] for name in made[1].ledger["files"]
    }
    windows, counted = read(made[0])
    np.save(tmp_path / "mask.npy", pack_mask(counted))
    assert (tmp_path / "mask.npy").read_bytes() == files[LOSS_MASK_FILE]
    other = write(tmp_path / "other", tokenizer, chats_in(tmp_path / "o", texts), 20, seed=4)
    shuffled = read(other)[0]
    assert sorted(windows.tolist()) == sorted(shuffled.tolist()) and windows.tolist() != shuffled.tolist()


def _set_bit(folder: Path, bit: int, value: bool) -> None:
    rows = np.load(folder / LOSS_MASK_FILE)
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    bits[0, bit] = value
    np.save(folder / LOSS_MASK_FILE, np.packbits(bits, axis=1, bitorder="little"))


def _count_less(folder: Path) -> None:
    rows = np.load(folder / LOSS_MASK_FILE)
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    bits[0, np.flatnonzero(bits[0])[0]] = 0
    np.save(folder / LOSS_MASK_FILE, np.packbits(bits, axis=1, bitorder="little"))


def _nothing_counts(folder: Path) -> None:
    rows = np.load(folder / LOSS_MASK_FILE)
    rows[0] = 0
    np.save(folder / LOSS_MASK_FILE, rows)


def _content_in_padding(folder: Path) -> None:
    tokens = np.fromfile(folder / "chats.bin", "<u2").reshape(-1, 302)
    tokens[0, -1] = 5
    tokens.tofile(folder / "chats.bin")


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: _set_bit(folder, 302, True), r"window 0: .* bit beyond the 301 predictions"),
        (_count_less, r"expected [\d,]+ predictions that count as the ledger says, found"),
        (_nothing_counts, "window 0: no prediction counts"),
        (_content_in_padding, r"window 0 position 301, after the last prediction that counts: expected padding \d+"),
        (lambda folder: np.save(folder / LOSS_MASK_FILE, np.zeros((2, 5), np.uint8)), r"expected uint8 \(4, 38\)"),
        (lambda folder: (folder / LOSS_MASK_FILE).write_bytes(b"no array"), "is no array of NumPy"),
        (lambda folder: np.save(folder / "token_lengths.npy", np.zeros(4, "<i4")), "a stream has one of them"),
    ],
)
def test_a_damaged_mask_is_found(
    tmp_path: Path, tokenizer: Artifact, damage: Callable[[Path], object], fault: str
) -> None:
    folder = tmp_path / "s"
    write(folder, tokenizer, chats_in(tmp_path, CHATS), 301)
    for level in ("sizes", "sampled", "full"):
        assert all(check.ok for check in verify(folder, level)), level
    shutil.copytree(folder, tmp_path / "damaged")
    damage(tmp_path / "damaged")
    faults = " ".join(check.fault for check in verify(tmp_path / "damaged", "full") if not check.ok)
    import re

    assert re.search(fault, faults), faults


def test_parameters_say_who_the_assistant_is() -> None:
    with pytest.raises(ValidationError, match=r"assistant names \['C'\], the speakers are \['A', 'B'\]"):
        SpansOfLines(kind="lines", speakers=("A", "B"), assistant=("C",))
    # an environment that chooses another kind still has the keys of base's
    merged = parameters(sources={"web": {"kind": "after", "mark": "x", "speakers": ["A"], "assistant": ["A"]}})
    assert merged.rules == {"web": SpansAfter(kind="after", mark="x")}


def test_training_reads_batches_whose_loss_counts_the_assistant_alone(
    tmp_path: Path, tokenizer: Artifact, encoder: DocumentEncoder
) -> None:
    stream = write(tmp_path / "s", tokenizer, chats_in(tmp_path, CHATS))
    data = DataParameters(
        schedule="integer",
        weights=None,
        replay=None,
        later_epochs="permuted",
        seed=1,
        check="full",
        document_mask=False,
    )
    windows = open_training_windows({"chats": stream}, data, batch_size=4)
    tokens, counted = windows.read_batch(0)
    assert sorted(turns(ids, encoder) for ids in learned(tokens, counted)) == sorted(SAID)
    assert counted.sum() == stream.statistics["loss_tokens"]
    later = [windows.read_batch(step) for step in range(1, 6)]  # later epochs, in other orders
    assert all(sorted(turns(ids, encoder) for ids in learned(*batch)) == sorted(SAID) for batch in later)
    assert len({batch[0].tobytes() for batch in later}) > 1


def test_attention_that_begins_anew_after_eos_would_hide_the_turns_before() -> None:
    given_parameters = yaml.safe_load((ROOT / "conf/base/parameters_finetuning.yml").read_text())["finetuning"]
    FinetuningParameters(**given_parameters)
    given_parameters["data"]["document_mask"] = True
    with pytest.raises(ValidationError, match="no turn would see the ones before"):
        FinetuningParameters(**given_parameters)
    given_parameters["chats"]["turn_ends"] = "template"
    FinetuningParameters(**given_parameters)


def test_the_ledger_says_what_the_windows_are_made_with(tmp_path: Path, tokenizer: Artifact) -> None:
    stream = write(tmp_path / "s", tokenizer, chats_in(tmp_path, CHATS))
    assert set(stream.ledger["files"]) == {"chats.bin", "chats.idx", LOSS_MASK_FILE}
    assert TokenizerFacts(**stream.statistics["tokenizer"]).sha256 == tokenizer.statistics["sha256"]
    recipe = json.loads((tmp_path / "s/ledger.json").read_text())["recipe"]["parameters"]
    assert "shuffle_memory" not in recipe and recipe["chats"]["seed"] == 3


def test_chats_that_lose_text_are_counted_and_refused_beyond_the_share(tmp_path: Path) -> None:
    symbols = [symbol for byte, symbol in byte_symbols().items() if byte not in (0xC3, 0xA9)]  # of é
    library = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([EOS])
    path = tmp_path / "lossy.json"
    library.save(str(path))
    planned = plan_artifact(load_tokenizer_file, path=str(path), sha256=file_sha256(path), eos_token=EOS)
    lossy = ArtifactStore(tmp_path / "lossy").save(planned)
    given_chats = chats_in(tmp_path, ["A: hi\nB: so", "A: é\nB: so", "A: hi\nB: é é", "A: hi\nB: no"])
    stream = write(tmp_path / "half", lossy, given_chats, max_lossy_share=0.5)
    assert (stream.statistics["lossy_chats"], stream.statistics["used"]) == (2, 4)
    with pytest.raises(StreamError, match=r"2 of 4 chats lose text, allowed is a share of 0\.49.*\[169, 195\]"):
        write(tmp_path / "less", lossy, given_chats, max_lossy_share=0.49)


def test_a_chat_without_a_turn_has_no_tokens_and_all_of_it_is_left_out(encoder: DocumentEncoder) -> None:
    texts = ["A: nobody answers", "A: x\nB: y"]
    spans = [spans_of_lines(text, SPEAKERS) for text in texts]
    none, one = encode_chats(encoder, texts, spans, marks={}, turn_ends="eos")
    assert (none.ids.tolist(), list(none.starts), list(none.ends)) == ([], [], [])
    assert none.left_out == len(encoder.encode(texts[:1]).values), "EOS before it is one of them"
    assert len(one.ids) == one.ends[-1] and one.left_out == 0


def test_windows_are_copied_in_blocks_of_any_size(
    tmp_path: Path, tokenizer: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_chats = chats_in(tmp_path, CHATS)
    whole = write(tmp_path / "whole", tokenizer, given_chats, 20)
    for size in (1, 100, 130):
        monkeypatch.setattr("everytoken.tokens.chat.windows._COPIED_BYTES", size)
        assert write(tmp_path / str(size), tokenizer, given_chats, 20).root_digest == whole.root_digest
