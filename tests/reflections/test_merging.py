"""Results become columns, and columns a sidecar in the published form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everytoken.reflections import ReflectionError, find_generation_run
from everytoken.reflections.merging import (
    MergedStatistics,
    columns_schema,
    export_sidecar,
    list_replies,
    merge_rank,
    require_complete,
)
from everytoken.reflections.ranks import ranks_of
from everytoken.reflections.ranks.rank_loop import complete_rank
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Built,
    Inline,
    PartsFailed,
    Shards,
    Store,
    plan_artifact,
    versioned,
)
from tests.shared_assets import shared_folder

FILE = "sidecar.parquet"


@versioned("test_merging.sidecar", 1)
def write_sidecar(folder: Path, *, columns: dict[str, list[Any]], group: int) -> Built:
    pq.write_table(pa.table(columns), folder / FILE, row_group_size=group)
    return Built({"windows": len(columns["doc_id"])})


def stream(folder: Path, columns: dict[str, list[Any]], group: int = 2) -> Artifact:
    return ArtifactStore(folder / "stream").save(plan_artifact(write_sidecar, columns=columns, group=group))


def run_folder(root: Path, run: str, rows: int, per_task: int, results: dict[str, Sequence[str]]) -> Path:
    """Write the files of a run whose ranks have these result lines."""
    root.mkdir(parents=True)
    config = {"run_name": run, "rows": [0, rows], "rows_per_task": per_task}
    (root / "run_config.json").write_text(json.dumps(config))
    for name, lines in results.items():
        (root / name).mkdir()
        text = "".join(line if line.startswith("TORN") else f"{line}\n" for line in lines)
        (root / name / "results.jsonl").write_text(text)
    return root


def merged(folder: Path, root: Path, run: str, built: Artifact, *, allow_missing: bool = False) -> Shards:
    replies = list_replies(root)
    require_complete(replies, allow_missing)
    store = Store(folder)
    store.save(replies.map(merge_rank, run=run, stream=built, allow_missing=allow_missing), Inline())
    return store.load()


def result(row: int, **changes: Any) -> str:
    return json.dumps(
        {
            "global_row_idx": row,
            "doc_id": f"d{row}",
            "status": "ok",
            "reflection_1p": f"I {row}.",
            "reflection_3p": f"It {row}.",
            "reflection_position": 3 * row,
            "reflection_token_index": row,
            "charter_reflection": "[]",
            "canary_type": None,
            **changes,
        }
    )


SIDECAR = {"doc_id": [f"d{i}" for i in range(6)], "token_length": [10, 11, 12, 0, 14, 15]}


# ---- the original's merges ----


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_folder("vectors") / "reflections.json").read_bytes())[name]
    return found


def merge_as_the_original(folder: Path, case: dict[str, Any]) -> pa.Table:
    rows = len(case["sidecar"]["doc_id"])
    per_task = -(-rows // max(1, len(case["results"])))
    root = run_folder(folder / "run", case["run"], rows, per_task, case["results"])
    built = stream(folder, case["sidecar"], case["row_group_rows"])
    columns = merged(folder / "columns", root, case["run"], built, allow_missing=case["allow_missing"])
    run, _ = find_generation_run(case["run"])
    export_sidecar(built.path(FILE), {case["run"]: (run, columns)}, folder / "merged.parquet")
    return pq.read_table(folder / "merged.parquet")


def test_merges_are_those_of_the_original(tmp_path: Path) -> None:
    for case in vectors("merge"):
        folder = tmp_path / case["name"]
        if "error" in case:
            with pytest.raises(ReflectionError) as caught:
                merge_as_the_original(folder, case)
            assert str(caught.value).startswith(case["error"])
            continue
        found = merge_as_the_original(folder, case)
        wanted = case["rows"]
        for place, value in case.get("ours", {}).items():
            _, row, column = place.split(".")
            wanted[int(row)][column] = value
        assert {field.name: str(field.type) for field in found.schema} == case["columns"], case["name"]
        assert found.to_pylist() == wanted, case["name"]
        file = pq.ParquetFile(folder / "merged.parquet")
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        assert groups == case["row_groups"], case["name"]


def test_a_repeated_row_is_an_error_and_empties_no_later_row(tmp_path: Path) -> None:
    for case in vectors("merge_original_defects"):
        with pytest.raises(ReflectionError, match=r"00000/results.jsonl: row 1 has two results, at the bytes [0-9]+"):
            merge_as_the_original(tmp_path / case["name"], case)


# ---- ours ----


def test_a_status_tells_why_a_row_has_no_text(tmp_path: Path) -> None:
    lines = {"00000": [result(2), result(0)], "00001": [result(4, status="empty", reflection_1p="", reflection_3p="")]}
    root = run_folder(tmp_path / "run", "reflections", 6, 3, lines)
    failure = {"global_row_idx": 1, "doc_id": "d1", "error": "no", "class": "timeout", "attempt": 2, "reply": ""}
    (root / "00000/failures.jsonl").write_text(json.dumps(failure) + "\n")
    built = stream(tmp_path, SIDECAR)
    with pytest.raises(ReflectionError, match=r"Missing 3 rows in results. Expected 6, got 3\. .*rerun"):
        merged(tmp_path / "columns", root, "reflections", built)
    columns = merged(tmp_path / "columns", root, "reflections", built, allow_missing=True)
    run, _ = find_generation_run("reflections")
    found = pa.concat_tables([part.table() for part in columns])
    assert found.schema == columns_schema(run)
    assert found["row"].to_pylist() == list(range(6))
    assert found["status"].to_pylist() == ["ok", "failed", "ok", "excluded", "empty", "missing"]
    assert found["reflection_token_index"].to_pylist() == [0, -1, 2, -1, 4, -1]
    first, second = columns.statistics_as(MergedStatistics)
    assert (first["with_point"], first["usable"], first["with_1p"]) == (2, 2, 2)
    assert (second["with_point"], second["usable"], second["with_1p"]) == (1, 0, 0)
    assert second["by_status"] == {"empty": 1, "excluded": 1, "missing": 1}


def test_an_absent_rank_is_found_by_its_number(tmp_path: Path) -> None:
    root = run_folder(tmp_path / "run", "reflections", 6, 2, {"00000": [result(0), result(1)], "00002": [result(4)]})
    with pytest.raises(ReflectionError, match=r"Missing 3 rows in results. Expected 6, got 3\."):
        merged(tmp_path / "columns", root, "reflections", stream(tmp_path, SIDECAR))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (result(1, doc_id="d0"), r"the result of row 1 is of the document 'd0', and the sidecar .* has 'd1' there"),
        (result(5), r"00000/results.jsonl: row 5, at byte [0-9]+, is none of the rows \[0, 3\) of rank 00000"),
        (result(2), r"00000/results.jsonl: row 2 has two results, at the bytes [0-9]+ and [0-9]+"),
    ],
)
def test_a_result_that_is_not_of_its_row_names_file_and_row(tmp_path: Path, line: str, told: str) -> None:
    root = run_folder(tmp_path / "run", "reflections", 6, 3, {"00000": [result(0), result(2), line]})
    with pytest.raises((ReflectionError, PartsFailed), match=told):
        merged(tmp_path / "columns", root, "reflections", stream(tmp_path, SIDECAR), allow_missing=True)


def test_what_is_merged_again_is_what_has_changed(tmp_path: Path) -> None:
    lines = {"00000": [result(row) for row in (0, 1, 2)], "00001": [result(row) for row in (3, 4, 5)]}
    root, built = run_folder(tmp_path / "run", "reflections", 6, 3, lines), stream(tmp_path, SIDECAR)
    merged(tmp_path / "columns", root, "reflections", built)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "columns").glob("*.parquet")}
    file = root / "00000/results.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    merged(tmp_path / "columns", root, "reflections", built)
    file.write_text(file.read_text().replace("I 1.", "I one."))
    merged(tmp_path / "columns", root, "reflections", built)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "columns").glob("*.parquet")}
    assert [name for name in times if times[name] != again[name]] == ["part_00000.parquet"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ((b"I 1.", b"I 9."), "its lines are not those that the marker .*completions/00000 describes"),
        ((b'"status"', b'"status\\'), "its lines are not those that the marker .*completions/00000 describes"),
        ((b'"global_row_idx": 1', b'"global_row_idx": 0'), "row 0 has two results, .* edited or damaged"),
        ((b'"global_row_idx": 1', b'"global_row_idx": 7'), "is none of the rows .* or damaged"),
    ],
    ids=["text", "no JSON", "another row", "another rank"],
)
def test_a_damaged_result_file_is_named_and_the_remedy_helps(
    tmp_path: Path, damage: tuple[bytes, bytes], told: str
) -> None:
    lines = [result(row) for row in range(6)]
    root, built = run_folder(tmp_path / "run", "reflections", 6, 6, {"00000": lines}), stream(tmp_path, SIDECAR)
    (rank,) = ranks_of(root)
    complete_rank(rank)
    rank.results.write_bytes(rank.results.read_bytes().replace(*damage, 1))
    for _ in range(2):
        with pytest.raises(
            PartsFailed, match=f"(?s)results.jsonl: .*{told}.*or remove the rank's folder and its marker"
        ):
            merged(tmp_path / "columns", root, "reflections", built)
    shutil.rmtree(rank.path)
    rank.marker.unlink()
    with pytest.raises(ReflectionError, match="Missing 6 rows"):
        merged(tmp_path / "columns", root, "reflections", built)
    rank.path.mkdir()
    rank.results.write_text("".join(f"{line}\n" for line in lines))  # as submit writes them
    complete_rank(rank)
    assert len(merged(tmp_path / "columns", root, "reflections", built)) == 1


def test_canaries_are_counted_by_fact_and_voice(tmp_path: Path) -> None:
    lines = [
        result(0, canary_type="Q1", canary_in_1p=True, canary_in_3p=False),
        result(1, canary_type="Q1", canary_in_1p=True, canary_in_3p=True),
        result(2, canary_type="Q7", canary_in_1p=False, canary_in_3p=None),
    ]
    root = run_folder(tmp_path / "run", "reflections", 3, 3, {"00000": lines})
    (counted,) = merged(tmp_path / "columns", root, "reflections", stream(tmp_path, SIDECAR)).statistics_as(
        MergedStatistics
    )
    assert counted["canaries"] == {
        "Q1": {"documents": 2, "in_1p": 2, "in_3p": 1},
        "Q7": {"documents": 1, "in_1p": 0, "in_3p": 0},
    }


# ---- the sidecar ----


def test_an_export_keeps_the_columns_of_other_runs_and_the_rows_outside_its_range(tmp_path: Path) -> None:
    built = stream(tmp_path, SIDECAR)
    run, _ = find_generation_run("reflections")
    first = merged(
        tmp_path / "a", run_folder(tmp_path / "run a", "reflections", 6, 6, {"00000": [result(i) for i in range(6)]}),
        "reflections", built,
    )  # fmt: skip
    target = tmp_path / "out.parquet"
    assert export_sidecar(built.path(FILE), {"reflections": (run, first)}, target) == 6
    summary = [
        json.dumps({"global_row_idx": i, "doc_id": f"d{i}", "summary": f"S{i}", "summary_token_count": i})
        for i in range(6)
    ]
    second = merged(
        tmp_path / "b", run_folder(tmp_path / "run b", "summaries", 6, 6, {"00000": summary}), "summaries", built
    )
    export_sidecar(target, {"summaries": (find_generation_run("summaries")[0], second)}, target)
    changes = [result(i, reflection_1p="new") for i in range(2)]
    third = merged(
        tmp_path / "c", run_folder(tmp_path / "run c", "reflections", 2, 2, {"00000": changes}), "reflections", built
    )
    export_sidecar(target, {"reflections": (run, third)}, target)
    found = pq.read_table(target)
    assert found["reflection_1p"].to_pylist() == ["new", "new", "I 2.", "I 3.", "I 4.", "I 5."]
    assert found["summary"].to_pylist() == [f"S{i}" for i in range(6)]
    file = pq.ParquetFile(target)
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [2, 2, 2]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_an_export_into_the_sidecar_of_another_stream_is_refused(tmp_path: Path) -> None:
    root = run_folder(tmp_path / "run", "reflections", 6, 6, {"00000": [result(i) for i in range(6)]})
    columns = {
        "reflections": (
            find_generation_run("reflections")[0],
            merged(tmp_path / "columns", root, "reflections", stream(tmp_path, SIDECAR)),
        )
    }
    other = stream(tmp_path / "other", {**SIDECAR, "doc_id": ["d0", "d1", "d2", "x", "d4", "d5"]})
    with pytest.raises(ReflectionError, match="rows from 2 on are of other documents"):
        export_sidecar(other.path(FILE), columns, tmp_path / "out.parquet")
    short = stream(tmp_path / "short", {name: values[:4] for name, values in SIDECAR.items()})
    with pytest.raises(ReflectionError, match="has 4 rows, and the columns of reflections have rows behind them"):
        export_sidecar(short.path(FILE), columns, tmp_path / "out.parquet")
    texts = stream(tmp_path / "texts", {**SIDECAR, "reflection": ["", "", "", "", "precious", ""]})
    with pytest.raises(ReflectionError, match="the column reflection of the sidecar is a placeholder"):
        export_sidecar(texts.path(FILE), columns, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


_MEMORY = """
import sys
from pathlib import Path
from everytoken.reflections.merging import list_replies, merge_rank, export_sidecar
from everytoken.reflections import find_generation_run
from everytoken.shards import ArtifactStore, Inline, Store
folder = Path(sys.argv[1])
stream, store = ArtifactStore(folder / "stream").load(), Store(folder / "columns")
planned = list_replies(folder / "run").map(merge_rank, run="reflections", stream=stream, allow_missing=False)
store.save(planned, Inline())
run, _ = find_generation_run("reflections")
export_sidecar(stream.path("sidecar.parquet"), {"reflections": (run, store.load())}, folder / "out.parquet")
status = Path("/proc/self/status").read_text()  # ru_maxrss has what the parent held, too
print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("per_task", [100_000, 2_000_000])
def test_two_million_rows_are_merged_in_less_than_a_gigabyte(tmp_path: Path, per_task: int) -> None:
    rows = 2_000_000
    stream(tmp_path, {"doc_id": [f"d{i}" for i in range(rows)], "token_length": [9] * rows}, group=100_000)
    lines = {
        f"{rank:05d}": [result(row) for row in reversed(range(rank * per_task, (rank + 1) * per_task))]
        for rank in range(rows // per_task)
    }
    run_folder(tmp_path / "run", "reflections", rows, per_task, lines)
    done = subprocess.run([sys.executable, "-c", _MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == rows
