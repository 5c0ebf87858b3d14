from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.seeds import numpy_generator
from everytoken.shards import ArtifactStore, Shards, plan_artifact
from everytoken.tokens import StreamError, open_indexed, write_annotated_stream, write_compact_stream
from tests.tokens.corpora import encoded, file_bytes, stored

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
        "eos_id": 0 if rows else None,
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
        store.save(plan_artifact(write, tokens=tokens, seq_length=31, seed=3, shuffle_memory=memory, **block))
        files = file_bytes(tmp_path / str(memory))
        made.append((files, store.load().root_digest))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32()])
def test_megatron_reads_both_streams_token_by_token(tmp_path: Path, kind: pa.DataType) -> None:
    indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    tokens = stored(tmp_path / "in", [encoded([3, 8, 0, 5], part, kind) for part in range(3)])
    common = {"tokens": tokens, "seq_length": 8, "seed": 1, "shuffle_memory": 1 << 20}
    write_compact_stream(tmp_path, shuffle_block=None, **common)
    write_annotated_stream(tmp_path, **common)
    for name in ("compact", "annotated"):
        theirs = indexed.IndexedDataset(str(tmp_path / name), multimodal=False, mmap=True)
        ours = open_indexed(tmp_path / name).windows()
        assert len(ours) > 0
        assert [theirs[i].tolist() for i in range(len(theirs))] == ours.tolist()


def test_without_a_block_size_a_block_is_what_100_gib_hold(tmp_path: Path) -> None:
    tokens = stored(tmp_path / "in", [encoded([5])])
    built = write_compact_stream(tmp_path, tokens=tokens, seq_length=2048, seed=0, shuffle_block=None, shuffle_memory=1)
    assert built.statistics["shuffle_block"] == (100 << 30) // 4098
    assert built.statistics["windows"] == 0
    assert built.statistics["remainder_tokens"] == 6


def streams_of(tokens: Shards, folder: Path, seq_length: int = 20) -> None:
    common = {"tokens": tokens, "seq_length": seq_length, "seed": 0, "shuffle_memory": 1 << 20}
    write_compact_stream(folder, shuffle_block=4, **common)
    write_annotated_stream(folder, **common)


def test_errors_name_the_part_and_row(tmp_path: Path) -> None:
    good = encoded([3, 4])
    with pytest.raises(StreamError, match=r"part_00000 row 1: 5 tokens, expected .* at most 4 that fit"):
        write_annotated_stream(tmp_path, tokens=stored(tmp_path / "a", [good]), seq_length=3, seed=0, shuffle_memory=1)
    index = good.column_names.index("token_length")
    lies = good.set_column(index, "token_length", pa.array([3, 5], pa.int32()))
    with pytest.raises(StreamError, match=r"part_00001 row 1: 5 tokens, expected token_length \+ 1 = 6"):
        streams_of(stored(tmp_path / "b", [good, lies]), tmp_path)
    with pytest.raises(StreamError, match="types"):
        streams_of(stored(tmp_path / "c", [good, encoded([1], 1, pa.uint32())]), tmp_path)
    with pytest.raises(StreamError, match="expected encoded documents"):
        streams_of(stored(tmp_path / "d", [good.drop_columns(["tokens"])]), tmp_path)
    with pytest.raises(StreamError, match=r"no column \['is_bad'\]"):
        streams_of(stored(tmp_path / "e", [good.drop_columns(["is_bad"])]), tmp_path)
    with pytest.raises(StreamError, match="must end in one EOS"):
        streams_of(stored(tmp_path / "f", [good, encoded([2], 1, eos=9)]), tmp_path)
    with pytest.raises(StreamError, match="shuffle_block is 0"):
        write_compact_stream(
            tmp_path,
            tokens=stored(tmp_path / "g", [good]),
            seq_length=3,
            seed=0,
            shuffle_block=0,
            shuffle_memory=1,
        )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("shuffle-")]
