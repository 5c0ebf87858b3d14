"""A store makes what is missing and nothing else, and what it holds depends on neither engine, order nor history."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everytoken.seeds import python_random
from everytoken.shards import (
    DamagedStore,
    IncompleteStore,
    Inline,
    PartsFailed,
    RecipeError,
    Shards,
    ShardsError,
    Store,
    StoreBusy,
    WorkerProcesses,
)
from everytoken.shards.atomic import sole_writer
from everytoken.shards.errors import Failure
from tests.shards import functions
from tests.shards.folders import content
from tests.shards.functions import add_one, add_up, count_up, given, read_file, show_total, total, version_of

ROOT = Path(__file__).parents[2]
Ran = Callable[[], list[str]]


def names(*indices: int) -> list[str]:
    return [f"part_{i:05d}" for i in indices]


def make(root: Path, planned: Shards, engine: Any = Inline()) -> Shards:  # noqa: B008 - immutable
    store = Store(root)
    store.save(planned, engine)
    return store.load()


@dataclass(frozen=True)
class Shuffled:
    """An engine whose tasks end in another order."""

    seed: int

    def run(self, function: Any, tasks: Any) -> Any:
        order = list(tasks)
        python_random(self.seed).shuffle(order)
        return Inline().run(function, order)


# --- the same bytes -------------------------------------------------------------------------------------------------


def test_same_bytes_for_any_number_of_workers_and_any_order(tmp_path: Path) -> None:
    engines = [Inline(), WorkerProcesses(1), WorkerProcesses(2), WorkerProcesses(5), Shuffled(1), Shuffled(2)]
    folders = []
    for i, engine in enumerate(engines):
        make(tmp_path / f"{i}", given(7).map(count_up, factor=3), engine)
        folders.append(content(tmp_path / f"{i}"))
    assert sorted(folders[0]) == ["ledger.json", *(f"{name}.parquet" for name in names(*range(7)))]
    assert all(folder == folders[0] for folder in folders)


def test_same_bytes_for_any_hash_seed(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from everytoken.shards import Inline, Store
from tests.shards.functions import count_up, given, total
rows = Store(Path(sys.argv[1]) / "rows")
rows.save(given(3).map(count_up, factor={"b": 1, "a": 2}["a"]), Inline())
Store(Path(sys.argv[1]) / "totals").save(rows.load().reduce(total), Inline())
"""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / seed)], check=True, cwd=ROOT, env=environment)
    assert content(tmp_path / "1") == content(tmp_path / "2") != {}


def test_same_bytes_whatever_was_there_before(tmp_path: Path) -> None:
    make(tmp_path / "fresh", given(3).map(count_up, factor=1))
    for factor in (5, 1):
        make(tmp_path / "reused", given(4 if factor == 5 else 3).map(count_up, factor=factor))
    assert content(tmp_path / "fresh") == content(tmp_path / "reused")


def test_same_bytes_on_a_linked_data_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    make(tmp_path / "data" / "s", given(2).map(count_up))
    make(tmp_path / "plain", given(2).map(count_up))
    assert content(tmp_path / "disk" / "s") == content(tmp_path / "plain")


def test_a_store_can_be_moved(tmp_path: Path, ran: Ran) -> None:
    digest = make(tmp_path / "a", given(2).map(count_up)).root_digest
    ran()
    (tmp_path / "a").rename(tmp_path / "b")
    assert make(tmp_path / "b", given(2).map(count_up)).root_digest == digest
    assert ran() == []


# --- what is made again ---------------------------------------------------------------------------------------------


def test_nothing_to_do_leaves_every_byte_and_time(tmp_path: Path, ran: Ran) -> None:
    make(tmp_path / "s", given(3).map(count_up))

    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in [tmp_path / "s", *(tmp_path / "s").iterdir()]}

    before, bytes_before = times(), content(tmp_path / "s")
    assert ran() == names(0, 1, 2)
    make(tmp_path / "s", given(3).map(count_up), WorkerProcesses(2))
    assert ran() == []
    assert (times(), content(tmp_path / "s")) == (before, bytes_before)


def test_a_changed_parameter_redoes_all(tmp_path: Path, ran: Ran) -> None:
    first = make(tmp_path / "s", given(3).map(count_up))
    ran()
    second = make(tmp_path / "s", given(3).map(count_up, factor=2))
    assert ran() == names(0, 1, 2)
    assert first.root_digest != second.root_digest


def test_a_changed_function_version_redoes_all(tmp_path: Path, ran: Ran) -> None:
    digest = make(tmp_path / "s", given(3).map(count_up)).root_digest
    ran()
    with version_of(count_up, 2):
        assert make(tmp_path / "s", given(3).map(count_up)).root_digest == digest
    assert ran() == names(0, 1, 2)


def test_a_changed_input_redoes_exactly_that_part_down_the_line(tmp_path: Path, ran: Ran) -> None:
    def pipeline(changed: int | None) -> list[list[str]]:
        """Return which parts ran in each of four stores."""
        made = []
        rows = make(tmp_path / "rows", given(4, changed).map(count_up))
        made.append(ran())
        more = make(tmp_path / "more", rows.map(add_one))
        made.append(ran())
        sums = make(tmp_path / "sums", rows.zip(more).map(add_up))
        made.append(ran())
        make(tmp_path / "totals", sums.reduce(total))
        return [*made, ran()]

    assert pipeline(None) == [names(0, 1, 2, 3)] * 4
    assert pipeline(2) == [names(2)] * 4
    assert pipeline(2) == [[]] * 4


def test_an_input_remade_with_the_same_content_redoes_nothing_further(tmp_path: Path, ran: Ran) -> None:
    rows = make(tmp_path / "rows", given(2).map(count_up))
    make(tmp_path / "more", rows.map(add_one))
    ran()
    with version_of(count_up, 2):
        make(tmp_path / "more", make(tmp_path / "rows", given(2).map(count_up)).map(add_one))
    assert ran() == names(0, 1), "the rows themselves, and nothing made of them"


def test_both_sides_of_a_zip_count(tmp_path: Path, ran: Ran) -> None:
    left, right = given(3).map(count_up), given(3, changed=1).map(count_up)
    a, b, c = make(tmp_path / "a", left), make(tmp_path / "b", left), make(tmp_path / "c", right)
    make(tmp_path / "sums", a.zip(b).map(add_up))
    ran()
    make(tmp_path / "sums", a.zip(c).map(add_up))
    assert ran() == names(1)
    make(tmp_path / "sums", c.zip(a).map(add_up))
    assert ran() == names(1), "their order is part of the recipe"


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "flip":
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif how == "cut":
        path.write_bytes(data[:-1])
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("how", ["delete", "flip", "cut", "empty"])
def test_a_lost_or_damaged_part_is_rebuilt_alone_with_the_same_bytes(tmp_path: Path, ran: Ran, how: str) -> None:
    make(tmp_path / "s", given(4).map(count_up))
    before = content(tmp_path / "s")
    ran()
    damage(tmp_path / "s" / "part_00002.parquet", how)
    if how != "flip":
        assert not Store(tmp_path / "s").exists()
        with pytest.raises(IncompleteStore, match=r"lacks 1 of 4 parts.*part_00002.*only these are made again"):
            Store(tmp_path / "s").load()
    make(tmp_path / "s", given(4).map(count_up))
    assert ran() == names(2)
    assert content(tmp_path / "s") == before


def test_a_damaged_input_part_fails_its_reader_and_no_other(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(3).map(count_up))
    damage(tmp_path / "rows" / "part_00001.parquet", "flip")
    with pytest.raises(PartsFailed) as caught:
        make(tmp_path / "more", rows.map(add_one))
    assert list(caught.value.failures) == names(1)
    assert "DamagedStore" in caught.value.failures["part_00001"].error


@pytest.mark.parametrize(("before", "after", "made"), [(5, 3, []), (3, 5, [3, 4]), (2, 0, []), (0, 2, [0, 1])])
def test_a_shrunk_or_grown_plan_keeps_what_fits(
    tmp_path: Path, ran: Ran, before: int, after: int, made: list[int]
) -> None:
    make(tmp_path / "s", given(before).map(count_up))
    ran()
    assert len(make(tmp_path / "s", given(after).map(count_up))) == after
    assert ran() == names(*made)
    make(tmp_path / "fresh", given(after).map(count_up))
    assert content(tmp_path / "s") == content(tmp_path / "fresh"), "no stale part stays"


def test_another_order_of_inputs_redoes_the_parts_that_moved(tmp_path: Path, ran: Ran) -> None:
    def planned(*order: int) -> Shards:
        return Shards.from_values(list(order), [f"digest of {n}" for n in order]).map(count_up)

    make(tmp_path / "s", planned(0, 1, 2, 3))
    ran()
    make(tmp_path / "s", planned(0, 2, 1, 3))
    assert ran() == names(1, 2)
    make(tmp_path / "fresh", planned(0, 2, 1, 3))
    assert content(tmp_path / "s") == content(tmp_path / "fresh")


def test_a_store_of_rows_that_becomes_one_of_values_keeps_no_row(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(2).map(count_up))
    make(tmp_path / "s", rows.map(add_one))
    assert make(tmp_path / "s", rows.reduce(total)).values
    assert list(content(tmp_path / "s")) == ["ledger.json"]
    assert make(tmp_path / "s", rows.map(add_one)).rows == 320
    make(tmp_path / "s", given(0).map(count_up))
    make(tmp_path / "s", given(0).reduce(count_up))
    assert Store(tmp_path / "s").load().holds == "values"


def test_where_a_value_lies_does_not_enter_the_recipe(tmp_path: Path, ran: Ran) -> None:
    for place in ("here", "there"):
        (tmp_path / place).write_text("1 2 3")
        source = Shards.from_values([{"path": str(tmp_path / place)}], ["digest of 1 2 3"])
        assert make(tmp_path / "s", source.map(read_file)).rows == 3
        assert ran() == (names(0) if place == "here" else [])
        assert str(tmp_path) not in (tmp_path / "s" / "ledger.json").read_text()


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [Inline(), WorkerProcesses(2)], ids=["inline", "processes"])
def test_a_failing_part_costs_no_other_and_is_mended_alone(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "fresh", given(6).map(count_up))
    ran()
    monkeypatch.setenv("TEST_FAIL", "part_00001 part_00004")
    store = Store(tmp_path / "s")
    with pytest.raises(PartsFailed) as caught:
        store.save(given(6).map(count_up), engine)
    message = str(caught.value)
    assert "2 of 6 parts failed, the other 4 are done and kept" in message
    assert "part_00004: ValueError: part_00004 does not like this" in message
    assert "run the same command again" in message
    assert list(caught.value.failures) == names(1, 4)
    assert "in obey" in (tmp_path / "s" / ".making" / "part_00001.error.txt").read_text()
    assert "part_00001 failed" in caplog.text
    assert ran() == names(*range(6))
    assert not store.exists()
    with pytest.raises(IncompleteStore, match=r"is not complete \(4 parts made so far\).*goes on where it stopped"):
        store.load()
    with pytest.raises(PartsFailed):
        store.save(given(6).map(count_up), engine)
    assert ran() == names(1, 4)
    monkeypatch.delenv("TEST_FAIL")
    store.save(given(6).map(count_up), engine)
    assert ran() == names(1, 4)
    assert content(tmp_path / "s") == content(tmp_path / "fresh")


def test_one_cause_of_many_parts_is_one_line_with_their_number() -> None:
    gone, bad = Failure("OSError: gone", ""), Failure("ValueError: bad", "")
    told = str(PartsFailed("s", {"part_0": gone, "part_1": bad, "part_2": gone, "part_3": gone}, 9))
    assert "\n  part_0 and 2 more parts: OSError: gone\n  part_1: ValueError: bad\nTracebacks" in told


@pytest.mark.parametrize("engine", [Inline(), WorkerProcesses(1)], ids=["inline", "processes"])
def test_the_traceback_that_is_kept_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Inline | WorkerProcesses
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-the-hub-1")
    monkeypatch.setenv("TEST_FAIL", "part_00000")
    monkeypatch.setenv("TEST_SAYS", ": https://me:KpLm3Rt/q9@host.example a-token-of-the-hub-1")
    with pytest.raises(PartsFailed):
        Store(tmp_path / "s").save(given(1).map(count_up), engine)
    kept = (tmp_path / "s" / ".making" / "part_00000.error.txt").read_text()
    assert "ValueError: part_00000 does not like this: https://me:***@host.example ***" in kept


def test_parts_outlive_runs_with_other_parameters_that_fail(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = Store(tmp_path / "s")
    store.save(given(3).map(count_up), Inline())
    before = content(tmp_path / "s")
    ran()
    monkeypatch.setenv("TEST_FAIL", " ".join(names(0, 1, 2)))
    for factor in (2, 3):
        with pytest.raises(PartsFailed):
            store.save(given(3).map(count_up, factor=factor), Inline())
        with pytest.raises(IncompleteStore, match=r"is being remade: 3 parts of an earlier run are there.*, 0 made so"):
            store.load()
    assert ran() == names(0, 0, 1, 1, 2, 2)
    store.save(given(3).map(count_up), Inline())
    assert "s: 0 of 3 parts to make" in caplog.text
    assert ran() == []
    assert content(tmp_path / "s") == before
    monkeypatch.setenv("TEST_FAIL", "part_00002")
    with pytest.raises(PartsFailed):
        store.save(given(3).map(count_up, factor=2), Inline())
    (tmp_path / "s/part_00002.parquet").unlink()
    with pytest.raises(IncompleteStore, match=r"is being remade: 0 parts of an earlier run are there.*, 2 made so far"):
        store.load()


@pytest.mark.sensitive
def test_a_dying_worker_costs_one_part_and_is_named(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DIE", "part_00002")
    with pytest.raises(PartsFailed) as caught:
        make(tmp_path / "s", given(5).map(count_up), WorkerProcesses(2))
    assert list(caught.value.failures) == names(2)
    assert "worker process died" in caught.value.failures["part_00002"].error
    monkeypatch.delenv("TEST_DIE")
    ran()
    make(tmp_path / "s", given(5).map(count_up), Inline())
    assert ran() == names(2)


@pytest.mark.parametrize("value", ["nan", "int key", "object"])
def test_statistics_that_are_no_json_fail_the_part_by_name(tmp_path: Path, value: str) -> None:
    with pytest.raises(PartsFailed, match="part_00000"):
        make(tmp_path / "s", Shards.from_values([value], [value]).map(functions.statistics_of))
    assert list(content(tmp_path / "s")) == [".making/part_00000.error.txt"]


@pytest.mark.parametrize("value", ["nan", "int key", "object"])
def test_values_that_are_no_json_fail_the_part_by_name(tmp_path: Path, value: str) -> None:
    with pytest.raises(PartsFailed, match="the value of part_00000"):
        make(tmp_path / "s", Shards.from_values([value], [value]).reduce(functions.value_of))


def test_none_is_a_value(tmp_path: Path) -> None:
    assert make(tmp_path / "s", Shards.from_values(["none"], ["none"]).reduce(functions.value_of)).values == [None]


@pytest.mark.parametrize("value", ["counter", "huge"])
def test_statistics_are_read_back_as_they_were_given(tmp_path: Path, value: str) -> None:
    (found,) = make(tmp_path / "s", Shards.from_values([value], [value]).map(functions.statistics_of)).statistics
    expected = {
        "counter": {"reasons": {"a": 2, "b": 1, "c": 1}, "pair": [1, 2]},
        "huge": {"list": list(range(200_000))},
    }
    assert found == expected[value]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (functions.break_off, "in the middle of the rows"),
        (functions.other_columns, "a batch has columns"),
        (total, "holds a value, not rows"),
    ],
)
def test_functions_that_break_off_leave_no_file(tmp_path: Path, function: Any, error: str) -> None:
    with pytest.raises(PartsFailed, match=error):
        make(tmp_path / "s", given(1).map(function))
    assert list(content(tmp_path / "s")) == [".making/part_00000.error.txt"]


def test_a_function_that_gives_something_else_is_named(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(1).map(count_up))
    with pytest.raises(PartsFailed, match=r"functions\.total returned a dict, not Rows"):
        make(tmp_path / "s", rows.map(total))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        make(tmp_path / "s", given(1).map(count_up))


# --- what may be loaded ---------------------------------------------------------------------------------------------


def test_a_store_that_was_never_made_says_so(tmp_path: Path) -> None:
    assert not Store(tmp_path / "s").exists()
    with pytest.raises(IncompleteStore, match=r"has not been made.*Run the pipeline"):
        Store(tmp_path / "s").load()


def edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


EDITS: dict[str, Callable[[Any], None]] = {
    "content": lambda d: d["parts"][0].update(content_digest="0" * 64),
    "rows of a part": lambda d: d["parts"][0].update(rows=1),
    "rows": lambda d: d.update(rows=1),
    "bytes": lambda d: d["parts"][0].update(bytes=1),
    "sha256": lambda d: d["parts"][1].update(sha256="0" * 64),
    "statistics": lambda d: d["parts"][0]["statistics"].update(rows=1),
    "parameter": lambda d: d["recipe"]["parameters"].update(factor=9),
    "order": lambda d: d["parts"].reverse(),
    "a part less": lambda d: d["parts"].pop(),
    "format": lambda d: d.update(format="everytoken-ledger/0"),
    "field lost": lambda d: d["parts"][0].pop("rows"),
    "holds": lambda d: d.update(holds="values"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_ledger_is_refused_and_mended(tmp_path: Path, ran: Ran, what: str) -> None:
    make(tmp_path / "s", given(2).map(count_up))
    before = content(tmp_path / "s")
    edit(tmp_path / "s" / "ledger.json", EDITS[what])
    for use in (Store(tmp_path / "s").load, Store(tmp_path / "s").exists):
        with pytest.raises(DamagedStore, match=r"ledger\.json.*Run the pipeline that makes it again"):
            use()
    make(tmp_path / "s", given(2).map(count_up))
    assert content(tmp_path / "s") == before


def test_an_edited_value_is_refused(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(2).map(count_up))
    make(tmp_path / "s", rows.reduce(total))
    edit(tmp_path / "s" / "ledger.json", lambda d: d["parts"][0].update(value={"sum": 1}))
    with pytest.raises(DamagedStore, match="it was edited"):
        Store(tmp_path / "s").load()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\x01", '{"parts": 3}'])
def test_a_ledger_that_is_none_is_refused_and_made_again(tmp_path: Path, ran: Ran, text: str) -> None:
    make(tmp_path / "s", given(2).map(count_up))
    ran()
    (tmp_path / "s" / "ledger.json").write_text(text)
    with pytest.raises(DamagedStore, match="is not a ledger"):
        Store(tmp_path / "s").load()
    make(tmp_path / "s", given(2).map(count_up))
    assert ran() == names(0, 1)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "s", given(1).map(count_up))
    with sole_writer(tmp_path / "s"), pytest.raises(StoreBusy, match="being written by another process"):
        make(tmp_path / "s", given(1).map(count_up))
    make(tmp_path / "s", given(1).map(count_up))


def test_what_a_crash_left_is_used(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FAIL", "part_00003")
    with pytest.raises(PartsFailed):
        make(tmp_path / "s", given(4).map(count_up))
    monkeypatch.delenv("TEST_FAIL")
    ran()
    making = tmp_path / "s" / ".making"
    (tmp_path / "s" / ".part_00003.parquet.99.tmp").write_bytes(b"half")
    (making / ".part_00003.json.99.tmp").write_text("{")
    (making / "part_00000.json").write_text("{")  # a record that cannot be read counts as none
    edit(making / "part_00001.json", lambda record: record.update(unknown=1))
    make(tmp_path / "s", given(4).map(count_up))
    assert ran() == names(0, 1, 3)
    make(tmp_path / "fresh", given(4).map(count_up))
    assert content(tmp_path / "s") == content(tmp_path / "fresh")


def test_only_planned_parts_can_be_saved(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(1).map(count_up))
    for shards in (rows, given(1)):
        with pytest.raises(ShardsError, match="only planned parts can be saved"):
            make(tmp_path / "s", shards)


# --- maps, zips and reductions --------------------------------------------------------------------------------------


def test_stored_parts_know_their_sums(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(3).map(count_up, rows=10))
    assert (len(rows), rows.rows, [part.index for part in rows]) == (3, 120, [0, 1, 2])
    assert rows.statistics == [{"rows": 40, "by_reason": {"a": n, "b": 1, "c": 0, "d": 0}} for n in range(3)]
    ledger = Store(tmp_path / "rows").ledger()
    assert (ledger.rows, ledger.root_digest) == (120, rows.root_digest)
    assert ledger.bytes == sum(len(data) for name, data in content(tmp_path / "rows").items() if name != "ledger.json")


def test_a_chain_gives_the_same_content_saved_step_by_step_or_at_once(tmp_path: Path) -> None:
    rows = make(tmp_path / "rows", given(3).map(count_up))
    more = make(tmp_path / "more", rows.map(add_one, add=2))
    sums = make(tmp_path / "sums", rows.zip(more).map(add_up))
    totals = make(tmp_path / "totals", sums.reduce(total, weight=2))
    shown = make(tmp_path / "shown", totals.map(show_total))
    assert totals.values == [{"sum": v["sum"], "pair": [1, 2]} for v in totals.values]
    planned = given(3).map(count_up)
    at_once = planned.zip(planned.map(add_one, add=2)).map(add_up).reduce(total, weight=2)
    assert make(tmp_path / "at once", at_once).root_digest == totals.root_digest
    assert make(tmp_path / "all at once", at_once.map(show_total), WorkerProcesses(2)).root_digest == shown.root_digest


def test_values_and_empty_parts_are_stored(tmp_path: Path) -> None:
    assert make(tmp_path / "none", given(0).map(count_up)).rows == 0
    empty = make(tmp_path / "empty", given(2).map(functions.no_rows))
    assert (empty.rows, empty.parts[0].table().num_rows, empty.statistics) == (0, 0, [{"rows": 0}] * 2)
    assert make(tmp_path / "totals", empty.reduce(total)).values[1]["sum"] == 0
    nulls = make(tmp_path / "nulls", given(1).map(functions.only_nulls))
    assert nulls.parts[0].table()["text"].null_count == 9


def test_only_parts_of_one_plan_can_be_zipped() -> None:
    with pytest.raises(RecipeError, match=r"cannot zip 3 parts with 2.*same plan"):
        given(3).zip(given(2)).map(add_up)
    with pytest.raises(ValueError, match="shorter"):
        Shards.from_values([1, 2], ["x"])


def test_planned_parts_have_no_digest_and_no_statistics_yet() -> None:
    planned = given(2).map(count_up)
    with pytest.raises(IncompleteStore, match=r"planned with .*count_up have no content yet"):
        _ = planned.root_digest
    with pytest.raises(IncompleteStore, match="only parts loaded from a store"):
        _ = planned.statistics


def test_the_root_digest_is_over_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everytoken.shards.writing.ROW_GROUP_ROWS", 9)
    small = make(tmp_path / "small groups", given(2).map(count_up))
    monkeypatch.undo()
    large = make(tmp_path / "large groups", given(2).map(count_up))
    assert small.root_digest == large.root_digest
    assert content(tmp_path / "small groups") != content(tmp_path / "large groups")


# --- reruns ---------------------------------------------------------------------------------------------------------


def test_a_rerun_reads_every_file_once(tmp_path: Path) -> None:
    """Reruns read one ledger and hash each file once: nothing grows with the square of the number of parts."""
    plan = given(150).map(count_up, rows=1)
    make(tmp_path / "s", plan)
    size = (tmp_path / "s" / "ledger.json").stat().st_size
    assert size < 150 * 700
    opened = 0

    def count(event: str, arguments: Any) -> None:
        nonlocal opened
        opened += counting and event == "open" and str(tmp_path) in str(arguments[0])

    counting = True
    sys.addaudithook(count)
    make(tmp_path / "s", plan)
    counting = False
    assert opened < 160


def test_parts_are_pyarrow_batches_with_the_stored_schema(tmp_path: Path) -> None:
    (part,) = make(tmp_path / "s", given(1).map(count_up)).parts
    assert all(isinstance(b, pa.RecordBatch) and b.schema.equals(functions.SCHEMA) for b in part.batches())


def test_part_files_of_something_else_are_not_deleted(tmp_path: Path) -> None:
    foreign = tmp_path / "part_00000.parquet"
    foreign.write_bytes(b"not ours")
    with pytest.raises(ShardsError, match="holds part files and no ledger"):
        make(tmp_path, given(2).map(count_up))
    assert foreign.read_bytes() == b"not ours"


def test_what_is_made_from_a_damaged_part_is_refused(tmp_path: Path) -> None:
    parts = make(tmp_path / "in", given(3).map(count_up))
    other = make(tmp_path / "other", given(3).map(count_up, factor=2))
    (tmp_path / "in/part_00001.parquet").write_bytes((tmp_path / "other/part_00001.parquet").read_bytes())
    assert other.rows == parts.rows  # a whole, readable file of as many rows: only its SHA-256 tells
    with pytest.raises(PartsFailed, match=r"part_00001: DamagedStore: .*its SHA-256 is"):
        make(tmp_path / "out", parts.map(add_one))
    make(tmp_path / "in", given(3).map(count_up))
    make(tmp_path / "out", Store(tmp_path / "in").load().map(add_one))


def test_inputs_cannot_be_replaced_while_something_is_made_from_them(tmp_path: Path) -> None:
    parts = make(tmp_path / "in", given(3).map(count_up))

    @dataclass(frozen=True)
    class Meddling:
        def run(self, function: Any, tasks: Any) -> Any:
            with pytest.raises(StoreBusy, match="or read for something"):
                Store(tmp_path / "in").save(given(3).map(count_up, factor=5), Inline())
            return Inline().run(function, tasks)

    made = make(tmp_path / "out", parts.map(add_one), Meddling())
    assert len(made) == 3
