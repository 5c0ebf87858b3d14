from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.sampling import (
    SubsamplingParameters,
    budgets,
    draw_rows,
    estimated_tokens,
    metadata,
    part_estimate,
)

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "subsample.json").read_text())["cases"]
LENGTHS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5)), max_size=30)


def subsampling(**changes: Any) -> SubsamplingParameters:
    base = {"seed": 42, "annotation_threshold": 3, "chars_per_token": 4.068, "target_tokens": None}
    rest = {"max_tokens_per_document": 2048, "held_out_seed": 43, "held_out_share": 0.0}
    return SubsamplingParameters.model_validate({**base, **rest, **changes})


def of_case(case: dict[str, Any]) -> SubsamplingParameters:
    return subsampling(
        **{key: case[key] for key in ("seed", "annotation_threshold", "chars_per_token", "target_tokens")}
    )


def draw(parts: list[tuple[list[int], list[int]]], parameters: SubsamplingParameters) -> tuple[Any, Any, list[Any]]:
    columns = [
        (np.array(lengths, np.int64), np.array(scores, np.int8), np.zeros(len(lengths), np.bool_))
        for lengths, scores in parts
    ]
    totals, by_part = budgets([part_estimate(*column, parameters) for column in columns], parameters)
    rows = [
        draw_rows(estimated_tokens(lengths, parameters), scores, held_out, budget, index, parameters)
        for index, ((lengths, scores, held_out), budget) in enumerate(zip(columns, by_part, strict=True))
    ]
    return totals, by_part, [(annotated.tolist(), unannotated.tolist()) for annotated, unannotated in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"target_{case['target_tokens']}")
def test_the_published_draws_row_for_row_and_their_budgets_to_the_last_bit(case: dict[str, Any]) -> None:
    parts = [(file["text_lengths"], file["safety_scores"]) for file in case["files"]]
    totals, by_part, rows = draw(parts, of_case(case))
    expected = case["summary"]
    assert {
        "global_rows": totals["rows"],
        "global_tokens": totals["total_tokens"],
        "global_above_tokens": totals["above_tokens"],
        "global_below_tokens": totals["below_tokens"],
        "target_below_sample": totals["target_below_sample"],
        "annotation_ratio": totals["annotation_ratio"],
        "target_tokens": totals["target_tokens"],
        "scale": totals["scale"],
    } == expected
    for file, budget, drawn in zip(case["files"], by_part, rows, strict=True):
        assert (budget["annotated"], budget["unannotated"]) == (file["annotated_budget"], file["unannotated_budget"])
        assert drawn == (file["annotated_rows"], file["unannotated_rows"])


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=4), st.none() | st.floats(1, 50_000), st.integers(0, 5))
def test_splits_share_no_row_and_budgets_add_up(
    parts: list[list[tuple[int, int]]], target: float | None, threshold: int
) -> None:
    columns = [([length for length, _ in part], [score for _, score in part]) for part in parts]
    parameters = subsampling(target_tokens=target, annotation_threshold=threshold)
    totals, by_part, rows = draw(columns, parameters)
    spent = sum(budget["annotated"] + budget["unannotated"] for budget in by_part)
    assert spent == pytest.approx(totals["total_tokens"] * totals["scale"])
    for (lengths, _), (annotated, unannotated) in zip(columns, rows, strict=True):
        assert not set(annotated) & set(unannotated)
        assert annotated == sorted(set(annotated))
        assert unannotated == sorted(set(unannotated))
        assert set(annotated) | set(unannotated) <= set(range(len(lengths)))


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_without_a_target_every_row_above_is_annotated(parts: list[list[tuple[int, int]]]) -> None:
    columns = [([length for length, _ in part], [score for _, score in part]) for part in parts]
    _, _, rows = draw(columns, subsampling())
    for (lengths, scores), (annotated, _) in zip(columns, rows, strict=True):
        above = {row for row, score in enumerate(scores) if score >= 3 and lengths[row] > 0}
        assert above <= set(annotated)


def test_none_above_annotates_nothing() -> None:
    totals, _, rows = draw([([100, 200], [0, 2])], subsampling())
    assert rows == [([], [0, 1])]
    assert totals["annotation_ratio"] == 0


def test_all_above_annotates_everything() -> None:
    totals, _, rows = draw([([100, 200], [3, 5])], subsampling())
    assert rows == [([0, 1], [])]
    assert totals["annotation_ratio"] == 1
    assert draw([([100, 200], [0, 0])], subsampling(annotation_threshold=0))[2] == [([0, 1], [])]


def test_an_empty_part_and_an_empty_corpus_give_nothing() -> None:
    assert draw([([], []), ([100], [0])], subsampling())[2] == [([], []), ([], [0])]
    totals, _, rows = draw([([], [])], subsampling(target_tokens=100))
    assert rows == [([], [])]
    assert (totals["annotation_ratio"], totals["scale"]) == (0, 1)


def test_one_giant_document_counts_as_its_cap() -> None:
    totals, _, rows = draw([([10**9, 4068], [5, 0])], subsampling())
    assert totals["above_tokens"] == 2048
    assert totals["below_tokens"] == pytest.approx(1000)
    assert rows == [([0, 1], [])]  # more above than below: all that is below is matched


def test_a_target_above_the_corpus_is_the_corpus() -> None:
    parts = [([100, 200, 300], [0, 5, 0])]
    without, with_target = draw(parts, subsampling()), draw(parts, subsampling(target_tokens=1e12))
    assert without == with_target


def test_a_budget_that_is_met_exactly_takes_no_row_more() -> None:
    parameters = subsampling(chars_per_token=1, target_tokens=50)
    (_, unannotated), *_ = draw([([10] * 10, [0] * 10)], parameters)[2]
    assert len(unannotated) == 5


def test_the_draw_of_a_part_is_its_own() -> None:
    parts = [(list(range(100, 160)), [0, 4, 0] * 20)] * 2
    _, _, rows = draw(parts, subsampling(target_tokens=1000))
    assert rows[0] != rows[1]
    assert draw(parts, subsampling(target_tokens=1000, seed=43))[2] != rows


@pytest.mark.parametrize(
    "changes",
    [
        {"annotation_threshold": 6},
        {"annotation_threshold": -1},
        {"chars_per_token": 0},
        {"target_tokens": 0},
        {"target_tokens": float("inf")},
        {"held_out_share": 1.0},
        {"seed": -1},
    ],
)
def test_parameters_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        subsampling(**changes)


def test_metadata_holds_every_parameter_and_global() -> None:
    parameters = subsampling()
    columns = (np.array([100, 200]), np.array([0, 4], np.int8), np.zeros(2, np.bool_))
    estimates = [part_estimate(*columns, parameters)]
    totals, _ = budgets(estimates, parameters)
    made = metadata(parameters, totals, estimates, {"annotated": [{"rows": 2, "estimated_tokens": 73.7}]})
    assert json.loads(json.dumps(made)) == made
    assert made["parameters"] == parameters.model_dump()
    assert made["globals"] == totals
    assert made["splits"]["annotated"] == {"rows": 2, "estimated_tokens": 73.7, "rows_by_part": [2]}
    assert "estimates" in made["token_counts"]
