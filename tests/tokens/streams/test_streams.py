from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, ArtifactStore, Shards, plan_artifact
from everytoken.tokens import StreamError, open_indexed, write_annotated_stream, write_compact_stream
from tests.tokens.corpora import encoded, file_bytes, small_tokenizer, stored, tokenizer_of

LENGTHS = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=3)
MEMORY = st.sampled_from([1, 200, 2000, 1 << 30])


def compact_by_the_book(tables: list[pa.Table], seq_length: int, seed: int, block: int) -> np.ndarray:
    """Section 6.1 word for word, in memory."""
    stream: list[int] = []
    for index, table in enumerate(tables):
        rows = table["tokens"].to_pylist()
        for row in numpy_generator(seed, index).permutation(len(rows)):
            stream += rows[row]
    window = seq_length + 1
    count = len(stream) // window
    windows = np.array(stream[: count * window], np.uint32).reshape(count, window)
    generator = numpy_generator(seed)
    blocks = [windows[start : start + block] for start in range(0, count, block)]
    return np.concatenate([windows[:0], *(part[generator.permutation(len(part))] for part in blocks)])


@settings(deadline=None, max_examples=25)
@given(
    LENGTHS,
    st.integers(1, 6),
    st.integers(0, 99),
    st.sampled_from([1, 2, 5, 1000]),
    MEMORY,
    st.integers(1, 9),
)
def test_compact_stream_is_that_of_the_book_for_any_memory(
    lengths: list[list[int]], seq_length: int, seed: int, block: int, memory: int, batch_rows: int
) -> None:
    tables = [encoded(part, index) for index, part in enumerate(lengths)]
    expected = compact_by_the_book(tables, seq_length, seed, block)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        out.mkdir()
        built = write_compact_stream(
            out,
            tokens=stored(Path(name) / "in", tables, batch_rows),
            tokenizer=tokenizer_of(),
            seq_length=seq_length,
            seed=seed,
            shuffle_block=block,
            shuffle_memory=memory,
        )
        assert sorted(path.name for path in out.iterdir()) == ["compact.bin", "compact.idx"]
        stream = open_indexed(out / "compact")
        assert len(stream) == len(expected)
        assert not len(stream) or np.array_equal(stream.windows(), expected)
    total = sum(n + 1 for part in lengths for n in part)
    assert built.statistics == {
        "windows": len(expected),
        "tokens": expected.size,
        "documents": sum(map(len, lengths)),
        "remainder_tokens": total - expected.size,
        "blocks": -(-len(expected) // block),
        "shuffle_block": block,
        "tokenizer": tokenizer_of().statistics,
    }


@settings(deadline=None, max_examples=25)
@given(LENGTHS, st.integers(9, 12), st.integers(0, 99), MEMORY, st.integers(1, 9))
def test_annotated_stream_has_document_permutation_i_in_window_i(
    lengths: list[list[int]], seq_length: int, seed: int, memory: int, batch_rows: int
) -> None:
    tables = [encoded(part, index) for index, part in enumerate(lengths)]
    everything = pa.concat_tables(tables)
    order = numpy_generator(seed).permutation(everything.num_rows)
    shuffled = everything.take(pa.array(order))
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        out.mkdir()
        built = write_annotated_stream(
            out,
            tokens=stored(Path(name) / "in", tables, batch_rows),
            tokenizer=tokenizer_of(),
            seq_length=seq_length,
            seed=seed,
            shuffle_memory=memory,
        )
        assert len(list(out.iterdir())) == 4
        stream = open_indexed(out / "annotated")
        rows = shuffled["tokens"].to_pylist()
        assert [stream[i].tolist() for i in range(len(stream))] == [
            ids + [0] * (seq_length + 1 - len(ids)) for ids in rows
        ]
        token_lengths = np.load(out / "token_lengths.npy")
        assert token_lengths.dtype == np.int32
        assert token_lengths.tolist() == shuffled["token_length"].to_pylist()
        sidecar = pq.read_table(out / "sidecar.parquet")
        names = ["doc_id", "text", "token_length", "safety_score", "is_bad", "source", "shard_index", "row"]
        assert sidecar.column_names == names
        assert sidecar.equals(shuffled.rename_columns({"id": "doc_id"}).select(names))
    content = sum(map(sum, lengths))
    assert built.statistics == {
        "windows": len(rows),
        "tokens": content,
        "documents": len(rows),
        "padding_tokens": len(rows) * seq_length - content,
        "remainder_tokens": 0,
        "tokenizer": tokenizer_of().statistics,
    }


@pytest.mark.parametrize("write", [write_compact_stream, write_annotated_stream])
@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32()])
def test_all_files_have_the_same_bytes_for_any_memory(tmp_path: Path, write: object, kind: pa.DataType) -> None:
    tables = [encoded([(7 * i + part) % 30 for i in range(200)], part, kind) for part in range(3)]
    tokens = stored(tmp_path / "in", tables, 17)
    block = {"shuffle_block": 50} if write is write_compact_stream else {}
    made = []
    for memory in (1000, 30_000, 1 << 30):
        store = ArtifactStore(tmp_path / str(memory))
        common = {"tokens": tokens, "tokenizer": tokenizer_of(kind), "seq_length": 31, "seed": 3}
        store.save(plan_artifact(write, shuffle_memory=memory, **common, **block))
        files = file_bytes(tmp_path / str(memory))
        made.append((files, store.load().root_digest))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32()])
def test_megatron_reads_both_streams_token_by_token(tmp_path: Path, kind: pa.DataType) -> None:
    indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    tokens = stored(tmp_path / "in", [encoded([3, 8, 0, 5], part, kind) for part in range(3)])
    common = {"tokens": tokens, "tokenizer": tokenizer_of(kind), "seq_length": 8, "seed": 1, "shuffle_memory": 1 << 20}
    write_compact_stream(tmp_path, shuffle_block=None, **common)
    write_annotated_stream(tmp_path, **common)
    for name in ("compact", "annotated"):
        theirs = indexed.IndexedDataset(str(tmp_path / name), multimodal=False, mmap=True)
        ours = open_indexed(tmp_path / name).windows()
        assert len(ours) > 0
        assert [theirs[i].tolist() for i in range(len(theirs))] == ours.tolist()


@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32()])
def test_datatrove_reads_both_streams_token_by_token(tmp_path: Path, kind: pa.DataType) -> None:
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="datatrove, a peer that we compare with, is absent")
    tokens = stored(tmp_path / "in", [encoded([3, 8, 0, 5], part, kind) for part in range(3)])
    common = {"tokens": tokens, "tokenizer": tokenizer_of(kind), "seq_length": 8, "seed": 1, "shuffle_memory": 1 << 20}
    write_compact_stream(tmp_path, shuffle_block=None, **common)
    write_annotated_stream(tmp_path, **common)
    for name in ("compact", "annotated"):
        path, size = str(tmp_path / f"{name}.bin"), 2 if kind == pa.uint16() else 4
        theirs = dataset.DatatroveFileDataset(path, seq_len=8, token_size=size)
        ours = open_indexed(tmp_path / name).windows()
        assert len(ours) > 0
        assert [theirs[i]["input_ids"].tolist() for i in range(len(theirs))] == ours.tolist()


@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32()])
def test_datatrove_writes_the_same_index_for_our_windows(tmp_path: Path, kind: pa.DataType) -> None:
    megatron = pytest.importorskip(
        "datatrove.pipeline.tokens.megatron_tokenizer", reason="datatrove, a peer that we compare with, is absent"
    )
    tokens = stored(tmp_path / "in", [encoded([3, 8, 0, 5], part, kind) for part in range(3)])
    common = {"tokens": tokens, "tokenizer": tokenizer_of(kind), "seq_length": 8, "seed": 1, "shuffle_memory": 1 << 20}
    write_annotated_stream(tmp_path, **common)
    theirs = megatron.MegatronTokenizedFile(
        output_folder=str(tmp_path), filename="theirs", token_size=2 if kind == pa.uint16() else 4
    )
    for window in open_indexed(tmp_path / "annotated").windows().tolist():
        theirs.write(window)
    theirs.close()
    for suffix in (".bin", ".idx"):
        written = tmp_path / f"theirs{suffix}"
        assert written.read_bytes() == (tmp_path / f"annotated{suffix}").read_bytes()


def test_a_stream_records_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path, ["a small text for a small tokenizer", "and one more text"] * 9)
    eos = tokenizer.statistics["eos_id"]
    tokens = stored(tmp_path / "in", [encoded([5, 9, 3], eos=eos)])
    common = {"tokens": tokens, "tokenizer": tokenizer, "seq_length": 9, "seed": 1, "shuffle_memory": 1 << 20}
    expected = {name: tokenizer.statistics[name] for name in ("sha256", "vocab_size", "eos_token", "eos_id")}
    assert expected["vocab_size"] == 285
    assert write_compact_stream(tmp_path, shuffle_block=None, **common).statistics["tokenizer"] == expected
    assert write_annotated_stream(tmp_path, **common).statistics["tokenizer"] == expected


def test_without_a_block_size_a_block_is_what_100_gib_hold(tmp_path: Path) -> None:
    tokens = stored(tmp_path / "in", [encoded([5])])
    common = {"tokens": tokens, "tokenizer": tokenizer_of(), "seq_length": 2048, "seed": 0}
    built = write_compact_stream(tmp_path, shuffle_block=None, shuffle_memory=1, **common)
    assert built.statistics["shuffle_block"] == (100 << 30) // 4098
    assert built.statistics["windows"] == 0
    assert built.statistics["remainder_tokens"] == 6


def streams_of(tokens: Shards, folder: Path, seq_length: int = 20, tokenizer: Artifact | None = None) -> None:
    common = {
        "tokens": tokens,
        "tokenizer": tokenizer or tokenizer_of(),
        "seq_length": seq_length,
        "seed": 0,
        "shuffle_memory": 1 << 20,
    }
    write_compact_stream(folder, shuffle_block=4, **common)
    write_annotated_stream(folder, **common)


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def test_errors_name_the_part_and_row(tmp_path: Path) -> None:
    good, second = encoded([3, 4]), encoded([3, 4], 1)
    number = iter(range(99))

    def expect(message: str, *tables: pa.Table, **options: Any) -> None:
        tokens = stored(tmp_path / str(next(number)), tables)
        with pytest.raises(StreamError, match=message):
            streams_of(tokens, tmp_path, **options)

    expect(r"part_00000 row 1: 5 tokens, expected .* at most 4 that fit", good, seq_length=3)
    lies = replaced(second, "token_length", pa.array([3, 5], pa.int32()))
    expect(r"part_00001 row 1: 5 tokens, expected token_length \+ 1 = 6", good, lies)
    for bad in (None, -2):
        lies = replaced(second, "token_length", pa.array([3, bad], pa.int32()))
        expect("part_00001 row 1: token_length is null or negative", good, lies)
    nulls = pa.array([[1, 2, 3, 0], None], second["tokens"].type)
    expect("part_00001 row 0 or later: .* null", good, replaced(second, "tokens", nulls))
    nulls = pa.array([[1, 2, 3, 0], [1, None, 3, 4, 0]], second["tokens"].type)
    expect("part_00001 row 0 or later: .* null", good, replaced(second, "tokens", nulls))
    expect("part_00001 has tokens of the type uint32", good, encoded([1], 1, pa.uint32()))
    expect("part_00000 has tokens of the type uint16", good, tokenizer=tokenizer_of(pa.uint32()))
    expect("expected encoded documents", good.drop_columns(["tokens"]))
    expect(r"no column \['is_bad'\]", good.drop_columns(["is_bad"]))
    expect("part_00001 row 0 ends in the id 9; all documents must end in one EOS", good, encoded([2], 1, eos=9))
    expect(
        r"part_00001 row 1: token id 7, expected ids below .* 7",
        good,
        encoded([2, 9], 1),
        tokenizer=tokenizer_of(vocab_size=7),
    )
    expect("no parts")
    for block in (0, -1):
        with pytest.raises(StreamError, match=f"shuffle_block is {block}"):
            write_compact_stream(
                tmp_path,
                tokens=stored(tmp_path / f"block {block}", [good]),
                tokenizer=tokenizer_of(),
                seq_length=3,
                seed=0,
                shuffle_block=block,
                shuffle_memory=1,
            )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("shuffle-")]
