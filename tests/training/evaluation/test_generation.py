import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everytoken.seeds import torch_generator
from everytoken.training import GenerationParameters, TrainingError
from everytoken.training.evaluation.generation import draw, generate, generate_tokens
from tests.training.tiny import EXECUTION, SEQ, byte_encoder, byte_model, tiny_model


def parameters(**changes):
    values = {
        "seed": 5,
        "prompts": ("ab", "c"),
        "max_new_tokens": 6,
        "temperature": 1.0,
        "top_k": None,
        "execution": EXECUTION,
    }
    return GenerationParameters(**{**values, **changes})


def tokens_of(model, context, eos_id=0, **changes):
    return generate_tokens(
        model, context, eos_id=eos_id, parameters=parameters(**changes), generator=torch_generator(1, "test")
    )


@pytest.fixture
def encoder(tmp_path):
    return byte_encoder(tmp_path)


def test_greedy_tokens_with_a_cache_are_those_without():
    model = tiny_model().eval()
    context = [0, 5, 9]
    expected = list(context)
    with torch.no_grad():
        for _ in range(6):
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    tokens, finish = tokens_of(model, context, eos_id=-1, temperature=0.0)
    assert [*context, *tokens] == expected
    assert finish == "max_new_tokens"


def test_the_same_seed_gives_the_same_text_and_another_seed_another(encoder):
    model = byte_model()
    first, again = (list(generate(model, encoder, parameters())) for _ in range(2))
    assert first == again
    assert first != list(generate(model, encoder, parameters(seed=6)))


def test_a_prompt_does_not_depend_on_the_prompts_after_it(encoder):
    model = byte_model()
    both = list(generate(model, encoder, parameters()))
    assert both[:1] == list(generate(model, encoder, parameters(prompts=("ab",))))


def test_the_text_decodes_the_tokens_and_follows_the_prompt(encoder):
    (generated,) = generate(byte_model(), encoder, parameters(prompts=("ab",), temperature=0.0))
    assert generated.prompt == "ab"
    assert generated.text == encoder.tokenizer.tokenizer.decode(list(generated.tokens), skip_special_tokens=False)


def test_eos_ends_the_text_and_is_not_part_of_it():
    model = tiny_model()
    tokens, _ = tokens_of(model, [0, 5], eos_id=-1, temperature=0.0)
    ended, finish = tokens_of(model, [0, 5], eos_id=tokens[2], temperature=0.0)
    assert finish == "eos"
    assert ended == tokens[: tokens.index(tokens[2])]


def test_a_full_context_ends_the_text():
    tokens, finish = tokens_of(tiny_model(), [1] * (SEQ - 2), eos_id=-1, max_new_tokens=50)
    assert finish == "context"
    assert len(tokens) == 3  # the last one is drawn from a full context and never read


def test_a_prompt_that_is_too_long_is_an_error(encoder):
    with pytest.raises(TrainingError, match=f"{SEQ + 1} tokens with the EOS before it, expected 1 to {SEQ}"):
        list(generate(byte_model(), encoder, parameters(prompts=("a" * SEQ,))))


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
    st.integers(1, 40),
    st.floats(1e-3, 100),
    st.integers(0, 99),
)
def test_a_draw_is_among_the_largest_k(logits, top_k, temperature, seed):
    token = draw(torch.tensor(logits), temperature, top_k, torch_generator(seed, "draw"))
    larger = sum(other > logits[token] for other in torch.tensor(logits).tolist())
    assert larger < top_k


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.integers(0, 99))
def test_one_candidate_is_greedy_and_the_lowest_id_wins(logits, seed):
    generator = torch_generator(seed, "draw")
    values = torch.tensor(logits, dtype=torch.float32)
    expected = logits.index(max(logits))
    assert draw(values, 1.0, 1, generator) == draw(values, 0.0, None, generator) == expected


def test_draws_follow_the_probabilities():
    generator = torch_generator(0, "frequencies")
    logits = torch.log(torch.tensor([0.1, 0.6, 0.3]))
    drawn = torch.tensor([draw(logits, 1.0, None, generator) for _ in range(3000)])
    shares = torch.bincount(drawn, minlength=3) / 3000
    assert shares.tolist() == pytest.approx([0.1, 0.6, 0.3], abs=0.03)


def test_a_tiny_temperature_gives_no_nan():
    assert draw(torch.tensor([1000.0, 0.0, -1000.0]), 1e-300, None, torch_generator(0, "t")) == 0
