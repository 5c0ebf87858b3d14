"""What an error of ingestion says to do is done here, and then the documents are read."""

from __future__ import annotations

import ast
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import CorpusError, NoFilesError, PlanError, RowError, SelectionError
from everytoken.corpus.ingestion import ingest, plan, quality, source
from everytoken.corpus.ingestion.ingest import check_bad_shares
from everytoken.corpus.ingestion.plan import make_shard_plan, part_values, shard_order
from everytoken.corpus.ingestion.quality import check_keep_rates
from everytoken.corpus.ingestion.source import Source, find_files
from tests.corpus.ingestion.test_ingest import MAX_BATCH_ROWS, read_rows_of, values_of, write_lines
from tests.corpus.ingestion.test_shard_plan import LIMITS, plan_parameters, sources_and_files, write_rows
from tests.corpus.part_tables import collect, collect_all
from tests.corpus.upstreams.test_source import TEXT_ROWS, make_wheel, toy_upstream

TRIED = {
    "set expect_shards to {",
    "set expect_shards to null, and then to n_total of shard_plan.json",
    "Lower offset or n_shards (null reads all from offset on)",
    "Put it back, or ",
    "mend the files, or allow more by ingestion.max_bad_share",
    "allow more by ingestion.max_bad_share: ",
    "Repair the file at its origin, pin another revision",
    "format, records or renderer (its columns) may not fit this file",
    "Choose another stratum_column.",
    "put the planned file back, or ",
    "lower min_keep_rate when these rows should go",
    "then change that rule (or give another file of this source)",
    "Set upstream.member to one of its files, for example ",
    "set rows_per_shard to null, or files_per_shard to 1",
}


def refused(kind: type[Exception], *remedies: str) -> Any:
    assert TRIED.issuperset(remedies)
    return pytest.raises(kind, match=".*".join(map(re.escape, remedies)).replace(r"\{", ""))


def test_expect_shards_is_set_to_the_number_that_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/y.jsonl", 7)
    sources, files = sources_and_files(tmp_path, a=2)
    with refused(PlanError, "set expect_shards to {") as caught:
        make_shard_plan(sources, files, plan_parameters(expect_shards=3), LIMITS)
    (named,) = re.findall(r"set expect_shards to (\d+)\.", str(caught.value))
    assert make_shard_plan(sources, files, plan_parameters(expect_shards=int(named)), LIMITS)["n_total"] == 4


def test_expect_shards_is_set_to_what_the_plan_has_without_it(tmp_path: Path) -> None:
    for name in "xyz":
        write_rows(tmp_path / f"a/{name}.jsonl", 5)
    sources, files = sources_and_files(tmp_path, a=2)
    with refused(PlanError, "set expect_shards to null, and then to n_total of shard_plan.json"):
        make_shard_plan(sources, files, plan_parameters(expect_shards=2), LIMITS)
    total = make_shard_plan(sources, files, plan_parameters(), LIMITS)["n_total"]
    assert make_shard_plan(sources, files, plan_parameters(expect_shards=total), LIMITS)["n_total"] == total == 9


@pytest.mark.parametrize("slice_", [{"offset": 3}, {"offset": 2, "n_shards": 2}])
def test_a_slice_is_lowered(slice_: dict[str, int]) -> None:
    with refused(PlanError, "Lower offset or n_shards (null reads all from offset on)"):
        shard_order(3, plan_parameters(**slice_))
    assert len(shard_order(3, plan_parameters(**slice_ | {"offset": 1}))) == 2
    assert len(shard_order(3, plan_parameters(offset=2, n_shards=None))) == 1


def test_a_planned_file_is_put_back_or_planned_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/x.jsonl", 2)
    write_rows(tmp_path / "a/y.jsonl", 3)
    sources, files = sources_and_files(tmp_path, a=None)
    made = make_shard_plan(sources, files, plan_parameters(), LIMITS)
    (tmp_path / "a/x.jsonl").rename(tmp_path / "elsewhere")
    sources, left = sources_and_files(tmp_path, a=None)
    with refused(PlanError, "Put it back, or ") as caught:
        part_values(made, sources, left)
    assert str(caught.value).endswith("run the pipeline ingestion again, which plans the files as they are.")
    again = make_shard_plan(sources, left, plan_parameters(), LIMITS)
    assert len(part_values(again, sources, left)[0]) == 1
    (tmp_path / "elsewhere").rename(tmp_path / "a/x.jsonl")
    assert len(part_values(made, *sources_and_files(tmp_path, a=None))[0]) == 2


def test_bad_rows_are_repaired_or_allowed_or_read_by_another_renderer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, {"body": "one"}, {"body": "two"})
    (value,) = values_of(tmp_path)
    remedies = (
        "format, records or renderer (its columns) may not fit this file",
        "Repair the file at its origin, pin another revision",
        "allow more by ingestion.max_bad_share: ",
    )
    with refused(RowError, *remedies):
        collect(read_rows_of(value))
    table, aside, _ = collect_all(read_rows_of(value, max_bad_share=1.0))
    assert (len(table), aside.column("row").to_pylist()) == (0, [0, 1])
    value["reading"]["renderer"]["text_column"] = "body"
    assert len(collect(read_rows_of(value))[0]) == 2
    write_lines(path, {"text": "one"}, {"text": "two"})
    assert len(collect(read_rows_of(values_of(tmp_path)[0]))[0]) == 2


def test_bad_rows_of_a_kept_part_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, {"text": "one"}, {"body": "two"})
    counts = [collect(read_rows_of(values_of(tmp_path)[0], max_bad_share=0.5))[1]]
    with refused(SelectionError, "mend the files, or allow more by ingestion.max_bad_share"):
        check_bad_shares({"part_00000": counts[0]}, 0.1)
    check_bad_shares({"part_00000": counts[0]}, 0.5)
    write_lines(path, {"text": "one"}, {"text": "two"})
    check_bad_shares({"part_00000": collect(read_rows_of(values_of(tmp_path)[0]))[1]}, 0.1)


def test_a_source_that_keeps_too_little_is_allowed_to_or_keeps_more() -> None:
    remedies = (
        "then change that rule (or give another file of this source)",
        "lower min_keep_rate when these rows should go",
    )
    with refused(SelectionError, *remedies):
        check_keep_rates({"a": {"rows_in": 10, "kept": 4}}, {"a": 0.5})
    check_keep_rates({"a": {"rows_in": 10, "kept": 4}}, {"a": 0.4})
    check_keep_rates({"a": {"rows_in": 10, "kept": 6}}, {"a": 0.5})


def test_another_column_is_the_stratum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MAX_STRATA", 2)
    write_lines(tmp_path / "a.jsonl", *({"text": "t", "topic": str(n), "kind": "k"} for n in range(3)))
    (value,) = values_of(tmp_path)
    value["reading"]["renderer"]["stratum_column"] = "topic"
    with refused(RowError, "Choose another stratum_column."):
        collect(read_rows_of(value))
    value["reading"]["renderer"]["stratum_column"] = "kind"
    assert len(collect(read_rows_of(value))[0]) == 3


def test_a_file_that_was_written_to_is_put_back_or_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, *[{"text": "before"}] * (MAX_BATCH_ROWS + 500))
    os.utime(path, (1, 1))
    content = path.read_bytes()
    (value,) = values_of(tmp_path)
    batches = read_rows_of(value).batches
    next(batches)
    path.write_bytes(content.replace(b"before", b"after!"))
    with refused(RowError, "put the planned file back, or "):
        list(batches)
    (again,) = values_of(tmp_path)
    assert collect(read_rows_of(again))[0].column("text")[0].as_py() == "after!"
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert collect(read_rows_of(value))[0].column("text")[0].as_py() == "before"


@pytest.mark.parametrize("member", ["toy/other.jsonl", "toy/data.csv"])
def test_a_member_of_a_wheel_is_one_of_those_that_are_named(tmp_path: Path, member: str) -> None:
    wheel = make_wheel()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/toy_data-1.0-py3-none-any.whl").write_bytes(wheel)
    with refused(NoFilesError, "Set upstream.member to one of its files, for example ") as caught:
        find_files("s", toy_upstream(wheel, member=member), tmp_path)
    named = ast.literal_eval(str(caught.value).rpartition("for example ")[2].rstrip("."))
    (file,) = find_files("s", toy_upstream(wheel, member=named[0]), tmp_path)
    with zipfile.ZipFile(file.location) as archive:
        assert file.path in archive.namelist()


def test_files_are_cut_or_read_together() -> None:
    given: dict[str, Any] = {"upstream": {"kind": "path", "root": "/texts"}, "renderer": TEXT_ROWS}
    both = {"rows_per_shard": 3, "files_per_shard": 2}
    with refused(ValidationError, "set rows_per_shard to null, or files_per_shard to 1"):
        Source.model_validate({**given, **both})
    for remedy in ({"rows_per_shard": None}, {"files_per_shard": 1}):
        Source.model_validate({**given, **both, **remedy})


def test_every_remedy_of_ingestion_is_tried() -> None:
    """An error that is added to ingestion needs a remedy, and a case above."""
    found: list[str] = []
    for module in (ingest, plan, quality, source):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            name = ast.unparse(node.exc.func) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else ""
            if not name.endswith("Error") or name in ("RowError", "ValueError"):
                continue
            said = ast.unparse(node.exc)  # type: ignore[attr-defined]
            assert any(one in said for one in TRIED), f"{module.__name__}: {said}"
            found.append(name)
        for remedy in re.findall(r'remedy = .*?"(.+?)[{"]', text):
            assert any(one in remedy or remedy in one for one in TRIED), f"{module.__name__}: {remedy}"
            found.append(remedy)
    assert len(found) >= 9 and issubclass(PlanError, CorpusError)
