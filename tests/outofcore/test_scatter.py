from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.outofcore.errors import ShuffleError
from everytoken.outofcore.row_scatter import RowScatter
from everytoken.seeds import numpy_generator
from tests.memory import traced_peak


def scattered(path: Path, rows: np.ndarray, position: np.ndarray, memory: int, pieces: int, before: bytes) -> bytes:
    with path.open("w+b") as file:
        file.write(before)
        scatter = RowScatter(file, position, rows.shape[1], rows.dtype, memory)
        for piece in np.array_split(rows, pieces):
            scatter.add(piece)
        scatter.finish()
        file.write(b"after")
    return path.read_bytes()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 70),
    st.integers(1, 5),
    st.sampled_from(["<u2", "<i4"]),
    st.integers(0, 99),
    st.one_of(st.integers(0, 1500), st.just(1 << 20)),
    st.integers(1, 9),
    st.binary(max_size=9),
)
def test_row_r_is_at_place_position_r_for_any_memory(
    count: int, items: int, kind: str, seed: int, memory: int, pieces: int, before: bytes
) -> None:
    rows = np.arange(count * items).astype(kind).reshape(count, items)
    position = numpy_generator(seed).permutation(count)
    expected = np.empty_like(rows)
    expected[position] = rows
    with tempfile.TemporaryDirectory() as name:
        written = scattered(Path(name) / "rows", rows, position, memory, pieces, before)
        assert [path.name for path in Path(name).iterdir()] == ["rows"]
    assert written == before + expected.tobytes() + b"after"


def test_memory_is_what_was_given_and_17_bytes_a_row(tmp_path: Path) -> None:
    memory, count = 4 << 20, 20_000
    position = numpy_generator(0).permutation(count)
    rows = np.zeros((100, 1000), "<u2")

    def scatter_all() -> None:
        with (tmp_path / "rows").open("w+b") as file:
            scatter = RowScatter(file, position, 1000, rows.dtype, memory)
            for _ in range(count // 100):
                scatter.add(rows)
            scatter.finish()

    _, peak = traced_peak(scatter_all)
    assert (tmp_path / "rows").stat().st_size == 40_000_000
    assert peak < memory + 17 * count + (1 << 18)


@pytest.mark.parametrize("memory", [1, 10, 1 << 20])
@pytest.mark.parametrize("count", [0, 4, 6, 20])
def test_a_wrong_number_of_rows_is_an_error(tmp_path: Path, memory: int, count: int) -> None:
    rows = np.zeros((count, 2), "<u2")
    with pytest.raises(ShuffleError, match=rf"there are 5 places and (at least )?{count} rows"):
        scattered(tmp_path / "rows", rows, np.arange(5), memory, 1, b"")


@pytest.mark.parametrize("position", [[0, 0], [1, 2], [-1, 0]])
def test_what_is_no_permutation_is_refused(tmp_path: Path, position: list[int]) -> None:
    with pytest.raises(ShuffleError, match="no permutation"):
        scattered(tmp_path / "rows", np.zeros((2, 1), "<u2"), np.array(position), 100, 1, b"")
