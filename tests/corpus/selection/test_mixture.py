"""Budgets are exact and sum to the target, and every prefix of a mixed corpus holds each source in its share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection.mixture import (
    MixtureParameters,
    Used,
    beyond_tolerance,
    budgets,
    common_unit,
    documents_until,
    interleave,
    largest_remainder,
    mixture_table,
    passes,
)
from everytoken.seeds import python_random

SEVEN = {
    "fineweb-edu": 0.40,
    "dclm-baseline": 0.15,
    "the-stack-v2-python": 0.15,
    "the-stack-v2-jupyter": 0.05,
    "openmath": 0.10,
    "arxiv": 0.10,
    "cosmopedia": 0.05,
}


def recipe(weights: dict[str, float], total: int, **changed: Any) -> MixtureParameters:
    given = {"chars_per_token": 4.0, "allow_repeat": {}, "tolerance": 0.01, "documents_per_part": 10, **changed}
    return MixtureParameters(weights=weights, target_total_tokens=total, **given)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(lambda w: sum(w) > 0), st.integers(0, 10**12))
def test_counts_sum_to_the_total_and_are_within_one_of_their_share(weights: list[float], total: int) -> None:
    counts = largest_remainder(weights, total)
    exact = [Fraction(repr(weight)) for weight in weights]
    assert sum(counts) == total
    assert all(abs(n - weight * total / sum(exact)) < 1 for n, weight in zip(counts, exact, strict=True))


@given(st.sets(st.sampled_from(sorted(SEVEN)), min_size=1), st.integers(1, 10**12), st.booleans())
def test_a_mixture_of_some_sources_keeps_their_proportions_and_the_target(
    names: set[str], total: int, by_source: bool
) -> None:
    per_token = {name: 3.0 + number for number, name in enumerate(SEVEN)} if by_source else 4.0
    whole = recipe(SEVEN, total, chars_per_token=per_token, allow_repeat={"arxiv": 3, "openmath": 2})
    some = whole.among(names)
    assert list(some.weights) == [name for name in SEVEN if name in names]
    for name, weight in some.weights.items():
        assert weight == pytest.approx(SEVEN[name] / sum(SEVEN[one] for one in names), rel=1e-12)
        assert some.exact_chars_per_token(name) == whole.exact_chars_per_token(name)
    assert some.allow_repeat == {name: times for name, times in whole.allow_repeat.items() if name in names}
    assert sum(budget.tokens for budget in budgets(some).values()) == some.target_total_tokens == total
    assert (some.tolerance, some.documents_per_part) == (whole.tolerance, whole.documents_per_part)
    assert whole.among(SEVEN).weights == SEVEN


def test_rounding_is_by_largest_remainder_and_earlier_on_a_tie() -> None:
    assert largest_remainder([1, 1, 1], 5) == [2, 2, 1]
    assert largest_remainder([0.41, 0.39, 0.2], 3) == [1, 1, 1]
    assert largest_remainder([0.1, 0.2, 0.7], 10) == [1, 2, 7], "0.1 is a tenth, not the nearest float of one"
    for weights in ([], [0.0, 0.0], [1.0, -0.5]):
        with pytest.raises(SelectionError, match="expected none below 0 and a sum above 0"):
            largest_remainder(weights, 3)


def test_budgets_of_the_published_recipe() -> None:
    tokens = {source: budget.tokens for source, budget in budgets(recipe(SEVEN, 8_000_000_000)).items()}
    assert sum(tokens.values()) == 8_000_000_000
    assert tokens["fineweb-edu"] == 3_200_000_000
    assert tokens["cosmopedia"] == 400_000_000


def test_a_budget_in_characters_is_the_least_that_reaches_the_tokens() -> None:
    for ratio, tokens in ((4.068, 1_000), (0.1, 7), (3.3333, 1)):
        budget = budgets(recipe({"a": 1.0}, tokens, chars_per_token=ratio))["a"]
        assert budget.amount / Fraction(repr(ratio)) >= tokens > (budget.amount - 1) / Fraction(repr(ratio))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": {"a": 0.5, "b": 0.4}}, r"the weights sum to 0\.9, expected 1"),
        ({"weights": {"a": 0.5, "b": 0.5000001}}, r"the weights sum to 1\.0000001, expected 1"),
        ({"weights": {"a": 0.5, "b": 0.5, "c": 0.0}}, "greater than 0"),
        ({"weights": {}}, "at least 1"),
        ({"chars_per_token": {"a": 4.0}}, r"chars_per_token is given for \['a'\], expected one for each"),
        ({"allow_repeat": {"c": 2}}, r"allow_repeat names \['c'\], which have no weight"),
        ({"allow_repeat": {"a": 0}}, "greater than 0"),
        ({"target_total_tokens": 1.5}, "valid integer"),
        ({"spare": 1}, "Extra inputs"),
    ],
)
def test_recipes_that_say_two_things_are_refused(changed: dict[str, Any], message: str) -> None:
    good = recipe({"a": 0.5, "b": 0.5}, 8_000).model_dump()
    with pytest.raises(ValidationError, match=message):
        MixtureParameters.model_validate({**good, **changed})


def test_weights_may_miss_one_by_rounding_errors() -> None:
    assert recipe({"a": 0.1, "b": 0.2, "c": 0.7}, 10).weights  # 0.1 + 0.2 + 0.7 is no 1.0 in floats
    assert recipe({"a": 0.5, "b": 0.5000000001}, 10).weights


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(-3, 200))
def test_documents_are_taken_while_the_budget_is_not_reached(lengths: list[int], needed: int) -> None:
    taken = given = 0
    for length in lengths:
        if given >= needed:
            break
        taken, given = taken + 1, given + length
    assert documents_until(np.array(lengths, np.int64), needed) == taken


@given(st.integers(1, 50), st.integers(0, 500))
def test_repeats_reach_the_budget_with_the_fewest_passes(there: int, needed: int) -> None:
    whole, rest = passes("a", there, needed, recipe({"a": 1.0}, 10, allow_repeat={"a": 1_000}))
    assert whole * there + rest == needed
    assert rest in range(1, there + 1) or needed == 0


def test_a_source_that_runs_dry_is_an_error_with_numbers_and_remedy() -> None:
    with pytest.raises(SelectionError) as error:
        passes("a", 400, 1_000, recipe({"a": 1.0}, 250, allow_repeat={"a": 2}))
    assert str(error.value) == (
        "source 'a' runs dry: its budget is 250 estimated tokens (1,000 characters), its documents have 100 (400 "
        "characters) and may be used 2 time(s). Read more of its shards, raise its max_text_bytes if it has one, lower "
        "its weight or mixture.target_total_tokens, or set mixture.allow_repeat.a to at least 3."
    )
    assert passes("a", 400, 1_000, recipe({"a": 1.0}, 250, allow_repeat={"a": 3})) == (2, 200)
    with pytest.raises(SelectionError, match="it has no text"):
        passes("a", 0, 1, recipe({"a": 1.0}, 250))


def test_a_source_that_allow_repeat_does_not_name_is_used_once() -> None:
    parameters = recipe({"a": 0.5, "b": 0.5}, 250, allow_repeat={"b": 2})
    assert passes("a", 400, 400, parameters) == (0, 400)
    assert passes("b", 400, 401, parameters) == (1, 1)
    with pytest.raises(SelectionError, match=r"may be used 1 time\(s\).*allow_repeat\.a to at least 2"):
        passes("a", 400, 401, parameters)
    assert passes("a", 0, 0, parameters) == (0, 0), "a budget of nothing is met by nothing"


def check_every_prefix(sizes: list[list[int]], shares: list[int]) -> None:
    """Each source's tokens are within the largest document of its share of the tokens so far, in exact arithmetic."""
    largest = max(map(max, filter(None, sizes)))
    whole, total, given, taken = sum(shares), 0, [0] * len(sizes), [0] * len(sizes)
    for i in interleave(sizes, shares):
        size = sizes[i][taken[i]]
        taken[i], given[i], total = taken[i] + 1, given[i] + size, total + size
        for share, tokens in zip(shares, given, strict=True):
            assert abs(tokens * whole - share * total) <= largest * whole
    assert taken == [len(source) for source in sizes], "every document, once"


SIZES = st.lists(
    st.one_of(
        st.lists(st.integers(1, 1_000), min_size=1, max_size=60),
        st.lists(st.sampled_from([1, 1_000]), min_size=1, max_size=60),
        st.integers(1, 60).map(lambda n: [7] * n),
    ),
    min_size=1,
    max_size=7,
)


@given(SIZES)
def test_every_prefix_is_within_one_document_of_its_share(sizes: list[list[int]]) -> None:
    check_every_prefix(sizes, [sum(source) for source in sizes])


@pytest.mark.parametrize("seed", range(20))
def test_every_prefix_of_seven_sources_with_skewed_weights(seed: int) -> None:
    random = python_random(seed)
    weights = [0.9, 0.05, 0.02, 0.01, 0.01, 0.005, 0.005]
    sizes = []
    for weight in weights:
        budget, source = weight * 20_000, [random.randint(1, 500)]
        while sum(source) < budget:
            source.append(int(random.lognormvariate(4, 1.5)) + 1)
        sizes.append(source)
    check_every_prefix(sizes, [sum(source) for source in sizes])


@given(st.lists(st.integers(1, 80), min_size=1, max_size=7))
def test_documents_of_one_size_are_within_less_than_one_of_their_share(counts: list[int]) -> None:
    given, whole = [0] * len(counts), sum(counts)
    for total, i in enumerate(interleave([[1] * n for n in counts], counts), start=1):
        given[i] += 1
        assert all(abs(have * whole - n * total) < whole for have, n in zip(given, counts, strict=True))


def test_the_order_is_what_it_was() -> None:
    """Worked out by hand: of the sources that are not ahead of their share, the document that is due first."""
    assert "".join(map(str, interleave([[1] * 8, [1] * 4, [1] * 1], [8, 4, 1]))) == "0102001010010"
    assert "".join(map(str, interleave([[5, 1, 1, 1], [2, 2], [4]], [8, 4, 4]))) == "1020010"


def test_interleaving_reads_one_document_ahead_and_no_more() -> None:
    read = [0, 0]

    def sizes(i: int) -> Iterator[int]:
        for _ in range(1_000):
            read[i] += 1
            yield 10

    order = interleave([sizes(0), sizes(1)], [1, 3])
    for _ in range(40):
        next(order)
    assert read == [11, 31] or sum(read) <= 42


def test_sources_go_on_after_one_has_ended() -> None:
    order = list(interleave([[1] * 2, [1] * 5, []], [3, 1, 1]))
    assert sorted(order) == [0, 0, 1, 1, 1, 1, 1]
    # after one token each all that are left are ahead: what is due first comes first, b at 2/1, c at 2/3 and 3/3
    assert list(interleave([[1], [1, 1, 1], [1, 1, 1]], [96, 1, 3])) == [0, 2, 1, 2, 2, 1, 1]


def test_tokens_of_all_sources_are_whole_in_the_common_unit() -> None:
    parameters = recipe({"a": 0.5, "b": 0.5}, 10, chars_per_token={"a": 4.068, "b": 3.0})
    unit = common_unit(parameters)
    assert unit["a"] / Fraction(unit["b"]) == Fraction(3) / Fraction("4.068")
    assert math.gcd(*unit.values()) == 1


def test_the_table_says_intended_and_realised_and_who_is_beyond_tolerance() -> None:
    parameters = recipe({"a": 0.75, "b": 0.25}, 1_000, chars_per_token={"a": 4.0, "b": 2.5})
    used = {"a": Used(3, 3, 3_000), "b": Used(2, 4, 750)}
    first, second = mixture_table(parameters, used)
    assert first == {
        "source": "a",
        "weight": 0.75,
        "budget_tokens": 750,
        "documents": 3,
        "uses": 3,
        "characters": 3_000,
        "tokens": 750,
        "realised_weight": 750 / 1_050,
        "relative_difference": float(Fraction(20, 21) - 1),
    }
    assert (second["tokens"], second["uses"]) == (300, 4)
    assert beyond_tolerance([first, second], 0.2) == []
    (sentence,) = beyond_tolerance([first, second], 0.1)
    assert "source 'b' has a realised weight of 0.285714, intended 0.250000 (+14.29%, tolerance 10.00%)" in sentence


def test_a_mixture_of_nothing_has_no_weights() -> None:
    for line in mixture_table(recipe({"a": 0.75, "b": 0.25}, 10), {"a": Used(0, 0, 0), "b": Used(0, 0, 0)}):
        assert (line["tokens"], line["realised_weight"], line["relative_difference"]) == (0, 0, -1)
