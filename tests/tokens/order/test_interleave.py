from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.tokens import SppSchedule, StreamError, later_shares, window_of_sample

STREAMS = ("compact", "annotated", "canary")
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "interleave.json").read_text())


def windows_of_samples(samples: np.ndarray, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
    streams, ordinals = SppSchedule(sizes).locate(samples)
    return streams, ordinals % np.array(sizes)[streams]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(sum(case["sizes"].values())))
def test_samples_are_those_of_the_reference(case: dict[str, Any]) -> None:
    sizes = [case["sizes"][name] for name in STREAMS]
    expected = [(STREAMS.index(stream), window) for _, stream, window in case["samples"]]
    samples = [sample for sample, _, _ in case["samples"]]
    assert [window_of_sample(sample, sizes) for sample in samples] == expected
    streams, windows = windows_of_samples(np.array(samples), sizes)
    assert list(zip(streams.tolist(), windows.tolist(), strict=True)) == expected


def test_published_sizes_give_the_published_facts() -> None:
    sizes = (427_681_689, 102_772_028, 60_000)
    total = sum(sizes)
    assert [round(size / total, 6) for size in sizes[:2]] == [0.806165, 0.193722]
    assert round(sizes[2] / total, 9) == 0.000113098
    streams, _ = windows_of_samples(np.arange(30_000), sizes)
    assert np.flatnonzero(streams == 2).tolist() == [8842, 17685, 26527]
    read = SppSchedule(sizes).counts(254_313 * 960)
    assert sum(read) == 254_313 * 960
    assert [round(100 * count / size, 2) for count, size in zip(read, sizes, strict=True)] == [46.02] * 3


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    st.integers(0, 10**9),
)
def test_scalar_and_array_forms_agree(sizes: list[int], start: int) -> None:
    samples = np.arange(start, start + 40)
    streams, windows = windows_of_samples(samples, [max(1, size) for size in sizes])
    expected = [window_of_sample(int(i), [max(1, size) for size in sizes]) for i in samples]
    assert expected == list(zip(streams.tolist(), windows.tolist(), strict=True))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any))
def test_one_epoch_reads_every_stream_in_order_and_once_but_for_rounding_at_its_end(sizes: list[int]) -> None:
    streams, ordinals = SppSchedule(sizes).locate(np.arange(sum(sizes)))
    for stream, size in enumerate(sizes):
        read = ordinals[streams == stream]
        assert abs(len(read) - size) <= 1
        assert read.tolist() == list(range(len(read)))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=4).filter(any), st.integers(0, 10**11))
def test_counts_and_items_are_those_of_the_samples(sizes: list[int], start: int) -> None:
    schedule = SppSchedule(sizes)
    streams, ordinals = schedule.locate(np.arange(start, start + 12))
    assert list(np.bincount(streams, minlength=len(sizes))) == [
        after - before for before, after in zip(schedule.counts(start), schedule.counts(start + 12), strict=True)
    ]
    for i, (stream, ordinal) in enumerate(zip(streams.tolist(), ordinals.tolist(), strict=True)):
        assert schedule.item(stream, ordinal) == start + i


def test_two_streams_follow_the_rule_without_canary() -> None:
    assert [window_of_sample(i, (8, 2)) for i in range(10)] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 4), (0, 5), (0, 6), (0, 7), (1, 1)
    ]  # fmt: skip


def test_streams_without_windows_are_left_out_and_none_at_all_is_an_error() -> None:
    assert [window_of_sample(i, (0, 3, 0)) for i in range(4)] == [(1, 0), (1, 1), (1, 2), (1, 0)]
    assert SppSchedule((0, 3)).item(0, 0) is None
    for sizes in ((0, 0), ()):
        with pytest.raises(StreamError, match="expected some"):
            window_of_sample(0, sizes)
        with pytest.raises(StreamError, match="expected some"):
            SppSchedule(sizes)


def test_shares_are_those_of_the_published_rule() -> None:
    n_c, n_a, n_k = 427_681_689, 102_772_028, 60_000
    assert later_shares((n_c, n_a, n_k)) == ((n_a + n_k) / (n_c + n_a + n_k), n_k / (n_a + n_k))
