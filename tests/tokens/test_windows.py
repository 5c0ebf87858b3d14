from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everytoken.tokens import (
    StreamError,
    TrainingWindows,
    WindowWriter,
    open_training_windows,
    window_of_sample,
    write_annotated_stream,
    write_compact_stream,
)
from tests.tokens.corpora import encoded, stored, tokenizer_of

SEQ = 8


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A compact, an annotated and a canary stream."""
    paths = [tmp_path / name for name in ("compact", "annotated", "canary")]
    for path in paths:
        path.mkdir()
    common = {"tokenizer": tokenizer_of(), "seq_length": SEQ, "seed": 1, "shuffle_memory": 1 << 20}
    compact = stored(tmp_path / "a", [encoded([7, 3, 0, 12] * 5)])
    write_compact_stream(paths[0], tokens=compact, shuffle_block=None, **common)
    write_annotated_stream(paths[1], tokens=stored(tmp_path / "b", [encoded([0, 3, 8, 7])]), **common)
    write_annotated_stream(paths[2], tokens=stored(tmp_path / "c", [encoded([5, 2], 6)]), **common)
    return paths


@pytest.fixture
def windows(folders: list[Path]) -> TrainingWindows:
    return open_training_windows(folders)


def test_a_batch_is_the_windows_of_its_samples(windows: TrainingWindows) -> None:
    batch, seen = 4, set()
    for step in range(12):
        tokens, mask = windows.read_batch(step, batch)
        assert (tokens.dtype, tokens.shape) == (np.int64, (batch, SEQ + 1))
        assert (mask.dtype, mask.shape) == (bool, (batch, SEQ))
        for row in range(batch):
            number, window = window_of_sample(step * batch + row, windows.sizes)
            stream = windows.streams[number]
            seen.add(stream.name)
            assert np.array_equal(tokens[row], stream.windows[window])
            if stream.token_lengths is None:
                assert mask[row].all()
            else:
                assert mask[row].tolist() == [t < stream.token_lengths[window] for t in range(SEQ)]
    assert seen == {"compact", "annotated"}
    assert [len(stream) for stream in windows.streams] == [14, 4, 2]


def test_the_last_prediction_that_counts_is_eos(windows: TrainingWindows) -> None:
    tokens, mask = windows.read(np.arange(sum(windows.sizes)))
    streams, numbers = windows.locate(np.arange(sum(windows.sizes)))
    for row in np.flatnonzero(streams == 1):
        length = int(windows.streams[1].token_lengths[numbers[row]])
        counted = tokens[row, 1:][mask[row]]
        assert len(counted) == length
        assert (tokens[row, :length] != 0).all()
        assert not length or counted[-1] == 0
        assert (tokens[row, 1:][~mask[row]] == 0).all()


def test_ranks_and_ranges_read_what_the_global_batch_holds(windows: TrainingWindows) -> None:
    tokens, mask = windows.read_batch(5, 6)
    halves = [windows.read(np.arange(30 + 3 * rank, 33 + 3 * rank)) for rank in range(2)]
    assert np.array_equal(tokens, np.concatenate([half[0] for half in halves]))
    assert np.array_equal(mask, np.concatenate([half[1] for half in halves]))


def test_weights_choose_the_mix(folders: list[Path]) -> None:
    windows = open_training_windows(folders[:2], weights=(1, 1))
    streams, numbers = windows.locate(np.arange(10))
    assert streams.tolist() == [0, 1] * 5
    assert numbers[1::2].tolist() == [0, 1, 2, 3, 0]


def test_streams_that_do_not_belong_together_are_errors(folders: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with WindowWriter(other / "short", 4, np.uint16) as writer:
        writer.write(np.ones((3, 4), np.uint16))
    with pytest.raises(StreamError, match="one seq_length"):
        open_training_windows([folders[0], other])
    np.save(other / "token_lengths.npy", np.ones(2, np.int32))
    with pytest.raises(StreamError, match=r"expected int32 \(3,\)"):
        open_training_windows([other])
    with pytest.raises(StreamError, match="expected one stream"):
        open_training_windows([tmp_path])
    with pytest.raises(StreamError, match="weights"):
        open_training_windows(folders, weights=(1, 1))
