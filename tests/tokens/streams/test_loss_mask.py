"""A loss mask says which predictions count, and its windows hold nothing but EOS where none can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.loss_mask import check_masks, mask_bytes, open_loss_mask, pack_mask, unpack_mask

EOS = 9


def check(tokens: list[int], counted: list[int], eos: int | None = EOS, alone: bool = False) -> int:
    """Check a second window of which nothing but the numbers is remarkable: 1, 2, 3 ... EOS, all counted."""
    plain = [*range(1, len(tokens)), EOS]
    masks = pack_mask(np.array([[1] * len(counted), counted], bool))
    return check_masks(
        Path("s"), np.array([3, 1_004]), np.array([plain, tokens]), masks, eos, clears_eos_alone=alone
    ) - len(counted)


@given(st.integers(1, 40), st.data())
def test_a_bit_stands_for_each_prediction_the_lowest_first(seq_length: int, data: st.DataObject) -> None:
    counted = data.draw(st.lists(st.booleans(), min_size=seq_length, max_size=seq_length))
    rows = pack_mask(np.array([counted, counted[::-1]]))
    assert rows.shape == (2, mask_bytes(seq_length)) and rows.dtype == np.uint8
    assert int.from_bytes(rows[0].tobytes(), "little") == sum(bit << i for i, bit in enumerate(counted))
    assert unpack_mask(rows, seq_length).tolist() == [counted, counted[::-1]]


@pytest.mark.parametrize(
    ("tokens", "counted", "count"),
    [
        ([1, 2, 3, 4, EOS, EOS], [1, 1, 1, 1, 0], 4),  # EOS is the last that is learned
        ([1, 2, 3, 4, 5, EOS], [1, 1, 0, 1, 0], 3),  # the last that is learned is no EOS, and a turn before is not
        ([1, 2, EOS, EOS, EOS, EOS], [1, 0, 0, 0, 0], 1),
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1], 1),
        ([1, EOS, EOS, EOS, EOS, EOS], [0, 0, 0, 0, 0], 0),  # nothing counts, nothing is there
        ([EOS] * 6, [0, 0, 0, 0, 0], 0),
    ],
)
def test_windows_whose_mask_fits_are_counted(tokens: list[int], counted: list[int], count: int) -> None:
    assert check(tokens, counted) == count
    assert check(tokens, counted, eos=None) == count


@pytest.mark.parametrize(
    ("tokens", "counted", "message"),
    [
        ([1, 2, 3, 4, EOS, EOS], [1, 1, 0, 0, 0], "position 3, after the last prediction that counts.* 9, found 4"),
        ([1, 2, 3, EOS, EOS, 5], [1, 1, 0, 0, 0], "position 5, after the last prediction that counts.* 9, found 5"),
        ([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 0], "position 5, after the last prediction that counts.* 9, found 6"),
        ([1, 2, 2, 2, 2, 2], [0, 0, 0, 0, 0], "position 1, after the last prediction that counts.* 9, found 2"),
        ([1, 2, EOS, EOS, EOS, EOS], [0, 0, 0, 0, 0], "no prediction counts, expected at least one"),
        ([1, EOS, EOS, EOS, EOS, 2], [0, 0, 0, 0, 0], "no prediction counts, expected at least one"),
    ],
)
def test_content_that_no_prediction_reaches_is_named(tokens: list[int], counted: list[int], message: str) -> None:
    with pytest.raises(StreamError, match=rf"s window 1,004:? {message}"):
        check(tokens, counted)


def test_without_eos_only_windows_that_teach_nothing_are_refused() -> None:
    assert check([1, 2, 3, 4, 5, 6], [1, 1, 0, 0, 0], eos=None) == 2
    with pytest.raises(StreamError, match="window 1,004: no prediction counts"):
        check([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0], eos=None)


def test_tombstones_clear_eos_alone() -> None:
    assert check([1, EOS, EOS, 4, 5, EOS], [0, 0, 1, 1, 1], alone=True) == 3
    assert check([1, 2, EOS, 4, 5, EOS], [0, 1, 1, 1, 1]) == 4
    message = r"window 1,004 position 1, whose prediction does not count: expected EOS 9 .*, found 2"
    with pytest.raises(StreamError, match=message):
        check([1, 2, EOS, 4, 5, EOS], [0, 1, 1, 1, 1], alone=True)


@pytest.mark.parametrize("bit", [5, 7])
def test_a_bit_beyond_the_predictions_is_named(bit: int) -> None:
    rows = pack_mask(np.ones((3, 5), bool))
    rows[1] |= np.uint8(1 << bit)
    with pytest.raises(StreamError, match=r"s window 4: .* a bit beyond the 5 predictions"):
        check_masks(Path("s"), np.array([3, 4, 5]), np.ones((3, 6), int), rows, None)


def test_no_windows_have_no_faults() -> None:
    none: Any = np.empty((0, 6), np.uint16)
    assert check_masks(Path("s"), np.empty(0, np.int64), none, np.empty((0, 1), np.uint8), EOS) == 0


def test_a_file_of_another_shape_or_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loss_mask.npy"
    for windows in (0, 3):
        np.save(path, np.ones((windows, 2), np.uint8))
        assert open_loss_mask(path, windows, 9).tolist() == [[1, 1]] * windows
        assert open_loss_mask(path, windows, 16).tolist() == [[1, 1]] * windows
        for expected in ((windows + 1, 9), (windows, 8), (windows, 17)):
            with pytest.raises(StreamError, match="expected uint8"):
                open_loss_mask(path, *expected)
    np.save(path, np.ones((3, 2), np.int8))
    with pytest.raises(StreamError, match=r"holds int8 \(3, 2\), expected uint8 \(3, 2\)"):
        open_loss_mask(path, 3, 9)
