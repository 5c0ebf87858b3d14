from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.documents import SPLIT_DOCUMENTS
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling.formulas import SubsamplingParameters, totals_of
from everytoken.corpus.sampling.splits import Split, estimate_part_tokens, select_held_out, select_split
from everytoken.corpus.statistics import add_statistics
from tests.corpus.part_tables import TablePart, collect, scored, value_part
from tests.corpus.sampling.test_sampling import subsampling

DRAWN: tuple[Split, ...] = ("annotated", "unannotated")
SPLITS = (*DRAWN, "held_out")
ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=40)


def split_all(parts: list[TablePart], parameters: SubsamplingParameters) -> dict[str, list[tuple[Any, Any]]]:
    estimates = [estimate_part_tokens(part, parameters=parameters) for part in parts]
    totals = totals_of(estimates, parameters)
    drawn = {
        split: [
            collect(select_split(part, value_part(estimate), split=split, parameters=parameters, totals=totals))
            for part, estimate in zip(parts, estimates, strict=True)
        ]
        for split in DRAWN
    }
    return {**drawn, "held_out": [collect(select_held_out(part, parameters=parameters.held_out)) for part in parts]}


def parts_of(columns: list[list[tuple[int, int]]], batch_rows: int = 7) -> list[TablePart]:
    return [
        TablePart(scored([length for length, _ in rows], [score for _, score in rows]), batch_rows, index)
        for index, rows in enumerate(columns)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from([0.0, 0.3]), st.sampled_from([None, 500.0]))
def test_every_row_is_in_one_split_or_not_drawn(
    columns: list[list[tuple[int, int]]], share: float, target: float | None
) -> None:
    parts = parts_of(columns)
    made = split_all(parts, subsampling(held_out_share=share, target_tokens=target))
    for number, part in enumerate(parts):
        rows = [row for split in SPLITS for row in made[split][number][0].column("row").to_pylist()]
        assert len(rows) == len(set(rows))
        for split in SPLITS:
            table, statistics = made[split][number]
            counted = made["annotated"][number][1]
            assert table.num_rows == statistics["rows"] == counted[split]
            assert statistics["rows_in"] == part.rows == len(rows) + counted["not_drawn"]
            assert table.column("row").to_pylist() == sorted(table.column("row").to_pylist())
            by_source = add_statistics(s for strata in statistics["by_source"].values() for s in strata.values())
            assert by_source.get("rows", 0) == table.num_rows
            assert by_source.get("estimated_tokens", 0) == pytest.approx(statistics["estimated_tokens"])
            assert by_source.get("characters", 0) == sum(map(len, table.column("text").to_pylist()))


@settings(max_examples=20, deadline=None)
@given(ROWS, st.integers(1, 50))
def test_nothing_depends_on_batches(rows: list[tuple[int, int]], batch_rows: int) -> None:
    parameters = subsampling(held_out_share=0.2, target_tokens=800)
    one = split_all(parts_of([rows], batch_rows), parameters)
    other = split_all(parts_of([rows], 1000), parameters)
    assert split_all(parts_of([rows], 1), parameters) == other
    for split in SPLITS:
        assert one[split][0][0].equals(other[split][0][0])
        assert one[split][0][1] == other[split][0][1]


def test_columns_are_carried_over_and_two_are_appended() -> None:
    made = split_all(parts_of([[(100, 0), (90, 4), (80, 0), (70, 3), (60, 0)] * 4]), subsampling(held_out_share=0.3))
    for split in SPLITS:
        table, _ = made[split][0]
        assert table.schema == SPLIT_DOCUMENTS
        assert table.num_rows > 0
        rows = table.to_pylist()
        assert {row["has_annotation"] for row in rows} == {split == "annotated"}
        assert all(row["is_bad"] == (row["safety_score"] >= 3) for row in rows)


def test_held_out_documents_stay_the_same_whatever_else_changes() -> None:
    rows = [(100, 0), (90, 4), (80, 1)] * 30
    base = split_all(parts_of([rows]), subsampling(held_out_share=0.1))["held_out"][0][0]
    changed = subsampling(held_out_share=0.1, seed=7, target_tokens=100, annotation_threshold=1)
    assert split_all(parts_of([[(50, 0)] * 9, rows]), changed)["held_out"][1][0].column("row") == base.column("row")
    more = split_all(parts_of([rows]), subsampling(held_out_share=0.2))["held_out"][0][0]
    assert set(base.column("row").to_pylist()) < set(more.column("row").to_pylist())


def test_held_out_rows_are_in_no_estimate() -> None:
    (part,) = parts_of([[(100, 0), (90, 4)] * 50])
    every = estimate_part_tokens(part, parameters=subsampling())
    some = estimate_part_tokens(part, parameters=subsampling(held_out_share=0.2))
    (of_some,), (of_every,) = some.values(), every.values()
    assert of_some["held_out_rows"] > 0
    assert of_some["above_rows"] + of_some["below_rows"] + of_some["held_out_rows"] == 100
    total = of_some["above_tokens"] + of_some["below_tokens"] + of_some["held_out_tokens"]
    assert total == pytest.approx(of_every["above_tokens"] + of_every["below_tokens"])


def test_length_is_counted_in_code_points() -> None:
    table = scored([2, 2], [0, 0])
    table = table.set_column(table.column_names.index("utf8_bytes"), "utf8_bytes", [[6] * 2])  # as "😀é" has
    estimate = estimate_part_tokens(TablePart(table), parameters=subsampling(chars_per_token=1))
    assert estimate["all"]["below_tokens"] == 4


def test_rows_without_a_score_are_refused_with_their_count() -> None:
    part = TablePart(scored([10, 20, 30], [1, None, None]))
    with pytest.raises(SamplingError, match="part_00000: 2 rows have no safety_score and 0 have one outside"):
        estimate_part_tokens(part, parameters=subsampling())
    with pytest.raises(SamplingError, match=r"0 rows have no safety_score and 1 have one outside 0..5"):
        estimate_part_tokens(TablePart(scored([10, 20], [1, 6])), parameters=subsampling())


def test_estimates_of_other_documents_are_refused() -> None:
    part, other = parts_of([[(100, 0)] * 5, [(100, 0)] * 6])
    estimate = estimate_part_tokens(other, parameters=subsampling())
    totals = totals_of([estimate], subsampling())
    with pytest.raises(SamplingError, match="part_00000: the estimates are not of these documents"):
        collect(select_split(part, value_part(estimate), split="annotated", parameters=subsampling(), totals=totals))


def test_held_out_documents_and_estimates_do_not_read_the_parameters_of_the_draw() -> None:
    """Another seed or target makes neither of them again."""
    assert subsampling(seed=1, target_tokens=5).estimate == subsampling(seed=2, target_tokens=None).estimate
    assert set(type(subsampling().estimate).model_fields).isdisjoint({"seed", "target_tokens"})
    by_source = {"key": "source", "length_bands": None, "shares": None}
    some, others = (subsampling(strata={**by_source, "shares": {"a": share, "b": 1 - share}}) for share in (0.25, 0.5))
    assert some.estimate == others.estimate == subsampling(strata=by_source).estimate
    assert some.estimate != subsampling().estimate
    assert some.held_out == subsampling().held_out
    assert set(type(some.held_out).model_fields).isdisjoint({"seed", "target_tokens", "strata"})


def test_scores_and_probabilities_that_nobody_published_pass_through() -> None:
    """A document that a published table lacks has score 0 and no probabilities."""
    table = scored([100, 90, 80], [0, 4, 0])
    column = pa.array([None, [0.0] * 6, None], pa.list_(pa.float32()))
    number = table.column_names.index("safety_probs")
    part = TablePart(table.set_column(number, table.schema.field(number), column))
    made = split_all([part], subsampling())
    rows = [row for split in SPLITS for row in made[split][0][0].to_pylist()]
    assert {row["row"]: row["safety_probs"] is None for row in rows} == {0: True, 1: False, 2: True}


def test_what_is_drawn_and_what_is_not_is_counted_by_source_and_score() -> None:
    rows = [(400, 0), (360, 4), (320, 1), (280, 3), (240, 0)] * 6
    made = split_all(parts_of([rows]), subsampling(held_out_share=0.2, target_tokens=1200))
    for split in SPLITS:
        table, statistics = made[split][0]
        scores = table.column("safety_score").to_pylist()
        counted = statistics["by_score"]["s"]
        assert {score: of["rows"] for score, of in counted.items()} == {str(k): scores.count(k) for k in set(scores)}
        assert sum(of["estimated_tokens"] for of in counted.values()) == pytest.approx(statistics["estimated_tokens"])
    not_drawn = add_statistics(made["annotated"][0][1]["not_drawn_by_score"]["s"].values())
    assert not_drawn["rows"] == made["annotated"][0][1]["not_drawn"] > 0


def test_a_held_out_document_that_is_excluded_is_left_out_and_counted_by_its_score() -> None:
    parameters = subsampling(held_out_share=0.3).held_out
    part = TablePart(scored([10] * 40, [0, 5] * 20), 7, 0)
    whole, before = collect(select_held_out(part, parameters=parameters))
    assert whole.num_rows > 1 and "excluded" not in before
    first = whole.slice(0, 1).to_pylist()[0]
    exclusions = value_part({"addresses": [[first["source"], first["shard_index"], first["row"], "wish"]]})
    table, after = collect(select_held_out(part, exclusions, parameters=parameters))
    assert table.column("row").to_pylist() == whole.column("row").to_pylist()[1:]
    assert (after["excluded"], after["rows"]) == (1, before["rows"] - 1)
    (amounts,) = after["excluded_by_score"]["s"].values()
    assert list(after["excluded_by_score"]["s"]) == [str(first["safety_score"])] and amounts["rows"] == 1


def test_amounts_by_score_tell_the_sources_apart() -> None:
    tables = [scored([10] * 12, [k % 6 for k in range(12)], source=source) for source in ("one", "two", "three")]
    part = TablePart(pa.concat_tables(tables), 7, 0)
    parameters = subsampling(held_out_share=0.0, target_tokens=None)
    made = split_all([part], parameters)
    by_score = add_statistics(made[split][0][1]["by_score"] for split in DRAWN)
    assert set(by_score) == {"one", "two", "three"}
    for scores in by_score.values():
        assert {score: amounts["rows"] for score, amounts in scores.items()} == {str(k): 2 for k in range(6)}
