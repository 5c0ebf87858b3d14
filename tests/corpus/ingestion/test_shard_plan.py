from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import PlanError, RowError, UpstreamError
from everytoken.corpus.ingestion.plan import (
    PlanParameters,
    ShardPlan,
    first_parts,
    make_shard_plan,
    part_values,
    shard_order,
)
from everytoken.corpus.ingestion.planned_shards import ShardRange
from everytoken.corpus.ingestion.quality import QualityRules
from everytoken.corpus.ingestion.source import Source, UpstreamFile, find_files
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.shards import value_digest
from tests.corpus.upstreams.test_source import path_source

LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)


def plan_parameters(**changes: Any) -> PlanParameters:
    return PlanParameters.model_validate({"seed": 42, "offset": 0, "n_shards": None, "expect_shards": None, **changes})


def sources_and_files(root: Path, **rows_per_shard: int | None) -> tuple[dict[str, Source], dict[str, Any]]:
    sources = {name: path_source(root / name, rows_per_shard=rows) for name, rows in rows_per_shard.items()}
    return sources, {name: find_files(name, source.upstream, root) for name, source in sources.items()}


def write_rows(path: Path, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": str(i), "text": f"{path.name} {i}"}) + "\n" for i in range(rows)))


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[tuple[Path, ShardPlan]]:
    write_rows(tmp_path / "b/x.jsonl", 5)
    write_rows(tmp_path / "b/w.jsonl", 4)
    write_rows(tmp_path / "a/y.jsonl", 3)
    sources, files = sources_and_files(tmp_path, a=None, b=2)
    yield tmp_path, make_shard_plan(sources, files, plan_parameters(), LIMITS)


def test_the_published_order() -> None:
    order = shard_order(63_911, plan_parameters(n_shards=47_142, expect_shards=63_911))
    assert order[:5] == [1502, 22656, 56218, 17774, 7487]
    assert order[-3:] == [4218, 62815, 54983]
    assert len(order) == 47_142


@given(st.integers(2, 300), st.integers(0, 2**40), st.data())
def test_disjoint_slices_share_nothing_and_make_up_the_whole(n_total: int, seed: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, n_total - 1))
    first = shard_order(n_total, plan_parameters(seed=seed, n_shards=cut))
    second = shard_order(n_total, plan_parameters(seed=seed, offset=cut))
    assert not set(first) & set(second)
    assert first + second == shard_order(n_total, plan_parameters(seed=seed))
    assert sorted(first + second) == list(range(n_total))


@given(st.integers(0, 99), st.integers(1, 9))
def test_a_trial_has_the_first_parts_of_the_plan_and_the_first_of_each_source(seed: int, count: int) -> None:
    listed = [[ShardRange(source=name, path=f"{i}", shard_index=i, first_row=0, rows=None)] for name, i in _SHARDS]
    order = shard_order(len(listed), plan_parameters(seed=seed, n_shards=8))
    tried = first_parts(order, listed, count)
    assert tried[:count] == order[:count]
    rest = [listed[index][0]["source"] for index in tried[count:]]
    known = {listed[index][0]["source"] for index in order[:count]}
    assert len(rest) == len(set(rest)) and not known & set(rest), "only sources that had none, once"
    assert known | set(rest) == {listed[index][0]["source"] for index in order}


_SHARDS = [("a", 0), *(("b", i) for i in range(3)), *(("c", i) for i in range(6))]


def test_a_plan_says_that_it_is_of_a_trial(tmp_path: Path) -> None:
    for name in "ab":
        write_rows(tmp_path / f"{name}/x.jsonl", 8)
    sources, files = sources_and_files(tmp_path, a=2, b=2)
    whole = make_shard_plan(sources, files, plan_parameters(), LIMITS)
    tried = make_shard_plan(sources, files, plan_parameters(try_parts=1), LIMITS)
    assert "try_parts" not in whole["parameters"] and tried["parameters"]["try_parts"] == 1
    assert tried["n_total"] == whole["n_total"] == 8
    assert tried["shards"][0] == whole["shards"][0] and len(tried["shards"]) == 2


def test_a_negative_seed_is_refused_because_its_order_is_that_of_the_positive_one() -> None:
    with pytest.raises(ValidationError, match="seed"):
        plan_parameters(seed=-42)


def test_another_number_of_shards_than_pinned_stops_before_a_file_is_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/y.jsonl", 3)
    sources, files = sources_and_files(tmp_path, a=None)
    gone = {"a": [file._replace(location=Path("/nowhere")) for file in files["a"]]}
    with pytest.raises(PlanError, match="have 1 shards, expect_shards pins 63,911"):
        make_shard_plan(sources, gone, plan_parameters(expect_shards=63_911), LIMITS)
    write_rows(tmp_path / "a/z.jsonl", 3)
    sources, files = sources_and_files(tmp_path, a=2)
    gone = {"a": [file._replace(location=Path("/nowhere")) for file in files["a"]]}
    with pytest.raises(PlanError, match="have 2 files, and so at least as many shards; expect_shards pins 1"):
        make_shard_plan(sources, gone, plan_parameters(expect_shards=1), LIMITS)  # else it would count their rows
    assert make_shard_plan(sources, files, plan_parameters(expect_shards=4), LIMITS)["n_total"] == 4
    sources, files = sources_and_files(tmp_path, a=3)
    assert make_shard_plan(sources, files, plan_parameters(expect_shards=2), LIMITS)["n_total"] == 2


@pytest.mark.parametrize("slice_", [{"offset": 3}, {"n_shards": 4}, {"offset": 2, "n_shards": 2}])
def test_a_slice_past_the_end_is_an_error(slice_: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="reaches past the 3 shards"):
        shard_order(3, plan_parameters(**slice_))


def test_indices_point_into_shards_sorted_by_source_path_and_first_row(planned: tuple[Path, ShardPlan]) -> None:
    _, plan = planned
    by_index = dict(zip(plan["order"], plan["shards"], strict=True))
    listed = [
        (s["source"], s["path"], s["shard_index"], s["first_row"], s["rows"]) for _, s in sorted(by_index.items())
    ]
    assert listed == [
        ("a", "y.jsonl", 0, 0, None),
        ("b", "w.jsonl", 0, 0, 2),
        ("b", "w.jsonl", 0, 2, 2),
        ("b", "x.jsonl", 1, 0, 2),
        ("b", "x.jsonl", 1, 2, 2),
        ("b", "x.jsonl", 1, 4, 1),
    ]


def test_the_plan_is_json_and_names_no_place(planned: tuple[Path, ShardPlan]) -> None:
    root, plan = planned
    text = json.dumps(plan)
    assert json.loads(text) == plan
    assert str(root) not in text


def test_a_moved_folder_changes_no_digest_and_a_changed_byte_does(tmp_path: Path) -> None:
    write_rows(tmp_path / "one/a/y.jsonl", 3)
    write_rows(tmp_path / "two/a/y.jsonl", 3)
    write_rows(tmp_path / "three/a/y.jsonl", 4)
    digests = {}
    for place in ("one", "two", "three"):
        sources, files = sources_and_files(tmp_path / place, a=None)
        values, digests[place] = part_values(make_shard_plan(sources, files, plan_parameters(), LIMITS), sources, files)
        assert values[0]["files"][0]["file"]["location"].startswith(str(tmp_path / place))
    assert digests["one"] == digests["two"] != digests["three"]


def test_a_part_of_one_file_keeps_its_digest_and_one_of_several_has_them_all(tmp_path: Path) -> None:
    for name in "xyz":
        write_rows(tmp_path / f"a/{name}.jsonl", 3)
    sources, files = sources_and_files(tmp_path, a=None)
    together = {"a": sources["a"].model_copy(update={"files_per_shard": 2})}
    for given_sources, numbers in ((sources, [1, 1, 1]), (together, [1, 2])):
        plan = make_shard_plan(given_sources, files, plan_parameters(), LIMITS)
        values, digests = part_values(plan, given_sources, files)
        assert sorted(len(value["files"]) for value in values) == numbers
        for value, digest in zip(values, digests, strict=True):
            shards = [file["shard"] for file in value["files"]]
            rules = {key: given for key, given in value.items() if key != "files"}
            covered = {"shard": shards[0]} if len(shards) == 1 else {"shards": shards}
            assert digest == value_digest({**covered, **rules})


def test_a_part_knows_whether_others_read_its_file(planned: tuple[Path, ShardPlan]) -> None:
    root, plan = planned
    values, _ = part_values(plan, *sources_and_files(root, a=None, b=2))
    found = {(file["shard"]["path"], file["shared"]) for value in values for file in value["files"]}
    assert found == {("y.jsonl", False), ("w.jsonl", True), ("x.jsonl", True)}


def test_a_part_knows_the_classes_of_characters_that_its_rules_ask_for(planned: tuple[Path, ShardPlan]) -> None:
    root, plan = planned
    sources, files = sources_and_files(root, a=None, b=2)
    rules = QualityRules.model_validate({"max_punctuation": 0.5})
    sources["b"] = sources["b"].model_copy(update={"quality": rules})
    values, _ = part_values(plan, sources, files)
    assert {(value["files"][0]["shard"]["source"], "unicode" in value) for value in values} == {
        ("a", False),
        ("b", True),
    }


def test_a_file_that_is_gone_is_named(planned: tuple[Path, ShardPlan]) -> None:
    root, plan = planned
    (root / "b/x.jsonl").unlink()
    sources, files = sources_and_files(root, a=None, b=2)
    with pytest.raises(PlanError, match=r"x.jsonl of source 'b', which is no longer there"):
        part_values(plan, sources, files)


def test_an_unknown_format_stops_the_plan(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/y.sqlite", 1)
    source = path_source(tmp_path / "a", "*.sqlite")
    with pytest.raises(UpstreamError, match=r"source 'a', file y.sqlite: the format is not known"):
        make_shard_plan({"a": source}, {"a": find_files("a", source.upstream, tmp_path)}, plan_parameters(), LIMITS)


def test_records_for_a_format_without_them_stops_the_plan(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/y.jsonl", 1)
    source = path_source(tmp_path / "a").model_copy(update={"records": "problems"})
    with pytest.raises(UpstreamError, match=r"'a', file y.jsonl: records is 'problems', but the file is read as jsonl"):
        make_shard_plan({"a": source}, {"a": find_files("a", source.upstream, tmp_path)}, plan_parameters(), LIMITS)


def test_a_file_that_is_gone_when_its_digest_is_taken_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "a/y.jsonl", 1)
    sources, files = sources_and_files(tmp_path, a=None)
    (tmp_path / "a/y.jsonl").unlink()
    with pytest.raises(RowError, match=r"source 'a', file y.jsonl: it cannot be opened .*Put the file back"):
        make_shard_plan(sources, files, plan_parameters(), LIMITS)


def test_an_empty_file_is_a_shard_without_rows(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").touch()
    file = UpstreamFile("a", "e.jsonl", tmp_path / "e.jsonl", None)
    for size in (1, 5):
        plan = make_shard_plan(
            {"a": path_source(tmp_path, rows_per_shard=size)}, {"a": [file]}, plan_parameters(), LIMITS
        )
        assert [(shard["first_row"], shard["rows"]) for shard in plan["shards"]] == [(0, 0)]
