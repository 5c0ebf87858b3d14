"""Each decision is a function of facts, and never one that a run would refuse."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from everytoken.corpus import CorpusError
from everytoken.new_environment import Decisions, SampleFacts, decide, decisions, require_enough

GIVEN: dict[str, Any] = {
    "root": "/texts",
    "pattern": "**",
    "files": 200,
    "bytes": 1_200_000,
    "formats": {"txt": 200},
    "columns": ("id", "text"),
    "shape": None,
    "text_column": "text",
    "has_ids": True,
    "encoding": None,
    "lengths": (6_000,) * 200,
    "duplicates": 0,
    "languages": {"de": 200},
    "bad": {},
    "estimated_documents": 200,
    "estimated_characters": 1_200_000,
    "is_whole": True,
    "some_texts": ("a",),
}


def chosen(classes: dict[int, int] | None = None, **changes: Any) -> Decisions:
    return decide(SampleFacts(**{**GIVEN, **changes}), classes)


def test_the_examples_of_each_decision_hold() -> None:
    assert doctest.testmod(decisions).failed == 0
    assert doctest.testmod(decisions).attempted > 6


def test_a_small_corpus_has_a_small_vocabulary_and_few_steps() -> None:
    small, large = chosen(), chosen(estimated_characters=10**11, estimated_documents=10**7)
    assert (small.vocab_size, small.seq_length, small.model_size) == (1_024, 512, "mini")
    assert (large.vocab_size, large.seq_length, large.model_size) == (32_768, 1_024, "135m")
    assert small.steps < large.steps and (small.held_out_share, large.held_out_share) == (0.1, 0.05)


@pytest.mark.parametrize("characters", [1, 100, 10_000, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("length", [1, 500, 10**6])
def test_values_are_such_as_a_run_takes(characters: int, length: int) -> None:
    made = chosen(lengths=(length,) * 3, estimated_characters=characters, estimated_documents=3)
    assert made.vocab_size >= 512 and made.seq_length in (64, 128, 256, 512, 1_024)
    assert 1 <= made.warmup_steps < made.steps and made.held_out_share == 0


def test_too_little_text_is_refused() -> None:
    require_enough(SampleFacts(**GIVEN))
    with pytest.raises(CorpusError, match=r"/texts has 231 characters of text, .* 20,000 or more\. Give more files"):
        require_enough(SampleFacts(**{**GIVEN, "estimated_characters": 231}))


def test_documents_with_the_text_of_another_one_count_for_nothing() -> None:
    lengths = GIVEN["lengths"]
    half = chosen(duplicates=len(lengths) // 2)
    assert half.estimated_tokens == pytest.approx(chosen().estimated_tokens / 2, rel=0.02)
    assert half.vocab_size < chosen().vocab_size


def test_only_documents_that_the_scorer_knows_are_scored() -> None:
    offensive = {0: 90, 3: 10}
    assert chosen(offensive).threshold == 3
    assert chosen(None).threshold is None
    assert chosen({0: 100}).threshold is None
    assert chosen(offensive, shape="messages").threshold is None


def test_bad_rows_are_allowed_where_the_sample_has_some() -> None:
    assert chosen().max_bad_share == 0
    assert chosen(bad={"not_an_object": 2}).max_bad_share == pytest.approx(2 * 2 / 202, abs=1e-3)
