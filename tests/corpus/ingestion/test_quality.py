"""A text is rejected for the first reason that holds, by counts that agree with the definition of each character."""

from __future__ import annotations

import sys
import unicodedata
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import SelectionError
from everytoken.corpus.ingestion.quality import (
    CharacterCounts,
    QualityRules,
    check_keep_rates,
    count_characters,
    rejection,
)

OFF = QualityRules(
    drop_empty=False,
    min_characters=None,
    max_characters=None,
    min_unique_characters=None,
    max_digits=None,
    max_punctuation=None,
    max_whitespace=None,
)
PUBLISHED = QualityRules(
    drop_empty=True,
    min_characters=3,
    max_characters=5_000,
    min_unique_characters=0.05,
    max_digits=0.5,
    max_punctuation=0.5,
    max_whitespace=0.5,
)


def only(**rules: Any) -> QualityRules:
    return OFF.model_copy(update=rules)


def counted_one_by_one(text: str) -> CharacterCounts:
    return CharacterCounts(
        sum(character.isdigit() for character in text),
        sum(unicodedata.category(character).startswith("P") for character in text),
        sum(character.isspace() for character in text),
    )


def rejected_by_definition(text: str, rules: QualityRules) -> str | None:
    n, counts = len(text), counted_one_by_one(text)
    window = text[:1_000]

    def above(count: int, most: float | None) -> bool:
        return most is not None and n > 0 and count / n > most

    unique = rules.min_unique_characters
    reasons = {
        "empty": rules.drop_empty and not text.strip(),
        "too_short": rules.min_characters is not None and n < rules.min_characters,
        "too_long": rules.max_characters is not None and n > rules.max_characters,
        "unique_characters": unique is not None and n > 0 and len(set(window)) / len(window) < unique,
        "digits": above(counts.digits, rules.max_digits),
        "punctuation": above(counts.punctuation, rules.max_punctuation),
        "whitespace": above(counts.whitespace, rules.max_whitespace),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


ALPHABETS = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(max_codepoint=127), max_size=60),
    st.text(
        st.sampled_from(
            "a\u00e9\u0663\uff19\u00b2\u00bd.,\u2014\u00ab \u00a0\u3000\n\t\u2028\U0001f389\U0001d7d8\u2030_$"
        ),
        max_size=60,
    ),
)
SHARES = st.none() | st.floats(0, 1)


@given(ALPHABETS)
def test_counts_are_those_of_each_character_by_itself(text: str) -> None:
    assert count_characters(text) == counted_one_by_one(text)


def test_counts_of_every_code_point_there_is() -> None:
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    assert count_characters(text) == counted_one_by_one(text)


@given(
    st.tuples(ALPHABETS, st.integers(1, 40)).map(lambda pair: pair[0] * pair[1]),
    st.builds(
        QualityRules,
        drop_empty=st.booleans(),
        min_characters=st.none() | st.integers(0, 20),
        max_characters=st.none() | st.integers(20, 300),
        min_unique_characters=SHARES,
        max_digits=SHARES,
        max_punctuation=SHARES,
        max_whitespace=SHARES,
    ),
)
def test_the_first_reason_that_holds_is_given(text: str, rules: QualityRules) -> None:
    assert rejection(text, rules) == rejected_by_definition(text, rules)


@pytest.mark.parametrize(
    ("text", "rules", "reason"),
    [
        ("", PUBLISHED, "empty"),
        (" \n\u3000", PUBLISHED, "empty"),
        ("", only(min_characters=1), "too_short"),
        ("", only(min_unique_characters=1.0, max_digits=0.0), None),
        ("ab", PUBLISHED, "too_short"),
        ("abc", PUBLISHED, None),
        ("abcd " * 1_001, PUBLISHED, "too_long"),
        ("ab" * 20, PUBLISHED, None),  # 2 of 40 are distinct: exactly the least share
        ("ab" * 21, PUBLISHED, "unique_characters"),
        ("a1" * 3, PUBLISHED, None),
        ("a12" * 3, PUBLISHED, "digits"),
        ("a٣²" * 3, PUBLISHED, "digits"),  # digits of other scripts and superscripts are digits
        ("a12" * 3, only(max_digits=None, max_whitespace=0.1), None),
        ("a-—" * 3, PUBLISHED, "punctuation"),
        ("a$+" * 3, PUBLISHED, None),  # symbols are no punctuation
        ("a \u2028" * 3, PUBLISHED, "whitespace"),
    ],
)
def test_reasons(text: str, rules: QualityRules, reason: str | None) -> None:
    assert rejection(text, rules) == reason


def test_a_long_text_is_not_rejected_for_its_length() -> None:
    """Over the whole text the share of distinct characters of any language with an alphabet falls below 0.05."""
    text = f"Words of {ascii_letters}, digits of {digits}, and so on. " * 200
    assert len(set(text)) / len(text) < 0.01
    assert rejection(text, only(min_unique_characters=0.05)) is None


def test_bounds_that_keep_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_characters 7 is above max_characters 6"):
        QualityRules.model_validate({**OFF.model_dump(), "min_characters": 7, "max_characters": 6})


def test_a_source_that_keeps_too_little_stops_the_run_with_numbers() -> None:
    counts = {
        "good": {"rows_in": 10, "kept": 9},
        "bad": {"rows_in": 2_000, "kept": 999},
        "any": {"rows_in": 5, "kept": 0},
    }
    check_keep_rates(counts, {"good": 0.9, "bad": 0.4995, "any": None})
    message = r"source 'bad': 999 of 2,000 rows kept \(49.95%\), expected at least 50.00%.*lower min_keep_rate"
    with pytest.raises(SelectionError, match=message):
        check_keep_rates(counts, {"good": 0.9, "bad": 0.5, "any": None})
    with pytest.raises(SelectionError, match=r"source 'gone': 0 of 0 rows kept \(nothing\)"):
        check_keep_rates({"gone": {"rows_in": 0, "kept": 0}}, {"gone": 0.1})
    check_keep_rates(counts, {"of which no shard was planned": 0.1})
