import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.generation import GenerationError, NonFiniteLogits, PrefixReader, Step, speak, speak_in_steps
from everytoken.generation.prefix import PREFIX_BLOCK
from everytoken.generation.text_pieces import TextPieces
from tests.generation.talking import END, byte_tokenizer, generation, greedy_without_cache, said, talking_model

MODEL, TOKENIZER = talking_model(), byte_tokenizer()


def reply(prompt=(1, 2, 3), ends=(), model=MODEL, key=(), likely=None, **changes):
    speaking = speak(
        PrefixReader(model), TOKENIZER, list(prompt), generation(**changes), ends=ends, key=key, likely=likely
    )
    return said(speaking)[1]


def ids(made):
    return [token.id for token in made.tokens]


def test_greedy_tokens_are_those_without_a_cache():
    made = reply(temperature=0.0)
    assert ids(made) == greedy_without_cache(MODEL, [1, 2, 3], 12)
    assert (made.finish, made.prompt_tokens) == ("max_new_tokens", 3)


def test_an_end_is_no_part_of_the_reply():
    whole = ids(reply(temperature=0.0))
    made = reply(ends={whole[4]}, temperature=0.0)
    assert (ids(made), made.finish) == (whole[: whole.index(whole[4])], "eos")


def test_the_token_that_ended_a_reply_is_told_with_its_logprob():
    whole = ids(reply(temperature=0.0))
    made = reply(ends={whole[4]}, temperature=0.0, likely=1)
    assert made.end.likely == ((made.end.id, made.end.logprob),)
    assert made.end.id == whole[4]
    assert reply(temperature=0.0).end is None


def test_steps_are_blocks_of_the_prompt_and_tokens():
    """What works on several replies in turn waits for no more than that."""
    prompt = [i % 250 for i in range(3 * PREFIX_BLOCK + 7)]
    steps, made = said(speak_in_steps(PrefixReader(MODEL), TOKENIZER, prompt, generation(), ends=()))
    assert steps[:4] == [Step()] * 4
    assert [step.token for step in steps[4:] if step.token] == list(made.tokens)
    assert len(steps) in (4 + 12, 4 + 12 + 1)  # the last may have text that was held back
    assert "".join(step.text for step in steps) == made.text == reply(prompt).text


def test_a_full_context_ends_the_reply():
    made = reply([1] * 398, max_new_tokens=50)
    assert (len(made.tokens), made.finish) == (3, "context")  # the last one is drawn from a full context


def test_the_seed_and_the_key_decide_the_draws():
    assert reply() == reply()
    assert reply(seed=6) != reply() != reply(key=[1])


def test_logprobs_are_those_of_the_model_without_filters():
    made = reply(temperature=0.5, top_k=5, likely=3)
    with torch.no_grad():
        logits = MODEL(torch.tensor([[1, 2, 3, *ids(made)]]))[0, 2:-1].double()
    expected = torch.log_softmax(logits, 1)
    for row, token in zip(expected, made.tokens, strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-5)
        assert [number for number, _ in token.likely] == row.topk(3).indices.tolist()
        assert max(logprob for _, logprob in token.likely) >= token.logprob
    assert reply().tokens[0].logprob is None


def test_logits_that_are_no_numbers_are_an_error():
    broken = talking_model()
    broken.final_norm.weight.data.fill_(math.nan)
    with pytest.raises(NonFiniteLogits, match=r"after 3 tokens .* are not finite numbers: its training diverged"):
        reply(model=broken)


def test_a_prompt_beyond_the_context_is_an_error():
    with pytest.raises(GenerationError, match="a prompt has 401 tokens, expected 1 to 400"):
        reply([1] * 401)


TEXTS = st.text(alphabet="abcä🙂\n", max_size=30)


def up_to_stop(text, stop):
    """Return the text before the first of ``stop`` that is complete, and whether there is one."""
    for end in range(len(text) + 1):
        if places := [text[:end].find(one) for one in stop if one in text[:end]]:
            return text[: min(places)], True
    return text, False


@settings(max_examples=200)
@given(TEXTS, st.lists(st.text(alphabet="abcä🙂", min_size=1, max_size=4), max_size=3))
def test_pieces_are_the_text_up_to_the_first_stop(text, stop):
    pieces, shown = TextPieces(TOKENIZER, stop, shows_special=False), []
    for token in TOKENIZER.encode(text).ids:
        shown.append(pieces.add(token))
        if pieces.is_stopped:
            break
    shown.append(pieces.finish())
    assert ("".join(shown), pieces.is_stopped) == up_to_stop(text, stop)
    assert "".join(shown) == pieces.text
    assert all("\ufffd" not in piece for piece in shown)


def test_a_special_token_that_stops_is_compared_as_it_is_spelled():
    pieces = TextPieces(TOKENIZER, [END], shows_special=False)
    tokens = TOKENIZER.encode(f"ab{END}c").ids
    shown = [pieces.add(token) for token in tokens[:3]]
    assert (shown, pieces.is_stopped, pieces.finish()) == (["a", "b", ""], True, "")


def test_bytes_that_are_no_character_are_shown_at_the_end():
    pieces = TextPieces(TOKENIZER, [], shows_special=False)
    first, *_ = TOKENIZER.encode("ä").ids
    assert pieces.add(first) == ""
    assert pieces.finish() == "\ufffd"
