from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.seeds import numpy_generator
from everytoken.shards import ArtifactStore, plan_artifact
from everytoken.tokens import (
    DataParameters,
    StreamError,
    TrainingWindows,
    WindowWriter,
    open_training_windows,
    open_window_stream,
    window_of_sample,
    write_annotated_stream,
    write_compact_stream,
)
from everytoken.tokens.order import open_one_stream
from everytoken.tokens.streams.flat_tokens import FlatTokens
from everytoken.tokens.streams.loss_mask import pack_mask
from everytoken.tokens.streams.megatron import index_header, with_name
from tests.tokens.corpora import encoded, stored, tokenizer_of
from tests.tokens.packing_inputs import pack

SEQ = 8


def data(**changed: Any) -> DataParameters:
    given = {"schedule": "integer", "weights": None, "replay": None, "later_epochs": "as_written", "seed": 7}
    return DataParameters.model_validate({**given, "check": "full", "document_mask": False, **changed})


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A compact, an annotated and a canary stream."""
    paths = {name: tmp_path / name for name in ("compact", "annotated", "canary")}
    for path in paths.values():
        path.mkdir()
    common = {"tokenizer": tokenizer_of(), "seq_length": SEQ, "seed": 1, "shuffle_memory": 1 << 20}
    compact = stored(tmp_path / "a", [encoded([7, 3, 0, 12] * 5)])
    write_compact_stream(paths["compact"], tokens=compact, shuffle_block=None, **common)
    write_annotated_stream(paths["annotated"], tokens=stored(tmp_path / "b", [encoded([0, 3, 8, 7])]), **common)
    write_annotated_stream(paths["canary"], tokens=stored(tmp_path / "c", [encoded([5, 2], 6)]), **common)
    return paths


def windows_file(folder: Path, windows: np.ndarray) -> Path:
    folder.mkdir()
    with WindowWriter(folder / "stream", windows.shape[1], windows.dtype) as writer:
        writer.write(windows)
    return folder


# ---- what a batch is ----


@pytest.mark.parametrize("schedule", ["spp", "integer"])
def test_a_batch_is_the_windows_of_its_samples(folders: dict[str, Path], schedule: str) -> None:
    windows = open_training_windows(folders, data(schedule=schedule), 4)
    seen = set()
    for step in range(12):
        samples = windows.samples_of_step(step)
        tokens, mask = windows.read_batch(step)
        assert (tokens.dtype, tokens.shape) == (np.int64, (4, SEQ + 1))
        assert (mask.dtype, mask.shape) == (bool, (4, SEQ))
        streams, numbers = windows.locate(samples)
        if schedule == "spp":
            expected = [window_of_sample(sample, windows.sizes) for sample in samples.tolist()]
            assert list(zip(streams.tolist(), numbers.tolist(), strict=True)) == expected
        for row in range(4):
            stream, window = windows.streams[streams[row]], numbers[row]
            seen.add(stream.name)
            assert np.array_equal(tokens[row], stream.windows[window])
            if stream.token_lengths is None:
                assert mask[row].all()
            else:
                assert mask[row].tolist() == [t < stream.token_lengths[window] for t in range(SEQ)]
    assert seen == {"compact", "annotated", "canary"}
    assert (windows.names, windows.sizes) == (("compact", "annotated", "canary"), (14, 4, 2))


def test_the_last_prediction_that_counts_is_eos(folders: dict[str, Path]) -> None:
    windows = open_training_windows(folders, data(), 4)
    every = np.arange(sum(windows.sizes))
    tokens, mask = windows.read(every)
    streams, numbers = windows.locate(every)
    for row in np.flatnonzero(streams == 1):
        lengths = windows.streams[1].token_lengths
        assert lengths is not None
        length = int(lengths[numbers[row]])
        counted = tokens[row, 1:][mask[row]]
        assert len(counted) == length
        assert (tokens[row, :length] != 0).all()
        assert not length or counted[-1] == 0
        assert (tokens[row, 1:][~mask[row]] == 0).all()


def test_any_ranks_read_the_rows_of_the_global_batch(folders: dict[str, Path]) -> None:
    changing = [{"from_step": 0, "weights": {"compact": 2, "annotated": 1, "canary": 1}}]
    changing += [{"from_step": 3, "weights": {"compact": 0, "annotated": 1, "canary": 0.5}}]
    windows = open_training_windows(folders, data(later_epochs="permuted", weights=changing), 12)
    for step in range(5):
        samples = windows.samples_of_step(step)
        tokens, mask = windows.read_batch(step)
        for ranks in (1, 2, 3, 4, 12):
            for rows in (np.arange(12).reshape(ranks, -1)[-1], np.arange(12)[ranks - 1 :: ranks]):
                own = windows.read(samples[rows])
                assert np.array_equal(own[0], tokens[rows]) and np.array_equal(own[1], mask[rows])
    assert windows.read(np.empty(0, np.int64))[0].shape == (0, SEQ + 1)


def test_weights_choose_the_mix_and_a_replay_reads_the_same_windows(folders: dict[str, Path]) -> None:
    two = {name: folders[name] for name in ("compact", "annotated")}
    even = [{"from_step": 0, "weights": {"compact": 0.5, "annotated": 0.5}}]
    windows = open_training_windows(two, data(weights=even), 5)
    streams, numbers = windows.locate(np.arange(10))
    assert streams.tolist() == [0, 1] * 5
    assert numbers[1::2].tolist() == [0, 1, 2, 3, 0]
    replay = open_training_windows(two, data(weights=even, replay=(5, 15)), 5)
    assert (windows.samples_available, replay.samples_available) == (None, 10)
    assert np.array_equal(replay.read_batch(0)[0], windows.read_batch(1)[0])
    assert replay.ranges(0, 10) == windows.ranges(5, 15)
    assert windows.ranges(0, 10)["annotated"] == {"windows": 5, "first": 0, "end": 5, "epochs": 1.25}
    with pytest.raises(StreamError, match=r"step 2 reads samples up to 14 .*replay \[5, 15\) has only 10"):
        replay.read_batch(2)


# ---- streams of every kind ----


def test_a_loss_mask_beside_a_stream_says_what_counts(tmp_path: Path) -> None:
    tokens = numpy_generator(1).integers(1, 50, (6, 12)).astype(np.uint16)
    counted = numpy_generator(2).integers(0, 2, (6, 11)).astype(bool)
    counted[:, -1] = True
    folder = windows_file(tmp_path / "chats", tokens)
    np.save(folder / "loss_mask.npy", pack_mask(counted))
    windows = open_training_windows({"chats": folder}, data(), 3)
    found = [np.concatenate(parts) for parts in zip(windows.read_batch(0), windows.read_batch(1), strict=True)]
    assert np.array_equal(found[0], tokens) and np.array_equal(found[1], counted)
    np.save(folder / "token_lengths.npy", np.ones(6, np.int32))
    for check in ("sizes", "sampled", "full"):
        with pytest.raises(StreamError, match="a stream has one of them"):
            open_training_windows({"chats": folder}, data(check=check), 3)


def test_raw_shards_and_a_tensor_are_streams_beside_windows(folders: dict[str, Path], tmp_path: Path) -> None:
    import torch

    pack(tmp_path)  # shards of 500 tokens
    flat = numpy_generator(3).integers(0, 700, 1000)
    torch.save(torch.from_numpy(flat), tmp_path / "tensor.pt")
    streams = {"compact": folders["compact"], "raw": tmp_path / "raw_shards", "tensor": tmp_path / "tensor.pt"}
    streams["prefix"] = folders["canary"] / "annotated"
    even = [{"from_step": 0, "weights": dict.fromkeys(streams, 1)}]
    windows = open_training_windows(streams, data(weights=even), 8)
    shards = np.concatenate([np.fromfile(path, "<u4") for path in sorted((tmp_path / "raw_shards").glob("*.bin"))])
    assert windows.sizes == (14, (len(shards) - 1) // SEQ, 124, 2)
    samples = np.arange(4 * windows.sizes[1])
    tokens, mask = windows.read(samples)
    chosen, numbers = windows.locate(samples)
    assert mask[chosen != 3].all() and not mask[chosen == 3].all()
    for stream, ids in ((1, shards), (2, flat)):
        places = numbers[chosen == stream][:, None] * SEQ + np.arange(SEQ + 1)
        assert np.array_equal(tokens[chosen == stream], ids[places])
    alone = open_training_windows({"tensor": tmp_path / "tensor.pt"}, data(), 8, seq_length=50)
    assert (alone.seq_length, alone.sizes) == (50, (19,))
    assert open_one_stream("mine", folders["compact"], "sizes", 99).seq_length == SEQ, "windows say their length"
    with pytest.raises(StreamError, match="nothing says how long the windows"):
        open_training_windows({"tensor": tmp_path / "tensor.pt"}, data(), 8)
    with pytest.raises(StreamError, match="one seq_length"):
        open_training_windows(streams, data(weights=even), 8, seq_length=50)


def documents_file(folder: Path, documents: list[list[int]]) -> Path:
    """A Megatron stream with one sequence a document, as `everytoken tokenize` and Megatron's own script write."""
    folder.mkdir()
    lengths = np.array([len(ids) for ids in documents], "<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * 2
    np.concatenate(documents).astype("<u2").tofile(folder / "documents.bin")
    header = index_header(len(documents), np.dtype("<u2"))
    ends = np.arange(len(documents) + 1, dtype="<i8")
    (folder / "documents.idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + ends.tobytes())
    return folder


def test_a_stream_of_documents_is_read_as_flat_tokens(tmp_path: Path) -> None:
    documents = [[5, 6, 7, 0], [8, 0], [9, 10, 11, 12, 13, 0], [14, 15, 16, 17, 18, 19, 20, 0]]
    folder = documents_file(tmp_path / "documents", documents)
    windows = open_training_windows({"documents": folder}, data(), 2, seq_length=SEQ)
    flat = np.concatenate(documents)
    assert windows.sizes == ((len(flat) - 1) // SEQ,)
    tokens, mask = windows.read_batch(0)
    assert tokens.tolist() == [flat[i * SEQ : (i + 1) * SEQ + 1].tolist() for i in range(2)]
    assert mask.all()
    with pytest.raises(StreamError, match="give seq_length"):
        open_training_windows({"documents": folder}, data(), 2)
    with (folder / "documents.bin").open("r+b") as file:
        file.truncate(30)
    with pytest.raises(StreamError, match=r"documents\.bin is truncated: 30 bytes"):
        open_training_windows({"documents": folder}, data(), 2, seq_length=SEQ)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 9), st.data())
def test_windows_over_the_borders_of_files_are_those_of_one_file(
    sizes: list[int], seq_length: int, draw: st.DataObject
) -> None:
    ids = numpy_generator(4).integers(0, 60_000, sum(sizes)).astype(np.uint16)
    windows = FlatTokens(np.split(ids, np.cumsum(sizes)[:-1])).windows(seq_length)
    assert len(windows) == max(0, len(ids) - 1) // seq_length
    if not len(windows):
        return
    numbers = np.array(draw.draw(st.lists(st.integers(0, len(windows) - 1), max_size=12)), np.int64)
    assert np.array_equal(windows.read(numbers), ids[numbers[:, None] * seq_length + np.arange(seq_length + 1)])
    for wrong in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows.read(np.array([0, wrong]))


# ---- what is refused ----


@pytest.mark.parametrize("check", ["sizes", "sampled", "full"])
def test_what_is_not_there_is_an_error(tmp_path: Path, check: str) -> None:
    for path in (tmp_path / "nothing", tmp_path / "nothing.bin", tmp_path):
        with pytest.raises(StreamError, match=r"there are no tokens at|holds no tokens; expected"):
            open_training_windows({"compact": path}, data(check=check), 4, seq_length=8)
    with pytest.raises(StreamError, match="is no Megatron stream"):
        open_window_stream(tmp_path / "nothing")


@pytest.mark.parametrize("check", ["sizes", "sampled", "full"])
def test_a_truncated_file_is_refused_and_named(tmp_path: Path, check: str) -> None:
    import torch

    pack(tmp_path)
    windows_file(tmp_path / "stream", np.ones((40, SEQ + 1), np.uint16))
    torch.save(torch.arange(5000), tmp_path / "tensor.pt")
    cases = {
        "stream/stream.bin": r"stream\.bin is truncated",
        "raw_shards/shard_00001.bin": r"shard_00001\.bin(?: is truncated|: expected)",
        "tensor.pt": r"tensor\.pt is no tensor of torch.save \(or a truncated one\)",
    }
    for name, message in cases.items():
        path = tmp_path / name
        os.truncate(path, path.stat().st_size - 8)
        with pytest.raises(StreamError, match=message):
            open_training_windows({"s": path if name == "tensor.pt" else path.parent}, data(check=check), 4, SEQ)


def test_a_changed_byte_is_found_by_the_full_check(tmp_path: Path) -> None:
    import torch

    documents = stored(tmp_path / "documents", [encoded([7, 3, 0, 12] * 50)])
    planned = plan_artifact(
        write_compact_stream,
        tokens=documents,
        tokenizer=tokenizer_of(),
        seq_length=SEQ,
        seed=1,
        shuffle_block=None,
        shuffle_memory=1 << 20,
    )
    compact = ArtifactStore(tmp_path / "compact").save(planned)
    assert compact.folder is not None
    packed = pack(tmp_path)
    assert packed.folder is not None
    bare = shutil.copytree(packed.folder, tmp_path / "without_ledger")
    (bare / "ledger.json").unlink()
    torch.save(torch.arange(5000), tmp_path / "tensor.pt")
    for path, opened in (
        (compact.folder / "compact.bin", compact),
        (compact.folder / "compact.bin", compact.folder / "compact"),
        (packed.folder / "shard_00001.bin", packed),
        (bare / "shard_00001.bin", bare),
        (bare / "shard_00002.bin", bare / "shard_00002.bin"),
        (tmp_path / "tensor.pt", tmp_path / "tensor.pt"),
    ):
        open_training_windows({"s": opened}, data(), 4, SEQ)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(StreamError, match=rf"{path.name}.*(SHA-256|CRC-32)"):
            open_training_windows({"s": opened}, data(), 4, SEQ)
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def test_ids_that_are_no_ids_are_found(tmp_path: Path) -> None:
    import torch

    ids = torch.arange(100_000) % 500
    ids[-700:] = -3
    torch.save(ids, tmp_path / "tensor.pt")
    for check in ("sampled", "full"):
        with pytest.raises(StreamError, match="expected an id of at least 0"):
            open_training_windows({"s": tmp_path / "tensor.pt"}, data(check=check), 4, SEQ)


def test_a_sample_of_windows_is_looked_at_and_only_sizes_are_not(tmp_path: Path) -> None:
    folder = windows_file(tmp_path / "made", np.arange(36, dtype=np.int32).reshape(4, 9))
    with (folder / "stream.bin").open("r+b") as file:
        file.seek(8)
        file.write(np.int32(-3).tobytes())  # in the first window, which is in every sample
    for check in ("sampled", "full"):
        with pytest.raises(StreamError, match="expected an id of at least 0"):
            open_window_stream(folder, check)
    assert open_window_stream(folder, "sizes").windows[0, 2] == -3


def test_streams_that_do_not_belong_together_are_errors(folders: dict[str, Path], tmp_path: Path) -> None:
    other = windows_file(tmp_path / "other", np.ones((3, 4), np.uint16))
    with pytest.raises(StreamError, match="one seq_length"):
        open_training_windows({"compact": folders["compact"], "other": other}, data(), 4)
    shutil.copy(other / "stream.idx", other / "second.idx")
    with pytest.raises(StreamError, match="expected one stream"):
        open_training_windows({"other": other}, data(), 4)
    (other / "second.idx").unlink()
    np.save(other / "token_lengths.npy", np.ones(2, np.int32))
    with pytest.raises(StreamError, match=r"expected int32 \(3,\)"):
        open_training_windows({"other": other}, data(), 4)


def test_no_window_is_left_unwritten(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    windows: TrainingWindows = open_training_windows(folders, data(later_epochs="permuted"), 7)
    real = np.empty

    def poisoned(shape: Any, dtype: Any = float, **rest: Any) -> np.ndarray:
        made = real(shape, dtype, **rest)
        made.fill(-99)
        return made

    monkeypatch.setattr(np, "empty", poisoned)
    for step in range(9):
        assert (windows.read_batch(step)[0] >= 0).all()


@pytest.mark.parametrize("check", ["sizes", "sampled", "full"])
def test_a_stream_is_opened_by_its_folder_its_prefix_or_one_of_its_files(tmp_path: Path, check: str) -> None:
    folder = windows_file(tmp_path / "made", np.arange(36, dtype=np.uint16).reshape(4, 9))
    (prefix,) = (path.with_suffix("") for path in folder.glob("*.idx"))
    for path in (folder, prefix, with_name(prefix, ".bin"), with_name(prefix, ".idx")):
        stream = open_window_stream(path, check)
        assert (stream.name, stream.windows.tolist()) == (prefix.name, np.arange(36).reshape(4, 9).tolist())


@pytest.mark.parametrize("check", ["sizes", "sampled", "full"])
def test_a_folder_of_saved_tensors_is_one_stream(tmp_path: Path, check: str) -> None:
    import torch

    for number, ids in enumerate(np.split(np.arange(100), [37])):
        torch.save(torch.from_numpy(ids), tmp_path / f"shard_{number:05d}.bin")
    windows = open_training_windows({"tensors": tmp_path}, data(check=check), 2, seq_length=9)
    assert windows.sizes == (11,)
    assert windows.read_batch(2)[0].tolist() == [list(range(first, first + 10)) for first in (36, 45)]


@pytest.mark.parametrize("seq_length", [7, 8, 9, 16])
def test_a_loss_mask_has_a_bit_for_each_prediction(tmp_path: Path, seq_length: int) -> None:
    folder = windows_file(tmp_path / "made", np.full((3, seq_length + 1), 5, np.uint16))
    rows = pack_mask(np.ones((3, seq_length), bool))
    for check in ("sizes", "sampled", "full"):
        np.save(folder / "loss_mask.npy", rows)
        stream = open_window_stream(folder, check)
        assert stream.loss_mask is not None and stream.loss_mask.tolist() == rows.tolist()
        np.save(folder / "loss_mask.npy", np.pad(rows, ((0, 0), (0, 1))))
        with pytest.raises(StreamError, match="expected uint8"):
            open_window_stream(folder, check)
