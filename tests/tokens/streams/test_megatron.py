from __future__ import annotations

import importlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.peers import add_flat
from everytoken.tokens import StreamError, WindowWriter, open_indexed
from everytoken.tokens.streams import megatron


def write(prefix: Path, windows: np.ndarray, kind: Any, pieces: int = 2) -> None:
    with WindowWriter(prefix, windows.shape[1], kind) as writer:
        for piece in np.array_split(windows, pieces):
            writer.write(piece)
    assert writer.windows == len(windows)


@settings(deadline=None, max_examples=25)
@given(
    hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)),
    st.sampled_from([np.uint16, np.uint32]),
    st.integers(1, 4),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_what_is_written_is_read(windows: np.ndarray, kind: Any, pieces: int, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "_CHUNK", chunk)
        prefix = Path(folder) / "a.stream"
        write(prefix, windows, kind, pieces)
        stream = open_indexed(prefix)
        stream.check()
        assert stream.tokens.dtype == (np.uint16 if kind == np.uint16 else np.int32)
        assert np.array_equal(stream.windows(), windows)
        assert all(np.array_equal(stream[i], window) for i, window in enumerate(windows))


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    write(tmp_path / "s", np.array([[1, 2, 3], [4, 5, 6]]), np.uint16)
    assert (tmp_path / "s.bin").read_bytes() == b"".join(i.to_bytes(2, "little") for i in range(1, 7))
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + bytes([2, *[0] * 7, 3, *[0] * 7])
    body = [np.array([3, 3], "<i4"), np.array([0, 6], "<i8"), np.array([0, 1, 2], "<i8")]
    assert (tmp_path / "s.idx").read_bytes() == header + b"".join(array.tobytes() for array in body)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_megatron_s_own_reader_accepts_it(tmp_path: Path, kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no GPU
        indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    high = 65_535 if kind == np.uint16 else 2**31 - 1
    windows = np.arange(60, dtype=np.int64).reshape(12, 5) + (high - 59)
    write(tmp_path / "s", windows, kind)
    dataset = indexed.IndexedDataset(str(tmp_path / "s"), multimodal=False, mmap=True)
    assert len(dataset) == 12
    assert dataset.document_indices.tolist() == list(range(13))
    for i, window in enumerate(windows):
        assert dataset[i].tolist() == window.tolist()
        assert dataset.get(i, offset=1, length=2).tolist() == window[1:3].tolist()


@pytest.mark.parametrize(
    ("kind", "stored", "bad", "given_types"),
    [
        (np.uint16, "uint16", -1, (np.int32, np.int64)),
        (np.uint16, "uint16", 65_536, (np.int32, np.uint32, np.int64)),
        (np.uint32, "int32", -1, (np.int32, np.int64)),
        (np.uint32, "int32", 2**31, (np.uint32, np.int64)),
        (np.uint32, "int32", 2**32 - 1, (np.uint32, np.int64)),
    ],
)
def test_an_id_that_does_not_fit_is_an_error_and_leaves_no_index(
    tmp_path: Path, kind: Any, stored: str, bad: int, given_types: tuple[Any, ...]
) -> None:
    for given_type in given_types:
        with (
            pytest.raises(StreamError, match=f"token id {bad} does not fit in {stored}"),
            WindowWriter(tmp_path / "s", 2, kind) as writer,
        ):
            writer.write(np.array([[1, bad]], given_type))
        assert not (tmp_path / "s.idx").exists()


def test_windows_of_another_length_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(StreamError, match=r"shape \(1, 3\), expected \(n, 2\)"),
        WindowWriter(tmp_path / "s", 2, np.uint16) as writer,
    ):
        writer.write(np.array([[1, 2, 3]]))
    with pytest.raises(StreamError, match="float"):
        WindowWriter(tmp_path / "s", 2, np.float32)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    prefix = tmp_path / "s"
    index_path, bin_path = tmp_path / "s.idx", tmp_path / "s.bin"
    write(prefix, np.arange(12).reshape(4, 3), np.uint16)
    index, tokens = index_path.read_bytes(), bin_path.read_bytes()

    def expect(message: str, index: bytes = index, tokens: bytes = tokens) -> None:
        index_path.write_bytes(index)
        bin_path.write_bytes(tokens)
        with pytest.raises(StreamError, match=message):
            open_indexed(prefix).check()

    for cut in range(len(index)):
        expect(r"s\.idx", index[:cut])
    for cut in range(len(tokens)):
        expect(rf"s\.bin is truncated: {cut} bytes, its index ends at byte 24", tokens=tokens[:cut])
    expect(r"s\.idx is too long", index + b"\0")
    expect(r"s\.bin is too long", tokens=tokens + b"\0\0")
    expect("no Megatron index", b"x" + index[1:])
    expect("version 2", index[:9] + b"\x02" + index[10:])
    expect("dtype code 9", index[:17] + b"\x09" + index[18:])
    pointers = 34 + 4 * 4
    expect(r"sequence 1 starts at byte 7, expected 6", index[: pointers + 8] + b"\x07" + index[pointers + 9 :])
    bin_path.unlink()
    with pytest.raises(StreamError, match=r"s\.bin is missing"):
        open_indexed(prefix)


def test_sequences_of_several_lengths_are_no_windows(tmp_path: Path) -> None:
    write(tmp_path / "s", np.arange(12).reshape(4, 3), np.uint16)
    index = bytearray((tmp_path / "s.idx").read_bytes())
    index[34:38] = (2).to_bytes(4, "little")
    (tmp_path / "s.idx").write_bytes(bytes(index))
    with pytest.raises(StreamError, match="not all one length"):
        open_indexed(tmp_path / "s").windows()


@pytest.mark.parametrize(("kind", "highest"), [(np.uint16, 65_535), (np.uint32, 2**31 - 1)])
def test_the_lowest_and_the_highest_id_are_written(tmp_path: Path, kind: Any, highest: int) -> None:
    for given_type in (np.int64, np.uint32):
        write(tmp_path / "s", np.array([[0, highest], [highest, 0]], given_type), kind)
        assert open_indexed(tmp_path / "s").windows().tolist() == [[0, highest], [highest, 0]]


def test_a_sequence_is_asked_for_by_a_number_that_it_has(tmp_path: Path) -> None:
    write(tmp_path / "s", np.arange(12).reshape(4, 3), np.uint16)
    stream = open_indexed(tmp_path / "s")
    assert (stream[0].tolist(), stream[3].tolist()) == ([0, 1, 2], [9, 10, 11])
    for number in (-1, 4):
        with pytest.raises(IndexError, match=f"has 4 sequences, asked for number {number}"):
            stream[number]


def by_hand(
    prefix: Path, lengths: list[int], documents: list[int], pointers: list[int] | None = None, tokens: int | None = None
) -> megatron.IndexedTokens:
    """Write a stream of uint16 as the format says, with what is given in its index, and open it."""
    starts = (np.cumsum([0, *lengths[:-1]]) * 2).tolist() if lengths else []
    arrays = (np.array(lengths, "<i4"), np.array(pointers or starts, "<i8"), np.array(documents, "<i8"))
    numbers = [len(lengths).to_bytes(8, "little"), len(documents).to_bytes(8, "little")]
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + b"".join(numbers)
    prefix.with_name(prefix.name + ".idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    count = sum(lengths) if tokens is None else tokens
    prefix.with_name(prefix.name + ".bin").write_bytes(np.arange(count, dtype="<u2").tobytes())
    return open_indexed(prefix)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_sequences_of_any_length_and_documents_of_several_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Other programs write such streams: a sequence may be empty, and so may a document."""
    monkeypatch.setattr(megatron, "_CHUNK", chunk)
    stream = by_hand(tmp_path / "s", [3, 0, 2, 4], [0, 2, 2, 3, 4])
    stream.check()
    assert len(stream) == 4 and stream.document_index.tolist() == [0, 2, 2, 3, 4]
    assert [stream[i].tolist() for i in range(4)] == [[0, 1, 2], [], [3, 4], [5, 6, 7, 8]]
    for lengths, documents, pointers, message in [
        ([3, 0, 2, 4], [0, 2, 1, 3, 4], None, "document boundary 2 goes backwards"),
        ([3, 0, 2, 4], [0, 4, 3, 4], None, "document boundary 2 goes backwards"),
        ([3, 0, 2, 4], [0, 1, 2, 3, 4], [0, 6, 8, 10], "sequence 2 starts at byte 8, expected 6"),
        ([3, 0, 2, 4], [0, 1, 2, 3, 4], [2, 6, 6, 10], "sequence 0 starts at byte 2, expected 0"),
        ([5, -2, 2, 4], [0, 1, 2, 3, 4], [0, 10, 6, 10], "sequence 1 starts at byte 10, expected 10"),
    ]:
        with pytest.raises(StreamError, match=rf"s\.idx: {message}"):
            by_hand(tmp_path / "s", lengths, documents, pointers).check()


def test_an_index_whose_documents_are_not_all_sequences_is_refused(tmp_path: Path) -> None:
    for documents in ([], [1, 2], [0, 1], [0, 3], [0]):
        with pytest.raises(StreamError, match="the document index does not run from 0 to 2"):
            by_hand(tmp_path / "s", [3, 3], documents)
    for tokens, what in ((5, "truncated: 10"), (7, "too long: 14")):
        with pytest.raises(StreamError, match=rf"s\.bin is {what} bytes, its index ends at byte 12"):
            by_hand(tmp_path / "s", [3, 3], [0, 1, 2], tokens=tokens)
    with pytest.raises(StreamError, match=r"s\.bin is too long: 2 bytes, its index ends at byte 0"):
        by_hand(tmp_path / "s", [], [0], tokens=1)


def test_windows_are_sequences_of_one_length(tmp_path: Path) -> None:
    none = by_hand(tmp_path / "s", [], [0])
    none.check()
    assert none.windows().shape == (0, 1) and len(none) == 0
    assert by_hand(tmp_path / "s", [7], [0, 1]).windows().tolist() == [list(range(7))]
    # one length of all in the mean; the first and the last alike; the first unlike the others
    for lengths in ([2, 3, 1], [2, 4, 2], [3, 2, 2], [2, 2, 3]):
        with pytest.raises(StreamError, match=f"3 sequences with {sum(lengths)} tokens; the first has {lengths[0]}"):
            by_hand(tmp_path / "s", lengths, [0, 1, 2, 3]).windows()


def test_a_writer_writes_in_its_block_only_and_windows_only(tmp_path: Path) -> None:
    writer = WindowWriter(tmp_path / "s", 2, np.uint16)
    with pytest.raises(StreamError, match="the writer is not open"):
        writer.write(np.zeros((1, 2), np.uint16))
    with writer:
        writer.write(np.zeros((0, 2), np.int64))
        for shape in ((2,), (1, 2, 2)):
            with pytest.raises(StreamError, match="expected \\(n, 2\\)"):
                writer.write(np.zeros(shape, np.uint16))
        writer.write(np.ones((1, 2), np.uint16))
    with pytest.raises(StreamError, match="the writer is not open"):
        writer.write(np.zeros((1, 2), np.uint16))
    assert open_indexed(tmp_path / "s").windows().tolist() == [[1, 1]]


def test_documents_written_at_once_are_those_written_one_by_one(tmp_path: Path) -> None:
    """What ``peers.py`` gives Megatron's builder is what the builder makes of the same documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no GPU
        indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    texts = [np.array(ids, np.uint32) for ids in ([5, 6, 7], [], [8], [9, 10])]
    at_once, one_by_one = (indexed.IndexedDatasetBuilder(str(tmp_path / f"{i}.bin"), dtype=np.uint16) for i in range(2))
    add_flat(at_once, np.concatenate(texts[:2]), np.array([3, 0]), 4)
    add_flat(at_once, np.concatenate(texts[2:]), np.array([1, 2]), 4)
    for ids in texts:
        one_by_one.add_document([*ids, 4], [len(ids) + 1])
    for number, builder in enumerate((at_once, one_by_one)):
        builder.finalize(str(tmp_path / f"{number}.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"0{suffix}").read_bytes() == (tmp_path / f"1{suffix}").read_bytes()
