"""Rows that a function leaves out are kept with their reasons, and a part that stays as it is costs no disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards import Engine, Inline, PartsFailed, Shards, ShardsError, Store, WorkerProcesses
from everytoken.shards.parts import ValuePart
from everytoken.shards.writing import write_rows
from tests.shards import functions
from tests.shards.folders import content
from tests.shards.functions import count_up, given, leave, sift


def make(root: Path, planned: Shards, engine: Engine = Inline()) -> Shards:  # noqa: B008 - immutable
    store = Store(root)
    store.save(planned, engine)
    return store.load()


def test_rows_set_aside_are_beside_the_part_with_their_reasons(tmp_path: Path) -> None:
    made = make(tmp_path / "s", given(4).map(sift))
    assert [part.name for part in made.set_aside] == ["part_00001", "part_00003"], "no file where nothing is set aside"
    (third,) = [part for part in made.set_aside if part.index == 3]
    assert third.table().to_pylist()[:2] == [
        {"number": 0, "reason": "of this kind"},
        {"number": 3, "reason": "of this kind"},
    ]
    assert [part.rows for part in made] == [80, 0, 80, 53]
    assert sorted(content(tmp_path / "s")) == [
        "ledger.json",
        "part_00000.parquet",
        "part_00001.parquet",
        "part_00001.set_aside.parquet",
        "part_00002.parquet",
        "part_00003.parquet",
        "part_00003.set_aside.parquet",
    ]


@pytest.mark.parametrize("engine", [WorkerProcesses(1), WorkerProcesses(2), WorkerProcesses(5)], ids=str)
def test_same_bytes_for_any_number_of_workers(tmp_path: Path, engine: Engine) -> None:
    make(tmp_path / "a", given(5).map(sift))
    make(tmp_path / "b", given(5).map(sift), engine)
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_lost_or_damaged_file_of_set_aside_rows_is_made_again(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "s", given(4).map(sift))
    right = content(tmp_path / "s")
    path = tmp_path / "s" / "part_00003.set_aside.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink() if damage == "lost" else path.write_bytes(data)
    assert Store(tmp_path / "s").exists() == (damage == "flipped"), "sizes are checked at once, content when saved"
    monkeypatch.setenv("TEST_RAN", str(tmp_path / "ran.txt"))
    make(tmp_path / "s", given(4).map(sift))
    assert (tmp_path / "ran.txt").read_text().split() == ["part_00003"]
    assert content(tmp_path / "s") == right


def test_a_part_that_sets_nothing_aside_any_more_leaves_no_old_file(tmp_path: Path) -> None:
    make(tmp_path / "s", given(4, changed=2).map(sift))
    make(tmp_path / "s", given(3).map(sift))
    make(tmp_path / "fresh", given(3).map(sift))
    assert content(tmp_path / "s") == content(tmp_path / "fresh")
    write_rows(sift(ValuePart("p", 0, 3, "")), tmp_path / "p.parquet")
    write_rows(sift(ValuePart("p", 0, 2, "")), tmp_path / "p.parquet")
    assert not (tmp_path / "p.set_aside.parquet").exists()


@pytest.mark.parametrize("rows_in", [2, 4, None])
def test_a_function_that_loses_or_makes_up_rows_fails_its_part(tmp_path: Path, rows_in: Any) -> None:
    planned = Shards.from_values([3, rows_in], ["a", "b"]).map(functions.lose_a_row)
    with pytest.raises(
        PartsFailed, match=f"part_00001: {rows_in} rows came in, 2 are in the part and 1 were set aside"
    ):
        make(tmp_path / "s", planned)
    assert [path.name for path in sorted((tmp_path / "s").glob("part*"))] == [
        "part_00000.parquet",
        "part_00000.set_aside.parquet",
    ]


def test_rows_set_aside_need_a_schema(tmp_path: Path) -> None:
    with pytest.raises(ShardsError, match="gives no schema for them"):
        write_rows(functions.aside_without_schema(ValuePart("p", 0, 0, "")), tmp_path / "p.parquet")
    assert content(tmp_path) == {}


def test_an_unchanged_part_is_the_same_file(tmp_path: Path) -> None:
    first = make(tmp_path / "a", given(3).map(count_up))
    second = make(tmp_path / "b", first.map(leave), WorkerProcesses(2))
    assert [part.digest for part in second] == [part.digest for part in first]
    for name in ("part_00000.parquet", "part_00002.parquet"):
        assert (tmp_path / "a" / name).samefile(tmp_path / "b" / name)
    assert second.statistics == [{"rows_in": 160}] * 3


def test_making_the_original_again_does_not_touch_the_part_that_shares_its_file(tmp_path: Path) -> None:
    first = make(tmp_path / "a", given(2).map(count_up))
    make(tmp_path / "b", first.map(leave))
    before = content(tmp_path / "b")
    make(tmp_path / "a", given(2).map(count_up, factor=7))
    assert content(tmp_path / "b") == before


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_where_there_can_be_no_link_it_is_copied(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    first = make(tmp_path / "a", given(2).map(count_up))
    monkeypatch.setattr(os, "link", refuse)
    second = make(tmp_path / "b", first.map(leave))
    assert [part.digest for part in second] == [part.digest for part in first]
    assert not (tmp_path / "a/part_00000.parquet").samefile(tmp_path / "b/part_00000.parquet")


def test_only_a_stored_part_can_stay_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(PartsFailed, match="only a stored part can stay as it is"):
        make(tmp_path / "b", given(1).map(count_up).map(functions.leave_planned))
