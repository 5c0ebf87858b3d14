"""Rows that several processes write are at their places for any memory, also when one died and another went on."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.outofcore import RowPlaces, plan_places, row_places
from everytoken.seeds import numpy_generator
from tests.memory import traced_peak
from tests.shards.children import die_at


def planned(folder: Path, position: np.ndarray, row_bytes: int, memory: int, workers: int = 1) -> RowPlaces:
    (folder / "scratch").mkdir()
    pieces = np.array_split(position, 3)
    return plan_places(
        folder / "rows",
        pieces,
        len(position),
        row_bytes,
        memory=memory,
        workers=workers,
        scratch=folder / "scratch",
    )


@pytest.mark.parametrize(("memory", "workers", "size"), [(800, 1, 1), (799, 1, 50), (799, 2, 25), (0, 1, 1)])
def test_a_bucket_and_what_is_copied_of_it_fit_into_a_share(
    tmp_path: Path, memory: int, workers: int, size: int
) -> None:
    assert planned(tmp_path, numpy_generator(1).permutation(100), 8, memory, workers).size == size


def test_places_are_the_same_however_many_are_worked_out_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_places, "_CHUNK", 7)
    rows, position = np.arange(140, dtype="<u2").reshape(70, 2), numpy_generator(3).permutation(70)
    places = planned(tmp_path, position, 4, 100)
    places.write(0, rows)
    for bucket in places.buckets():
        places.sort(bucket).unlink()
    expected = np.empty_like(rows)
    expected[position] = rows
    assert len(places.buckets()) > 1 and (tmp_path / "rows").read_bytes() == expected.tobytes()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 70),
    st.integers(1, 5),
    st.sampled_from(["<u2", "<i4"]),
    st.integers(0, 99),
    st.one_of(st.integers(0, 1500), st.just(1 << 20)),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_row_r_is_at_place_position_r_whoever_writes_it_and_when(
    count: int, items: int, kind: str, seed: int, memory: int, workers: int, pieces: int
) -> None:
    rows = np.arange(count * items).astype(kind).reshape(count, items)
    draw = numpy_generator(seed)
    position = draw.permutation(count)
    expected = np.empty_like(rows)
    expected[position] = rows
    with tempfile.TemporaryDirectory() as name:
        places = planned(Path(name), position, items * rows.itemsize, memory, workers)
        cuts = np.array_split(np.arange(count), pieces)
        for piece in draw.permutation(pieces).tolist() * 2:  # each is written twice
            if len(numbers := cuts[piece]):
                places.write(int(numbers[0]), rows[numbers])
        if count:
            places.write_bytes(count - 1, 0, rows[count - 1, :1])
            places.write_bytes(count - 1, rows.itemsize, rows[count - 1, 1:])
        buckets = places.buckets()
        for number in draw.permutation(len(buckets)).tolist():
            places.sort(buckets[number])
        assert (Path(name) / "rows").read_bytes() == expected.tobytes()


def test_a_killed_sort_is_done_again_from_any_moment(tmp_path: Path) -> None:
    rows = np.arange(60, dtype="<u2").reshape(20, 3)
    position = numpy_generator(1).permutation(20)
    expected = np.empty_like(rows)
    expected[position] = rows
    step, killed = 0, True
    while killed:
        step += 1
        folder = tmp_path / str(step)
        folder.mkdir()
        places = planned(folder, position, 6, 60)
        places.write(0, rows)
        first, *others = places.buckets()
        assert others
        child = os.fork()
        if child == 0:
            die_at(step, str(folder))
            places.sort(first)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        killed = code != 0
        for bucket in places.buckets():
            places.sort(bucket)
        assert places.file.read_bytes() == expected.tobytes()
    assert step > 5


def test_a_sort_that_ended_before_its_result_arrived_is_done_again(tmp_path: Path) -> None:
    rows = np.arange(60, dtype="<u2").reshape(20, 3)
    position = numpy_generator(1).permutation(20)
    places = planned(tmp_path, position, 6, 60)
    places.write(0, rows)
    for bucket in places.buckets():
        places.sort(bucket)
        places.sort(bucket).unlink()
    assert np.array_equal(np.fromfile(places.file, "<u2").reshape(20, 3)[position], rows)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_process_takes_its_share_of_the_memory(tmp_path: Path, workers: int) -> None:
    memory, count = 4 << 20, 20_000
    position = numpy_generator(0).permutation(count)
    rows = np.zeros((100, 1000), "<u2")

    def write_all() -> None:
        places = planned(tmp_path, position, 2000, memory, workers)
        for first in range(0, count, 100):
            places.write(first, rows)
        for bucket in places.buckets():
            places.sort(bucket).unlink()

    _, peak = traced_peak(write_all)
    assert (tmp_path / "rows").stat().st_size == 40_000_000
    assert peak < memory // workers + (3 << 20)  # the places of 2**16 rows, as they are worked out


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    places = planned(tmp_path, np.arange(2000), 2, 1 << 20)
    places.file.unlink()
    places.file.symlink_to("/dev/full")
    with pytest.raises(OSError, match="rows"):
        places.write(0, np.zeros((2000, 1), "<u2"))
