from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.sampling.formulas import (
    SampledRows,
    SubsamplingParameters,
    draw_rows,
    estimated_tokens,
    part_budgets,
    part_estimate,
    totals_of,
)
from everytoken.corpus.sampling.held_out import held_out_rows
from everytoken.seeds import uniform_hash
from tests.corpus.part_tables import documents

VECTORS = Path(__file__).parents[2] / "vectors"
CASES = json.loads((VECTORS / "subsample.json").read_text())["cases"]
TIES = json.loads((VECTORS / "subsample_ties.json").read_text())["cases"]
LENGTHS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5)), max_size=30)


def subsampling(**changes: Any) -> SubsamplingParameters:
    base = {"seed": 42, "annotation_threshold": 3, "chars_per_token": 4.068, "target_tokens": None}
    rest = {
        "max_tokens_per_document": 2048,
        "held_out_seed": 43,
        "held_out_share": 0.0,
        "strata": None,
        "exclude": None,
    }
    return SubsamplingParameters.model_validate({**base, **rest, **changes})


def of_case(case: dict[str, Any]) -> SubsamplingParameters:
    return subsampling(
        **{key: case[key] for key in ("seed", "annotation_threshold", "chars_per_token", "target_tokens")}
    )


def sampled(lengths: list[int], scores: list[int], parameters: SubsamplingParameters) -> SampledRows:
    n = len(lengths)
    tokens = estimated_tokens(np.array(lengths, np.int64), parameters)
    above = np.array(scores, np.int8) >= parameters.annotation_threshold
    return SampledRows(tokens, above, np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.int32), ["all"])


def draw(parts: list[tuple[list[int], list[int]]], parameters: SubsamplingParameters) -> tuple[Any, Any, list[Any]]:
    columns = [sampled(*part, parameters) for part in parts]
    estimates = [part_estimate(rows) for rows in columns]
    totals = totals_of(estimates, parameters)
    by_part = [part_budgets(estimate, totals) for estimate in estimates]
    rows = [
        draw_rows(rows, budgets, index, parameters.seed)
        for index, (rows, budgets) in enumerate(zip(columns, by_part, strict=True))
    ]
    budgets = [part.get("all", {"annotated": 0.0, "unannotated": 0.0}) for part in by_part]
    return totals, budgets, [(annotated.tolist(), unannotated.tolist()) for annotated, unannotated in rows]


def as_specified(
    parts: list[tuple[list[int], list[int]]], seed: int, threshold: int, chars_per_token: float, target: float | None
) -> list[tuple[list[int], list[int]]]:
    """The published procedure once more, as it is described: whole arrays, nothing of the product.

    The first pass sums with Arrow, the second with numpy.
    """
    tokens = [np.minimum(np.array(lengths) / chars_per_token, 2048.0) for lengths, _ in parts]
    above = [np.array(scores) >= threshold for _, scores in parts]
    a = [pc.sum(pa.array(t[is_above]), min_count=0).as_py() for t, is_above in zip(tokens, above, strict=True)]
    b = [pc.sum(pa.array(t[~is_above]), min_count=0).as_py() for t, is_above in zip(tokens, above, strict=True)]
    total = sum(a) + sum(b)
    scale = target / total if target is not None and target < total else 1.0

    def fill(pool: Any, t: Any, budget: float) -> Any:
        if len(pool) == 0 or budget <= 0:
            return pool[:0]
        return pool[: np.searchsorted(np.cumsum(t[pool]), budget, side="left") + 1]

    drawn = []
    for p, (t, is_above) in enumerate(zip(tokens, above, strict=True)):
        below_p = min(sum(a), sum(b)) * scale * (b[p] / sum(b)) if sum(b) else 0.0
        rng = np.random.default_rng((seed, p))
        pools = np.where(is_above)[0], np.where(~is_above)[0]
        for pool in pools:
            rng.shuffle(pool)
        first = fill(pools[0], t, a[p] * scale + below_p)
        second = fill(pools[1], t, a[p] * scale + below_p - t[first].sum())
        rest = fill(pools[1][len(second) :], t, b[p] * scale - below_p)
        drawn.append((sorted([*first.tolist(), *second.tolist()]), sorted(rest.tolist())))
    return drawn


@settings(max_examples=80, deadline=None)
@given(
    st.lists(LENGTHS, min_size=1, max_size=4), st.none() | st.integers(1, 50_000), st.integers(0, 5), st.integers(0, 9)
)
def test_draws_as_an_independent_program_does(
    parts: list[list[tuple[int, int]]], target: int | None, threshold: int, seed: int
) -> None:
    """Four characters a token: every sum is exact, in whatever order it is taken."""
    columns = [([length for length, _ in part], [score for _, score in part]) for part in parts]
    parameters = subsampling(seed=seed, annotation_threshold=threshold, chars_per_token=4, target_tokens=target)
    assert draw(columns, parameters)[2] == as_specified(columns, seed, threshold, 4.0, target)


@pytest.mark.parametrize(
    "case", [*CASES, *TIES], ids=lambda case: f"seed_{case['seed']}_target_{case['target_tokens']}"
)
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
        "target_tokens": totals["budget_tokens"],
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


def test_a_target_above_the_corpus_is_the_corpus_and_says_so() -> None:
    parts = [([100, 200, 300], [0, 5, 0])]
    without, with_target = draw(parts, subsampling()), draw(parts, subsampling(target_tokens=1e12))
    assert without[1:] == with_target[1:]
    total = without[0]["total_tokens"]
    assert with_target[0]["limited_by"] == [{"stratum": None, "tokens": total, "wanted_tokens": 1e12}]
    assert {**with_target[0], "limited_by": []} == without[0]
    assert draw(parts, subsampling(target_tokens=total))[0]["limited_by"] == []


def test_a_target_below_one_document_draws_one_of_each_pool() -> None:
    """A budget that is not zero takes at least a document: 1 token of 5,000 is one document of each kind."""
    parts = [([4068] * 5, [5, 0, 0, 0, 0])]
    annotated, unannotated = draw(parts, subsampling(target_tokens=1))[2][0]
    assert annotated == [0]
    assert len(unannotated) == 1


def test_a_giant_document_is_more_than_its_budget_and_than_the_target() -> None:
    parts = [([10**9], [0]), ([4068] * 3, [0, 0, 0])]
    totals, budgets, rows = draw(parts, subsampling(target_tokens=500))
    assert totals["below_tokens"] == pytest.approx(5048)
    assert budgets[0]["unannotated"] < 500 < 2048
    assert rows[0] == ([], [0])  # its part has a budget, so it is drawn


def test_parts_of_one_row_overshoot() -> None:
    """Each part owes half a document to the annotated split, and gives a whole one."""
    _, budgets, rows = draw([([400], [5]), ([400], [0]), ([400], [0])], subsampling())
    assert [budget["annotated"] for budget in budgets] == pytest.approx([400 / 4.068, 200 / 4.068, 200 / 4.068])
    assert rows == [([0], []), ([0], []), ([0], [])]


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=4), st.none() | st.floats(1, 50_000))
def test_no_pool_overshoots_its_budget_by_a_whole_document(
    parts: list[list[tuple[int, int]]], target: float | None
) -> None:
    columns = [([length for length, _ in part], [score for _, score in part]) for part in parts]
    parameters = subsampling(target_tokens=target)
    _, by_part, rows = draw(columns, parameters)
    for (lengths, scores), budget, (annotated, unannotated) in zip(columns, by_part, rows, strict=True):
        tokens = estimated_tokens(np.array(lengths, np.int64), parameters)
        largest = max(tokens, default=0.0)
        assert tokens[annotated].sum() <= max(0.0, budget["annotated"]) + largest
        assert tokens[unannotated].sum() <= max(0.0, budget["unannotated"]) + largest
        below = sum(score < 3 for score in scores)
        taken = sum(scores[row] < 3 for row in [*annotated, *unannotated])
        if taken < below:  # what was not all of a pool met its budget
            assert tokens[unannotated].sum() >= budget["unannotated"] * (1 - 1e-12)


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
        {"annotation_threshold": 2.5},
        {"held_out_share": -0.1},
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


def test_held_out_documents_are_those_of_the_hash_of_their_address() -> None:
    table = documents(["x"] * 3000, source="web/ü")
    (batch,) = table.to_batches()
    parameters = subsampling(held_out_share=0.3, held_out_seed=-7)
    expected = [uniform_hash(-7, "web/ü", 0, row) < 0.3 for row in range(3000)]
    assert held_out_rows(batch, parameters).tolist() == expected
    assert held_out_rows(batch.slice(0, 0), parameters).tolist() == []
    assert not held_out_rows(batch, subsampling(held_out_share=0)).any()
    edge = uniform_hash(-7, "web/ü", 0, 1234)
    assert not held_out_rows(batch, subsampling(held_out_share=edge, held_out_seed=-7))[1234], "under it, not at it"
    assert held_out_rows(batch, subsampling(held_out_share=np.nextafter(edge, 1), held_out_seed=-7))[1234]


def tied_parts(seed: int) -> tuple[list[tuple[list[int], list[int]]], float, float]:
    """Return parts of documents of one to three lengths, characters a token, and a target in tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1, 3, 7, 10, 33, 50, 100, 333, 4068, 9999], rng.integers(1, 4), replace=False)
    shares = rng.choice([0.1, 0.3, 0.5, 0.7], 1 + rng.integers(2))
    parts = []
    for share in shares:
        n = int(rng.choice([16, 50, 100, 129]))
        parts.append((rng.choice(lengths, n).tolist(), (3 * (rng.random(n) < share)).astype(int).tolist()))
    chars_per_token = float(rng.choice([3.3, 4.068, 7.1, 10.0]))
    total = sum(min(length / chars_per_token, 2048.0) for lengths, _ in parts for length in lengths)
    return parts, chars_per_token, total * float(rng.choice([0.25, 0.5, 0.6, 0.75, 0.9]))


def test_ties_are_drawn_as_an_independent_program_does() -> None:
    for seed in range(600):  # Arrow's order draws another row for 133, 384, 571 and 586
        parts, chars_per_token, target = tied_parts(seed)
        parameters = subsampling(seed=seed, chars_per_token=chars_per_token, target_tokens=target)
        assert draw(parts, parameters)[2] == as_specified(parts, seed, 3, chars_per_token, target), seed
