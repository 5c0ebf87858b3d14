import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everytoken.generation import GenerationError, NonFiniteLogits, PrefixReader, score, speak
from tests.generation.talking import byte_tokenizer, generation, said, talking_model

MODEL = talking_model()


def scored(tokens, likely=0, reader=None, model=MODEL):
    return [token for block in score(reader or PrefixReader(model), tokens, likely) for token in block]


@given(st.integers(1, 400), st.integers(0, 3))
def test_scores_are_those_of_the_whole_text_at_once(length, likely):
    tokens = [7 * i % 250 for i in range(length)]
    with torch.no_grad():
        expected = torch.log_softmax(MODEL(torch.tensor([tokens]))[0].double(), 1)
    found = scored(tokens, likely)
    assert [token.id for token in found] == tokens
    assert found[0].logprob is None
    for row, token in zip(expected, found[1:], strict=False):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=5e-5)
        assert [number for number, _ in token.likely] == row.topk(likely).indices.tolist()


def test_scores_do_not_depend_on_what_was_read_before():
    tokens = [7 * i % 250 for i in range(200)]
    used = PrefixReader(MODEL)
    used.read_prompt([*tokens[:150], 1, 2, 3])
    assert scored(tokens, 1, used) == scored(tokens, 1)


@pytest.mark.parametrize("length", [1, 64, 65, 150])
def test_a_reply_after_a_scored_prompt_is_that_of_a_new_reader(length):
    prompt, reader = [7 * i % 250 for i in range(length)], PrefixReader(MODEL)
    scored(prompt, reader=reader)
    replies = [
        said(speak(one, byte_tokenizer(), prompt, generation(), ends=(), likely=1))[1]
        for one in (reader, PrefixReader(MODEL))
    ]
    assert replies[0] == replies[1]


def test_logits_that_are_no_numbers_are_an_error():
    broken = talking_model()
    broken.final_norm.weight.data.fill_(math.nan)
    with pytest.raises(NonFiniteLogits, match=r"among the first 64 tokens of a text .* are not finite numbers"):
        scored([1] * 100, model=broken)


@pytest.mark.parametrize("length", [0, 401])
def test_a_text_that_does_not_fit_is_refused(length):
    with pytest.raises(GenerationError, match=f"a prompt has {length} tokens, expected 1 to 400"):
        scored([1] * length)
