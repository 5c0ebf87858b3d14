"""Grouping on disk finds what a dictionary would, in memory that does not grow with the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.arrays import Integers
from everytoken.outofcore.grouping import distinct, find_repeats
from everytoken.seeds import numpy_generator
from tests.memory import traced_peak


def digests(numbers: Integers) -> Integers:
    """Two words a number, spread as those of a digest; the first is shared by pairs of numbers."""
    spread = np.stack([numbers // 2, numbers], axis=1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return spread.view(np.int64)


def found(keys: list[list[int]], memory: int, batch: int) -> list[list[int]]:
    """Return the repeats of rows that have the given keys each."""
    positions = np.array([position for position, some in enumerate(keys) for _ in some], np.int64)
    numbers = np.array([number for some in keys for number in some], np.int64)
    batches = [
        (positions[start : start + batch], digests(numbers[start : start + batch]))
        for start in range(0, len(numbers), batch)
    ]
    with tempfile.TemporaryDirectory() as folder:
        repeats = find_repeats(batches, 2, memory, Path(folder)).tolist()
        left = [path.name for path in Path(folder).rglob("*") if path.is_file()]
    assert left == ["sorted"], "every other file is deleted when it was read"
    return repeats


@settings(max_examples=150)
@given(
    st.lists(st.sets(st.integers(0, 25), max_size=4).map(sorted), max_size=60),
    st.sampled_from([24, 48, 100, 1_000, 100_000]),
    st.integers(1, 70),
)
def test_repeats_are_those_that_a_dictionary_finds(keys: list[list[int]], memory: int, batch: int) -> None:
    first: dict[int, int] = {}
    expected = []
    for position, some in enumerate(keys):
        earlier = [first[key] for key in some if key in first]
        expected += [[position, min(earlier)]] if earlier else []
        for key in some:
            first.setdefault(key, position)
    assert found(keys, memory, batch) == expected


@given(st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=5), st.sampled_from([8, 64, 100_000]))
def test_distinct_positions_are_sorted(batches: list[list[int]], memory: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arrays = [np.array(batch, np.int64) for batch in batches]
        result = distinct(arrays, memory, Path(folder)).tolist()
    assert result == sorted({position for batch in batches for position in batch})


@pytest.mark.parametrize(
    "different",
    [
        pytest.param(1, id="all equal", marks=pytest.mark.slow),
        pytest.param(1_000, id="many equal", marks=pytest.mark.slow),
        pytest.param(1_000_000, id="few equal", marks=pytest.mark.slow),
    ],
)
def test_memory_is_bounded_also_when_all_rows_are_equal(tmp_path: Path, different: int) -> None:
    """1,000,000 rows of 40 bytes: 40 MB of keys, and up to 16 MB of pairs, in 4 MB."""

    def batches() -> Iterator[tuple[Integers, Integers]]:
        generator = numpy_generator(1)
        for start in range(0, 1_000_000, 8_000):
            numbers = generator.integers(0, different, 8_000)
            yield np.arange(start, start + 8_000), np.repeat(digests(numbers), 2, axis=1)

    repeats, peak = traced_peak(lambda: find_repeats(batches(), 4, 4 << 20, tmp_path))
    assert peak < 2 * (4 << 20), "the bound, and as much again for what is sorted and copied"
    assert len(repeats) >= 1_000_000 - different
    assert (repeats[:, 1] < repeats[:, 0]).all()
    assert (np.diff(repeats[:, 0]) > 0).all()
