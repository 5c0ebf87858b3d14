"""Streams at the edges: vocabularies around 2^16, documents and parts of odd sizes, and more than 2^32 bytes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from everytoken.outofcore import plan_places
from everytoken.tokens import StreamError, open_indexed, token_dtype, write_annotated_stream, write_compact_stream
from everytoken.tokens.streams import megatron
from tests.tokens.corpora import documents, small_tokenizer, stored, tokenizer_of

MEMORY = pytest.mark.parametrize("memory", [1, 1 << 20])


def table_of(ids: Sequence[Sequence[int]], kind: Any = np.uint16, part: int = 0) -> pa.Table:
    """Documents with these ids, EOS included."""
    table = documents([f"text {i}" for i in range(len(ids))], part)
    table = table.append_column("token_length", pa.array([len(row) - 1 for row in ids], pa.int32()))
    return table.append_column("tokens", pa.array(ids, pa.list_(pa.from_numpy_dtype(kind))))


def compact(folder: Path, tables: Sequence[pa.Table], seq_length: int, memory: int = 1 << 20, **options: Any) -> Any:
    options = {"tokenizer": tokenizer_of(), "shuffle_block": None, **options}
    tokens = stored(folder / "in", tables)
    return write_compact_stream(
        folder, tokens=tokens, seq_length=seq_length, seed=1, shuffle_memory=memory, **options
    ).statistics


def annotated(folder: Path, tables: Sequence[pa.Table], seq_length: int, memory: int = 1 << 20, **options: Any) -> Any:
    tokens, options = stored(folder / "in", tables), {"tokenizer": tokenizer_of(), **options}
    return write_annotated_stream(
        folder, tokens=tokens, seq_length=seq_length, seed=1, shuffle_memory=memory, **options
    ).statistics


def megatron_reader(prefix: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no GPU
        indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    return indexed.IndexedDataset(str(prefix), multimodal=False, mmap=True)


@pytest.mark.parametrize(
    ("vocab_size", "stored_type"),
    [(65_499, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "int32"), (131_072, "int32")],
)
def test_ids_at_the_top_of_the_vocabulary_come_back(tmp_path: Path, vocab_size: int, stored_type: str) -> None:
    eos, kind = vocab_size - 1, token_dtype(vocab_size)
    tables = [table_of([[vocab_size - 2, 0, eos], [eos], [vocab_size - 3, vocab_size - 2, eos]], kind)]
    tokenizer = tokenizer_of(vocab_size=vocab_size, eos=eos)
    compact(tmp_path, tables, 6, tokenizer=tokenizer)
    annotated(tmp_path, tables, 2, tokenizer=tokenizer)
    for name in ("compact", "annotated"):
        ours, theirs = open_indexed(tmp_path / name).windows(), megatron_reader(tmp_path / name)
        assert ours.dtype.name == theirs.index.dtype.__name__ == stored_type
        assert [theirs[i].tolist() for i in range(len(theirs))] == ours.tolist()
    assert sorted(open_indexed(tmp_path / "compact").windows()[0].tolist()) == sorted(
        [vocab_size - 2, 0, eos, eos, vocab_size - 3, vocab_size - 2, eos]
    )
    assert sorted(open_indexed(tmp_path / "annotated").windows().tolist()) == [
        [vocab_size - 3, vocab_size - 2, eos],
        [vocab_size - 2, 0, eos],
        [eos, eos, eos],
    ]


def test_an_id_that_is_not_in_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    for number, (vocab_size, bad) in enumerate([(65_499, 65_499), (65_537, 65_537), (65_537, 2**32 - 1)]):
        tables = [table_of([[1, 0]], token_dtype(vocab_size)), table_of([[5, 0], [1, bad, 0]], token_dtype(vocab_size))]
        for write in (compact, annotated):
            with pytest.raises(
                StreamError, match=f"part_00001 row 1: token id {bad}, expected ids below .*{vocab_size}"
            ):
                write(tmp_path / str(number), tables, 4, tokenizer=tokenizer_of(vocab_size=vocab_size))
    for kind in (pa.int32(), pa.int64()):  # the types that can hold a negative id
        negative = table_of([[-1, 0]], kind.to_pandas_dtype())
        with pytest.raises(StreamError, match=f"tokens of the type {kind}"):
            compact(tmp_path / str(kind), [negative], 4)


def test_empty_and_blank_and_long_documents(tmp_path: Path) -> None:
    texts = ["", " ", "\n\t \u3000", "some words come again and again, and so do others; " * 9, ""]
    artifact = small_tokenizer(tmp_path, texts)
    eos, tokenizer = artifact.statistics["eos_id"], Tokenizer.from_file(str(artifact.path("tokenizer.json")))
    ids = [[*tokenizer.encode(text).ids, eos] for text in texts]
    assert ids[0] == ids[4] == [eos]
    assert len(ids[1]) > 1 and len(ids[2]) > 1 and len(ids[3]) > 20
    made = compact(tmp_path, [table_of(ids)], 9, tokenizer=artifact)
    total = sum(map(len, ids))
    assert (made["windows"], made["remainder_tokens"]) == (total // 10, total % 10)
    written = open_indexed(tmp_path / "compact").tokens.tolist()
    assert written.count(eos) == 5 - (total % 10 > 0)  # the last EOS is in the remainder, if there is one

    with pytest.raises(StreamError, match=rf"part_00000 row 3: {len(ids[3])} tokens, .* at most 10 that fit"):
        annotated(tmp_path, [table_of(ids)], 9, tokenizer=artifact)
    longest = len(ids[3])
    annotated(tmp_path, [table_of(ids)], longest - 1, tokenizer=artifact)
    windows = open_indexed(tmp_path / "annotated").windows().tolist()
    assert sorted(windows) == sorted(row + [eos] * (longest - len(row)) for row in ids)


@MEMORY
def test_a_document_longer_than_a_window_spans_windows(tmp_path: Path, memory: int) -> None:
    long = [*range(1, 100), 0]
    made = compact(tmp_path, [table_of([long])], 9, memory)
    assert (made["windows"], made["remainder_tokens"]) == (10, 0)
    pieces = [long[start : start + 10] for start in range(0, 100, 10)]
    assert sorted(open_indexed(tmp_path / "compact").windows().tolist()) == pieces


@MEMORY
def test_documents_of_eos_alone_make_windows_of_eos(tmp_path: Path, memory: int) -> None:
    tables = [table_of([[7]] * 12, part=part) for part in range(2)]
    made = compact(tmp_path, tables, 4, memory, tokenizer=tokenizer_of(eos=7))
    assert (made["windows"], made["remainder_tokens"]) == (4, 4)
    assert open_indexed(tmp_path / "compact").windows().tolist() == [[7] * 5] * 4
    made = annotated(tmp_path, tables, 4, memory, tokenizer=tokenizer_of(eos=7))
    assert (made["windows"], made["tokens"], made["padding_tokens"]) == (24, 0, 96)
    assert open_indexed(tmp_path / "annotated").windows().tolist() == [[7] * 5] * 24
    assert np.load(tmp_path / "token_lengths.npy").tolist() == [0] * 24


@MEMORY
def test_parts_without_rows_change_nothing(tmp_path: Path, memory: int) -> None:
    full, empty = table_of([[1, 2, 0], [3, 0], [4, 5, 6, 0]]), table_of([])
    for name, tables in {"with": [full, empty, empty], "without": [full]}.items():
        compact(tmp_path / name, tables, 2, memory)
        annotated(tmp_path / name, tables, 4, memory)
    for file in ("compact.bin", "compact.idx", "annotated.bin", "annotated.idx", "sidecar.parquet"):
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()


@pytest.mark.parametrize(("tokens", "windows", "remainder"), [(4, 0, 4), (5, 1, 0), (6, 1, 1), (10, 2, 0)])
@MEMORY
def test_only_whole_windows_are_written(tmp_path: Path, tokens: int, windows: int, remainder: int, memory: int) -> None:
    made = compact(tmp_path, [table_of([[*range(1, tokens), 0]])], 4, memory)
    assert (made["windows"], made["remainder_tokens"], made["blocks"]) == (windows, remainder, min(windows, 1))
    stream = open_indexed(tmp_path / "compact")
    stream.check()
    assert len(stream) == windows
    assert (tmp_path / "compact.bin").stat().st_size == windows * 10


def test_a_stream_without_windows_is_a_stream(tmp_path: Path) -> None:
    compact(tmp_path, [table_of([]), table_of([])], 4)
    made = annotated(tmp_path, [table_of([]), table_of([])], 4)
    assert (made["windows"], made["documents"], made["padding_tokens"]) == (0, 0, 0)
    for name in ("compact", "annotated"):
        open_indexed(tmp_path / name).check()
        assert open_indexed(tmp_path / name).windows().size == 0
    assert np.load(tmp_path / "token_lengths.npy").shape == (0,)
    assert pq.read_metadata(tmp_path / "sidecar.parquet").num_rows == 0


def sparse_file(path: Path, size: int) -> None:
    """Make a file of zeros that takes no disk, or skip the test."""
    with path.open("wb") as file:
        try:
            file.truncate(size)
        except OSError as error:
            pytest.skip(f"this file system cannot hold a file of {size} bytes: {error}")
    if path.stat().st_blocks * 512 > size // 100:
        path.unlink()
        pytest.skip("this file system has no sparse files")


@pytest.mark.parametrize("kind", ["<u2", "<i4"])
def test_a_stream_of_more_than_2_31_tokens_and_2_32_bytes_has_64_bit_pointers(tmp_path: Path, kind: str) -> None:
    window, dtype = 2049, np.dtype(kind)
    count = 2**31 // window + 5
    assert count * window > 2**31 and count * window * dtype.itemsize > 2**32
    far = np.arange(4 * window).astype(dtype).reshape(4, window)
    path = tmp_path / "s.bin"
    sparse_file(path, count * window * dtype.itemsize)
    with path.open("r+b") as file:
        file.seek((count - 4) * window * dtype.itemsize)
        file.write(far.data)
    megatron.write_window_index(tmp_path / "s", count, window, dtype)

    ours = open_indexed(tmp_path / "s")
    ours.check()
    assert len(ours) == count
    assert int(ours.pointers[-1]) == (count - 1) * window * dtype.itemsize > 2**32 - 2**14
    assert np.array_equal(ours.windows()[-4:], far)
    theirs = megatron_reader(tmp_path / "s")
    assert len(theirs) == count
    for i in range(4):
        assert np.array_equal(ours[count - 4 + i], far[i])
        assert np.array_equal(theirs[count - 4 + i], far[i])
        assert theirs.get(count - 4 + i, offset=7, length=2).tolist() == far[i, 7:9].tolist()
    assert not theirs[count // 2].any()
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("memory", [4 << 20, 1 << 40])
def test_windows_are_shuffled_beyond_2_32_bytes(tmp_path: Path, memory: int) -> None:
    """The last rows of 5 GiB; memory for two rows, and for all."""
    rows, count, row_bytes = np.arange(1, 5), 5 << 10, 1 << 20
    position = np.arange(count)
    position[-4:] = position[[-2, -4, -1, -3]]
    path = tmp_path / "rows"
    places = plan_places(path, [position], count, row_bytes, memory=memory, workers=1, scratch=tmp_path)
    for row, value in zip(range(count - 4, count), rows.astype("<u8"), strict=True):
        places.write_bytes(row, row_bytes - 8, value[None])
    for bucket in places.buckets()[-3:]:
        places.sort(bucket).unlink()
    assert path.stat().st_size == count * row_bytes
    found = [np.fromfile(path, "<u8", 1, offset=(row + 1) * row_bytes - 8)[0] for row in position[-4:].tolist()]
    assert found == rows.tolist()
    assert len(places.buckets()) == (0 if memory == 1 << 40 else count // 2)
