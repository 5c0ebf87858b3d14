from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.outofcore.errors import ShuffleError
from everytoken.outofcore.shuffle import destinations, in_order
from everytoken.seeds import numpy_generator

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("tokens", pa.list_(pa.uint16())),
        ("window", pa.binary(3)),
        ("flag", pa.bool_()),
    ]
)


def table(sizes: list[int]) -> pa.Table:
    return pa.table(
        {
            "text": [None if n % 7 == 3 else "é" * n for n in sizes],
            "number": range(len(sizes)),
            "tokens": [list(range(n)) for n in sizes],
            "window": [bytes([i % 251, n % 251, 0]) for i, n in enumerate(sizes)],
            "flag": [n % 2 == 0 for n in sizes],
        },
        schema=SCHEMA,
    )


def ordered(rows: pa.Table, position: np.ndarray, memory: int, batch_rows: int) -> pa.Table:
    with tempfile.TemporaryDirectory() as scratch:
        batches = rows.to_batches(max_chunksize=batch_rows)
        found = list(in_order(batches, position, memory=memory, scratch=Path(scratch)))
        assert not list(Path(scratch).iterdir())
    return pa.Table.from_batches(found, rows.schema)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(0, 1000),
    st.sampled_from([1, 50, 600, 3000, 1 << 30]),
    st.sampled_from([1, 3, 1000]),
)
def test_any_bound_gives_the_same_permutation(sizes: list[int], seed: int, memory: int, batch_rows: int) -> None:
    rows = table(sizes)
    permutation = numpy_generator(seed).permutation(len(sizes))
    assert ordered(rows, destinations(permutation), memory, batch_rows).equals(rows.take(pa.array(permutation)))


def test_row_r_comes_out_as_row_position_r() -> None:
    rows = table([1, 2, 3])
    assert ordered(rows, np.array([2, 0, 1]), 1, 10)["number"].to_pylist() == [1, 2, 0]


def test_rows_are_spilled_to_disk_and_stay_there_until_they_are_wanted(tmp_path: Path) -> None:
    rows = table([30] * 2000)
    position = destinations(numpy_generator(0).permutation(2000))
    iterator = in_order(rows.to_batches(max_chunksize=50), position, memory=rows.nbytes // 4, scratch=tmp_path)
    first = next(iterator)
    files = [path for path in tmp_path.rglob("bucket_*") if path.is_file() and not path.suffix]
    assert len(files) > 4
    assert first.nbytes < rows.nbytes // 4
    iterator.close()
    assert not list(tmp_path.iterdir())


def test_temporary_files_are_gone_after_an_error(tmp_path: Path) -> None:
    rows = table([10] * 500)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows.slice(0, 400).to_batches(max_chunksize=20)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        list(in_order(failing(), np.arange(500), memory=1000, scratch=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("rows", [0, 4, 6, 50])
def test_a_wrong_number_of_rows_is_an_error(tmp_path: Path, memory: int, rows: int) -> None:
    with pytest.raises(ShuffleError, match=r"position has 5 entries, the input has (at least )?\d+ rows"):
        list(in_order(table([1] * rows).to_batches(), np.arange(5), memory=memory, scratch=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("position", [[0, 0], [1, 2], [-1, 0]])
def test_what_is_no_permutation_is_refused(tmp_path: Path, position: list[int]) -> None:
    with pytest.raises(ShuffleError, match="no permutation"):
        list(in_order(table([1, 2]).to_batches(), np.array(position), memory=100, scratch=tmp_path))
