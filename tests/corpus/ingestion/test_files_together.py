"""Many small files in one part: the same documents at the same addresses, and a changed file remakes its part alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import PlanError
from everytoken.corpus.ingestion import Source, find_files, make_shard_plan, read_shards, shards_by_part
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import Inline, PartsFailed, Shards, Store, WorkerProcesses
from tests.corpus.ingestion.test_ingest import read_rows_of
from tests.corpus.ingestion.test_shard_plan import plan_parameters
from tests.corpus.part_tables import collect_all
from tests.corpus.reading.read_rows import LIMITS

ROOT = Path(__file__).resolve().parents[3]


def source_in(root: Path, together: int) -> Source:
    upstream = {"kind": "path", "root": str(root)}
    return Source.model_validate({"upstream": upstream, "files_per_shard": together})


def planned(root: Path, together: int, **plan: Any) -> Shards:
    sources = {"s": source_in(root, together)}
    files = {"s": find_files("s", sources["s"].upstream, root)}
    made = make_shard_plan(sources, files, plan_parameters(**plan), LIMITS)
    return read_shards(made, sources, files, min_chars=2, max_bad_share=0.0, limits=LIMITS, keep_fetched=True)


def write_files(root: Path, count: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        if number % 3:
            (root / f"{number:03d}.txt").write_text(f"The text of file {number}.")
        else:
            rows = [{"id": f"{number}-{row}", "text": "x" * (row + number % 2)} for row in range(number % 5)]
            (root / f"{number:03d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(shards: Shards) -> list[dict[str, Any]]:
    rows = [row for part in shards for row in part.table().to_pylist()]
    return sorted(rows, key=lambda row: (row["shard_index"], row["row"]))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(together=st.integers(1, 25))
def test_files_per_shard_changes_no_document_no_address_and_no_count(tmp_path: Path, together: int) -> None:
    write_files(tmp_path / "files", 20)

    def everything(together: int) -> tuple[Any, ...]:
        made = [collect_all(read_rows_of(part.inputs[0].value, min_chars=2)) for part in planned_parts(together)]
        kept, aside = ([row for part in made for row in part[place].to_pylist()] for place in (0, 1))
        key = lambda row: (row["shard_index"], row["row"])  # noqa: E731
        counts = [dict(statistics) for _, _, statistics in made]
        for one in counts:
            one.pop("files", None)
        return sorted(kept, key=key), sorted(aside, key=key), add_statistics(counts)

    def planned_parts(together: int) -> Any:
        return planned(tmp_path / "files", together).parts

    assert everything(together) == everything(1)


def test_the_ledger_lists_the_files_of_a_part_with_their_rows(tmp_path: Path) -> None:
    write_files(tmp_path / "files", 7)
    ledger = Store(tmp_path / "store").save(planned(tmp_path / "files", 3), Inline())
    listed = sorted((part.statistics.get("files", []) for part in ledger.parts), key=str)
    names = [f"00{number}.{'txt' if number % 3 else 'jsonl'}" for number in range(7)]
    rows = [number % 5 if number % 3 == 0 else 1 for number in range(7)]
    files = [{"path": names[n], "shard_index": n, "rows": rows[n]} for n in range(7)]
    assert listed == [[], files[:3], files[3:6]], "a file alone is the part that it always was"
    assert all(sum(file["rows"] for file in part) in (0, 2, 5) for part in listed)


def test_a_part_of_one_file_is_the_same_with_and_without_the_parameter(tmp_path: Path) -> None:
    write_files(tmp_path / "files", 7)
    alone = {part.digest for part in planned(tmp_path / "files", 1).parts}
    assert sum(part.digest in alone for part in planned(tmp_path / "files", 3).parts) == 1


def made_again(before: Store, after: Shards) -> set[str]:
    """Save and return the names of the parts that were made."""
    had = {part.name: part.fingerprint for part in before.ledger().parts}
    now = before.save(after, Inline())
    return {part.name for part in now.parts if had.get(part.name) != part.fingerprint}


def test_a_changed_added_or_removed_file_remakes_the_part_that_holds_it(tmp_path: Path) -> None:
    root, store = tmp_path / "files", Store(tmp_path / "store")
    write_files(root, 20)

    def part_with(file: int) -> str:
        (name,) = {
            part.name
            for part in store.ledger().parts
            if file in [one["shard_index"] for one in part.statistics["files"]]
        }
        return name

    store.save(planned(root, 6), Inline())  # 6, 6, 6 and 2 files
    (root / "008.txt").write_text("Another text, which is longer than the one that was there before.")
    assert made_again(store, planned(root, 6)) == {part_with(8)}
    (root / "zzz.txt").write_text("A file after all others.")
    assert made_again(store, planned(root, 6)) == {part_with(19)}
    (root / "zzz.txt").unlink()
    assert made_again(store, planned(root, 6)) == {part_with(19)}
    assert len(rows_of(store.load())) == sum(part.rows for part in store.load())


def test_the_plan_counts_and_slices_parts(tmp_path: Path) -> None:
    write_files(tmp_path, 10)
    sources = {"s": source_in(tmp_path, 4)}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path)}
    plan = make_shard_plan(sources, files, plan_parameters(expect_shards=3, n_shards=2), LIMITS)
    assert plan["n_total"] == 3 and len(shards_by_part(plan)) == 2
    assert all(
        [s["shard_index"] for s in part] == sorted(s["shard_index"] for s in part) for part in shards_by_part(plan)
    )
    with pytest.raises(PlanError, match="have 10 files, and so at least 3 shards; expect_shards pins 2"):
        make_shard_plan(sources, files, plan_parameters(expect_shards=2), LIMITS)
    with pytest.raises(ValidationError, match="rows_per_shard 5 cuts files, and files_per_shard 4 reads several"):
        Source.model_validate({**sources["s"].model_dump(mode="json"), "rows_per_shard": 5})


def test_a_bad_row_and_a_file_that_changed_are_named_with_their_file(tmp_path: Path) -> None:
    root = tmp_path / "files"
    write_files(root, 6)
    (root / "003.jsonl").write_text('{"text": 7}\n')
    store = Store(tmp_path / "store")
    with pytest.raises(PartsFailed, match=r"000.jsonl to 005.txt \(6 files\).*003.jsonl row 0 at byte 0: text_not"):
        store.save(planned(root, 6), Inline())
    (root / "003.jsonl").write_text('{"text": "good"}\n')
    late = planned(root, 6)
    (root / "004.txt").write_text("Written to after the plan.")
    with pytest.raises(PartsFailed, match=r"004.txt: the file has changed since the shard plan"):
        store.save(late, Inline())
    assert Store(tmp_path / "store").save(planned(root, 6), Inline()).rows == 5


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    root = tmp_path / "files"
    write_files(root, 60)
    folders = []
    for workers in (0, 1, 2, 5):
        store = Store(tmp_path / f"by {workers}")
        store.save(planned(root, 7), WorkerProcesses(workers) if workers else Inline())
        folders.append({path.name: path.read_bytes() for path in store.root.iterdir()})
    assert len(folders[0]) == 9 + 1 + sum("set_aside" in name for name in folders[0])
    assert all(folder == folders[0] for folder in folders)


_CHILD = """
import sys
from pathlib import Path
from everytoken.shards import Store, WorkerProcesses
from tests.corpus.ingestion.test_files_together import planned
Store(Path(sys.argv[2])).save(planned(Path(sys.argv[1]), 5), WorkerProcesses(2))
"""


@pytest.mark.sensitive
@pytest.mark.parametrize("parts", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_between_parts_it_goes_on_to_the_same_bytes(tmp_path: Path, parts: int) -> None:
    root = tmp_path / "files"
    write_files(root, 400)
    undisturbed = Store(tmp_path / "undisturbed")
    undisturbed.save(planned(root, 5), Inline())
    store = Store(tmp_path / "killed")
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(root), str(store.root)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(list((store.root / ".making").glob("part_*.json"))) < parts and time.monotonic() < deadline:
        assert child.poll() is None, "it was to be killed before its end"
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    made = {path.stem: path.read_bytes() for path in (store.root / ".making").glob("part_*.json")}
    assert made and not store.exists()
    again = planned(root, 5)
    ledger = store.save(again, Inline())
    assert ledger == undisturbed.ledger()
    for path in undisturbed.root.iterdir():
        assert (store.root / path.name).read_bytes() == path.read_bytes()
