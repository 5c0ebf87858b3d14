"""What an index says of a stream is what a scan of the stream and of its documents finds, token by token."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import arrays
from everytoken.provenance.indexes.stream_index import (
    MadeStream,
    StreamIndex,
    flat_index_of_documents,
    index_chat_windows,
    index_compact_stream,
    index_padded_stream,
    index_raw_shards,
    open_flat_index,
    open_stream_index,
)
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Shards
from everytoken.tokens import (
    EncodingRules,
    StreamError,
    open_encoder,
    open_indexed,
    write_annotated_stream,
    write_compact_stream,
)
from everytoken.tokens.chat.conversations import encode_chats, spans_of_lines
from everytoken.tokens.chat.parameters import ChatParameters
from everytoken.tokens.chat.windows import write_chat_windows
from everytoken.tokens.streams.flat_tokens import open_tokens
from everytoken.tokens.streams.megatron import index_header, with_name
from everytoken.tokens.streams.raw_shards import write_raw_shards
from tests.tokens.corpora import EOS as EOS_TOKEN
from tests.tokens.corpora import documents as chat_documents
from tests.tokens.corpora import encoded, file_bytes, small_tokenizer, stored, tokenizer_of

LENGTHS = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=3)
DOCUMENTS = st.lists(st.tuples(st.sampled_from(["web", "code", "math"]), st.integers(0, 9)), max_size=7)
EOS = 0


def distinct(lengths: Sequence[int], part: int, kind: type = np.uint16) -> pa.Table:
    """Encoded documents in which no token but EOS is twice, in no part either."""
    table = encoded(lengths, part, pa.from_numpy_dtype(kind))
    ends = np.cumsum(np.array(lengths, np.int64) + 1)
    ids = (1 + 1000 * part + np.arange(ends[-1] if len(ends) else 0)).astype(kind)
    ids[ends - 1] = EOS
    tokens = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), pa.array(ids))
    return table.set_column(table.column_names.index("tokens"), "tokens", tokens)


def tokens_of(*datasets: Shards) -> list[list[int]]:
    """The tokens of every document, by number."""
    return [row for shards in datasets for part in shards for row in part.table(["tokens"])["tokens"].to_pylist()]


def made(built: Any) -> MadeStream:
    return MadeStream("a" * 64, built.statistics)


def assert_exact(index: StreamIndex, windows: np.ndarray, documents: Sequence[Sequence[int]], padded: bool) -> None:
    """Every span of every window holds the tokens that it names, spans cover the window, and the inverse agrees."""
    assert (index.windows, index.documents) == (len(windows), len(documents))
    by_document: dict[int, list[tuple[int, int, Any]]] = {document: [] for document in range(len(documents))}
    for window in range(index.windows):
        place = 0
        for span in index.spans(window):
            assert span.at == place and span.first < span.end <= len(documents[span.document])
            place += span.end - span.first
            found = windows[window, span.at : place].tolist()
            assert found == list(documents[span.document][span.first : span.end])
            by_document[span.document].append((span.first, window, span))
        assert (windows[window, place:] == EOS).all() if padded else place == index.window
    for document, seen in by_document.items():
        assert index.windows_of(document) == [(window, span) for _, window, span in sorted(seen, key=lambda s: s[:2])]


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(1, 12), st.integers(0, 99), st.sampled_from([1, 2, 5, None]))
def test_the_index_of_a_compact_stream_is_exact(
    lengths: list[list[int]], seq_length: int, seed: int, block: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = stored(folder / "in", [distinct(part, i) for i, part in enumerate(lengths)], 3)
        built = write(write_compact_stream, folder / "out", tokens, seq_length, seed, shuffle_block=block)
        index = indexed(index_compact_stream, folder / "index", tokens, seq_length, seed, built)
        stream = open_indexed(folder / "out" / "compact")
        windows = stream.windows() if len(stream) else np.empty((0, seq_length + 1))
        assert_exact(index, windows, tokens_of(tokens), padded=False)


def test_the_index_of_many_documents_and_of_long_ones_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_CHUNK", 50)
    lengths = numpy_generator(1).integers(0, 40, 300).tolist()
    lengths[20] = 70_000  # tokens, of which 16 bits cannot count so many
    wide = tokenizer_of(pa.uint32())
    tokens = stored(tmp_path / "in", [distinct(lengths[:7], 0, np.uint32), distinct(lengths[7:], 90, np.uint32)])
    built = write(write_compact_stream, tmp_path / "out", tokens, 96, 1, shuffle_block=100, tokenizer=wide)
    index = indexed(index_compact_stream, tmp_path / "index", tokens, 96, 1, built)
    assert_exact(index, open_indexed(tmp_path / "out" / "compact").windows(), tokens_of(tokens), padded=False)
    packed = pack(tmp_path / "shards", [tokens, tokens], 1, 5000, tokenizer=wide)
    index_shards(tmp_path / "flat", [tokens, tokens], 1, 5000, packed, 5000)
    cut = open_tokens(tmp_path / "shards").windows(300)
    windows = np.array([cut[i] for i in range(len(cut))])
    assert_exact(open_stream_index(tmp_path / "flat", 300), windows, tokens_of(tokens, tokens), padded=False)


@settings(deadline=None, max_examples=15)
@given(LENGTHS, st.integers(0, 99))
def test_the_index_of_a_padded_stream_is_exact(lengths: list[list[int]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = stored(folder / "in", [distinct(part, i) for i, part in enumerate(lengths)], 3)
        built = write(write_annotated_stream, folder / "out", tokens, 40, seed)
        index = indexed(index_padded_stream, folder / "index", tokens, 40, seed, built)
        stream = open_indexed(folder / "out" / "annotated")
        windows = stream.windows() if len(stream) else np.empty((0, 41))
        assert_exact(index, windows, tokens_of(tokens), padded=True)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.lists(DOCUMENTS, min_size=1, max_size=2), min_size=2, max_size=2).filter(
        lambda made: any(documents for parts in made for documents in parts)
    ),
    st.integers(1, 12),
    st.integers(0, 99),
    st.integers(1, 40),
)
def test_the_index_of_raw_shards_is_exact_for_any_memory(
    made_of: list[list[list[tuple[str, int]]]], seq_length: int, seed: int, shard_size: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = [
            stored(folder / str(i), [sourced(part, 2 * i + j) for j, part in enumerate(parts)], 3)
            for i, parts in enumerate(made_of)
        ]
        built = pack(folder / "out", tokens, seed, shard_size)
        for memory in (1 << 20, 300):
            index_shards(folder / f"index{memory}", tokens, seed, shard_size, built, memory)
        assert file_bytes(folder / f"index{1 << 20}") == file_bytes(folder / "index300")
        flat, documents = open_tokens(folder / "out"), tokens_of(*tokens)
        index = open_stream_index(folder / "index300", seq_length)
        cut = flat.windows(seq_length)
        windows = np.array([cut[i] for i in range(len(cut))]).reshape(len(cut), seq_length + 1)
        assert_exact(index, windows, documents, padded=False)
        by_token = open_flat_index(folder / "index300")
        assert by_token.tokens == len(flat)
        for position in range(len(flat)):
            (span,) = by_token.spans_between(position, position + 1)
            assert flat[position] == documents[span.document][span.first]
            assert by_token.position(*divmod(position, shard_size)) == position
            assert by_token.range_of(span.document)[0] + span.first == position
        with pytest.raises(ProvenanceError, match="there is no token"):
            by_token.position(*divmod(len(flat), shard_size))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(DOCUMENTS, min_size=1, max_size=3), min_size=2, max_size=2),
    st.integers(1, 12),
    st.integers(0, 99),
    st.integers(10, 40),
    st.booleans(),
    st.none() | st.integers(1, 4),
)
@pytest.mark.slow
def test_the_index_of_shards_that_are_padded_or_leave_documents_out_is_exact(
    made_of: list[list[list[tuple[str, int]]]],
    seq_length: int,
    seed: int,
    shard_size: int,
    crosses: bool,
    n_shards: int | None,
) -> None:
    cutting = {"cross_document_boundary": crosses, "n_shards": n_shards}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = [
            stored(folder / str(i), [sourced(part, 2 * i + j) for j, part in enumerate(parts)], 3)
            for i, parts in enumerate(made_of)
        ]
        try:
            built = pack(folder / "out", tokens, seed, shard_size, **cutting)
        except StreamError as error:
            assert n_shards is not None and "tokens are missing" in str(error)
            return
        index_shards(folder / "index", tokens, seed, shard_size, built, 300, **cutting)
        flat, documents = open_tokens(folder / "out"), tokens_of(*tokens)
        by_token, covered = open_flat_index(folder / "index"), np.zeros(len(flat), bool)
        assert by_token.tokens == len(flat)
        whole = by_token.spans_between(0, len(flat))
        assert len({span.document for span in whole}) == len(whole) == built.statistics["documents"]
        for span in whole:
            assert flat[span.at : span.until].tolist() == documents[span.document][span.first : span.end]
            assert by_token.range_of(span.document) == (
                span.at - span.first,
                span.at - span.first + len(documents[span.document]),
            )
            covered[span.at : span.until] = True
        padding = ~covered
        assert padding.sum() == built.statistics.get("padding_tokens", 0)
        assert (flat[:][padding] == EOS).all()
        assert [list(span) for span in flat.padding_between(0, len(flat))] == runs(padding)
        index = open_stream_index(folder / "index", seq_length)
        seen = np.zeros(len(flat), bool)
        for document, content in enumerate(documents):
            for window, span in index.windows_of(document):
                assert span in index.spans(window)
                start = window * seq_length + span.at
                assert flat[start : start + span.end - span.first].tolist() == content[span.first : span.end]
                seen[start : start + span.end - span.first] = True
        read = index.windows * seq_length + 1 if index.windows else 0
        assert np.array_equal(seen[:read], covered[:read]) and not seen[read:].any()
        left = set(range(len(documents))) - {span.document for span in whole}
        assert len(left) == built.statistics.get("left_out", {"documents": 0})["documents"]
        assert all(index.windows_of(document) == [] for document in left)
        assert all(index.tokens_of(document) == len(documents[document]) for document in left)


def runs(true: np.ndarray) -> list[list[int]]:
    """The ranges [begin, end) of True; a shard's padding ends where the next shard begins with a document."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], true.astype(np.int8), [0]])))
    return edges.reshape(-1, 2).tolist()


def test_a_megatron_stream_of_documents_is_its_own_index(tmp_path: Path) -> None:
    documents = [[5, 0], [0], [7, 8, 9, 10, 11, 12, 13, 0], [0], [3, 0]]
    write_indexed(tmp_path / "documents", documents)
    index = flat_index_of_documents(tmp_path / "documents", "a" * 64).windows_of_length(3)
    flat = [token for document in documents for token in document]
    windows = np.array([flat[3 * i : 3 * i + 4] for i in range((len(flat) - 1) // 3)])
    assert_exact(index, windows, documents, padded=False)
    with pytest.raises(ProvenanceError, match="is missing"):
        flat_index_of_documents(tmp_path / "none", "a" * 64)


CHATS = [
    "A: hi\nB: yes\nA: no\nB: " + "so it is, " * 9 + "\nA: and\nB: well",
    "A: nobody answers",
    "B: I begin\nA: do\nB: yes",
    "no chat",
    "A: what\nB: " + "a cat sat, " * 12,
    "A: bad\nB: bad",
    "A: gone\nB: gone",
]


@pytest.mark.parametrize("include_bad", [False, True])
def test_the_index_of_chat_windows_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include_bad: bool) -> None:
    monkeypatch.setattr("everytoken.shards.parts.BATCH_ROWS", 2)
    tokenizer = small_tokenizer(tmp_path / "bpe", CHATS)
    chats = ChatParameters(
        seed=5,
        sources={"web": {"kind": "lines", "speakers": ["A", "B"], "assistant": ["B"]}},
        include_bad=include_bad,
        turn_ends="eos",
        marks=(),
        context_tokens=6,
    )
    table = chat_documents(CHATS, sources=("web",))
    table = table.set_column(6, "is_bad", pa.array([text.startswith("A: bad") for text in CHATS]))
    table = table.append_column("assistant_spans", pa.nulls(len(CHATS)))
    other = chat_documents(["import os", *CHATS[:3]], 1, sources=("code", "web", "web", "web"))
    other = other.append_column("assistant_spans", pa.nulls(4))
    splits = {
        "unannotated": stored(tmp_path / "u", [table[:3], table[3:]], 2),
        "annotated": stored(tmp_path / "a", [other, other[:0]], 2),
    }
    gone = [[], [["web", 0, 6, "asked"]]]
    exclusions = Shards.from_values([{"addresses": found} for found in gone], ["a", "b"])
    common = {
        "tokenizer": tokenizer,
        "eos_token": EOS_TOKEN,
        "chats": chats,
        "seq_length": 30,
        "exclusions": exclusions,
    }
    out, folder = tmp_path / "out", tmp_path / "index"
    out.mkdir()
    folder.mkdir()
    built = write_chat_windows(out, documents=[*splits.values()], max_lossy_share=0.0, shuffle_memory=1 << 20, **common)
    index_chat_windows(folder, documents=splits, order=("unannotated", "annotated"), stream=made(built), **common)
    index, windows = open_stream_index(folder), open_indexed(out / "chats").windows()
    assert (index.windows, index.documents, index.splits) == (len(windows), 11, ("unannotated", "annotated"))
    encoder = open_encoder(EncodingRules(tokenizer, EOS_TOKEN, "literal"))
    texts = [*CHATS, "import os", *CHATS[:3]]
    seen: dict[int, list[tuple[int, int, Any]]] = {document: [] for document in range(index.documents)}
    for window in range(index.windows):
        (span,) = index.spans(window)
        rule = chats.rules["web"]
        (chat,) = encode_chats(
            encoder, [texts[span.document]], [spans_of_lines(texts[span.document], rule)], marks={}, turn_ends="eos"
        )
        assert (
            span.at == 0
            and windows[window, : span.end - span.first].tolist() == chat.ids[span.first : span.end].tolist()
        )
        assert (windows[window, span.end - span.first :] == encoder.tokenizer.eos_id).all()
        seen[span.document].append((span.first, window, span))
    for document, of in seen.items():
        assert index.windows_of(document) == [(window, span) for _, window, span in sorted(of)]
    assert {document for document, of in seen.items() if of} == {0, 2, 4, 8, *([5, 10] if include_bad else [])}
    assert max(len(of) for of in seen.values()) > 1


def test_an_index_refuses_other_documents_and_what_is_no_index(tmp_path: Path) -> None:
    tokens = stored(tmp_path / "in", [distinct([3, 9, 4], 0)])
    other = stored(tmp_path / "other", [distinct([3, 9, 3], 0)])
    built = write(write_compact_stream, tmp_path / "out", tokens, 4, 1, shuffle_block=None)
    with pytest.raises(ProvenanceError, match="remainder_tokens = 4, the documents and parameters given make 3"):
        indexed(index_compact_stream, tmp_path / "index", other, 4, 1, built)
    index = indexed(index_compact_stream, tmp_path / "right", tokens, 4, 1, built)
    for question in (lambda: index.spans(3), lambda: index.spans(-1), lambda: index.windows_of(3)):
        with pytest.raises(ProvenanceError, match="3"):
            question()
    for name in ("cuts.npy", "index.json", "first_rows.npy"):
        content = (tmp_path / "right" / name).read_bytes()
        (tmp_path / "right" / name).write_bytes(content[:-9])
        with pytest.raises(ProvenanceError, match=r"no (file|index) of|no index"):
            open_stream_index(tmp_path / "right")
        (tmp_path / "right" / name).write_bytes(content)


def write(function: Any, out: Path, tokens: Shards, seq_length: int, seed: int, **more: Any) -> Any:
    out.mkdir()
    common = {"tokenizer": tokenizer_of(), "seq_length": seq_length, "seed": seed, "shuffle_memory": 1 << 20}
    return function(out, tokens=tokens, **{**common, **more})


def indexed(function: Any, folder: Path, tokens: Shards, seq_length: int, seed: int, built: Any) -> StreamIndex:
    folder.mkdir()
    function(folder, lengths=tokens, split="documents", stream=made(built), seq_length=seq_length, seed=seed)
    return open_stream_index(folder)


def sourced(documents: Sequence[tuple[str, int]], part: int) -> pa.Table:
    table = distinct([length for _, length in documents], part)
    sources = pa.array([source for source, _ in documents], pa.string())
    return table.set_column(table.column_names.index("source"), "source", sources)


def pack(
    out: Path, tokens: Sequence[Shards], seed: int, shard_size: int, tokenizer: Artifact | None = None, **cutting: Any
) -> Any:
    out.mkdir()
    common = {"dtype": "uint32", "seed": seed, "shuffle_memory": 1 << 20, "tokenizer": tokenizer or tokenizer_of()}
    return write_raw_shards(out, tokens=tokens, shard_size_tokens=shard_size, **common, **cutting)


def index_shards(
    folder: Path, tokens: Sequence[Shards], seed: int, shard_size: int, built: Any, memory: int, **cutting: Any
) -> None:
    folder.mkdir()
    splits = dict(zip(("unannotated", "annotated"), tokens, strict=True))
    given = {"stream": made(built), "seed": seed, "shard_size_tokens": shard_size, "memory": memory}
    index_raw_shards(folder, lengths=splits, order=("unannotated", "annotated"), **given, **cutting)


def write_indexed(prefix: Path, documents: Sequence[Sequence[int]]) -> None:
    """Write documents as ``everytoken tokenize`` does."""
    sizes = np.array([len(document) for document in documents], "<i4")
    np.array([token for document in documents for token in document], "<u2").tofile(with_name(prefix, ".bin"))
    pointers = (np.cumsum(sizes) - sizes).astype("<i8") * 2
    content = index_header(len(sizes), np.dtype("<u2")) + sizes.tobytes() + pointers.tobytes()
    with_name(prefix, ".idx").write_bytes(content + np.arange(len(sizes) + 1, dtype="<i8").tobytes())
