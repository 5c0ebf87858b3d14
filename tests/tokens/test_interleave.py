from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.tokens import StreamError, later_shares, window_of_sample, windows_of_samples

STREAMS = ("compact", "annotated", "canary")
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "interleave.json").read_text())


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
    last = window_of_sample(254_313 * 960 - 1, sizes)
    assert round(100 * last[1] / sizes[0], 2) == 46.02


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    st.integers(0, 10**9),
)
def test_scalar_and_array_forms_agree(sizes: list[int], start: int) -> None:
    samples = np.arange(start, start + 40)
    streams, windows = windows_of_samples(samples, sizes)
    assert [window_of_sample(int(i), sizes) for i in samples] == list(
        zip(streams.tolist(), windows.tolist(), strict=True)
    )


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any))
def test_one_epoch_reads_every_stream_in_order_and_once_but_for_rounding_at_its_end(sizes: list[int]) -> None:
    streams, windows = windows_of_samples(np.arange(sum(sizes)), sizes)
    for stream, size in enumerate(sizes):
        read = windows[streams == stream]
        assert abs(len(read) - size) <= 1
        assert read.tolist() == [i % size for i in range(len(read))]


def test_two_streams_follow_the_rule_without_canary() -> None:
    assert [window_of_sample(i, (8, 2)) for i in range(10)] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 4), (0, 5), (0, 6), (0, 7), (1, 1)
    ]  # fmt: skip


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=4), st.integers(1, 400))
def test_other_weights_are_kept_in_every_prefix(weights: list[float], samples: int) -> None:
    streams, _ = windows_of_samples(np.arange(samples), [1000] * len(weights), weights)
    for stream, weight in enumerate(weights):
        wanted = samples * weight / sum(weights)
        assert abs(int((streams == stream).sum()) - wanted) < len(weights)


@pytest.mark.parametrize(
    ("sizes", "weights", "message"),
    [
        ((5, 0), (1.0, 1.0), "stream 1 has weight 1.0 but 0 windows"),
        ((5, 5), (1.0,), "2 streams have 1 weights"),
        ((5, 5), (1.0, -1.0), "none below 0"),
        ((0, 0), None, "sum above 0"),
        ((), None, "sum above 0"),
    ],
)
def test_wrong_weights_are_errors(sizes: tuple[int, ...], weights: Any, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        window_of_sample(0, sizes, weights)
    with pytest.raises(StreamError, match=message):
        windows_of_samples(np.arange(3), sizes, weights)


def test_shares_are_those_of_the_published_rule() -> None:
    n_c, n_a, n_k = 427_681_689, 102_772_028, 60_000
    assert later_shares((n_c, n_a, n_k)) == ((n_a + n_k) / (n_c + n_a + n_k), n_k / (n_a + n_k))
