import pytest

from everytoken.training import PromptParameters, TrainingError
from everytoken.training.evaluation import generate
from tests.training.tiny import EXECUTION, SEQ, byte_encoder, byte_model


def parameters(**changes):
    values = {
        "seed": 5,
        "prompts": ("ab", "c"),
        "max_new_tokens": 6,
        "temperature": 1.0,
        "top_k": None,
        "execution": EXECUTION,
    }
    return PromptParameters(**{**values, **changes})


@pytest.fixture
def encoder(tmp_path):
    return byte_encoder(tmp_path)


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


def test_a_prompt_that_is_too_long_is_an_error(encoder):
    with pytest.raises(TrainingError, match=f"the EOS before it: a prompt has {SEQ + 1} tokens, expected 1 to {SEQ}"):
        list(generate(byte_model(), encoder, parameters(prompts=("a" * SEQ,))))
