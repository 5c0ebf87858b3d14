import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.generation import GenerationError, PrefixReader
from everytoken.generation.prefix import PREFIX_BLOCK as BLOCK
from everytoken.models import ModelsError
from tests.generation.talking import talking_model

MODEL = talking_model()


class CountingState:
    """A cache that cannot be truncated, as a recurrent state: what it holds is a key-value cache of another model."""

    can_truncate = False
    taken = None

    def __init__(self, inner):
        self.inner = inner

    @property
    def length(self):
        return self.inner.length

    @property
    def bytes(self):
        return self.inner.bytes

    def truncate(self, length):
        raise ModelsError("a state keeps all")

    def clone(self):
        return CountingState(self.inner.clone())


class StateModel(torch.nn.Module):
    """A model whose cache cannot be truncated."""

    def __init__(self, model):
        super().__init__()
        self.model, self.context, self.read = model, model.context, 0

    def output_weight(self):
        return self.model.output_weight()

    def new_cache(self):
        return CountingState(self.model.new_cache())

    def hidden_states(self, tokens, cache):
        self.read += tokens.shape[1]
        return self.model.hidden_states(tokens, cache.inner)


PROMPTS = st.lists(
    st.tuples(st.integers(0, 3 * BLOCK + 5), st.integers(1, 2 * BLOCK), st.integers(0, 5)), min_size=1, max_size=5
)


@pytest.mark.parametrize("wrapped", [lambda model: model, StateModel])
@settings(max_examples=25)
@given(changes=PROMPTS)
def test_logits_do_not_depend_on_what_was_read_before(wrapped, changes):
    """Prompts that share a beginning, each followed by tokens read one by one: bits as those of a new reader."""
    reader, prompt = PrefixReader(wrapped(MODEL)), [1]
    for number, (kept, more, one_by_one) in enumerate(changes):
        prompt = [*prompt[:kept], *[(7 * number + i) % 250 for i in range(more)]][:380]
        new = PrefixReader(wrapped(MODEL))
        assert torch.equal(reader.read_prompt(prompt), new.read_prompt(prompt))
        for token in range(one_by_one):
            assert torch.equal(reader.read_token(token), new.read_token(token))


def test_logits_are_those_of_the_whole_prompt_at_once():
    prompt = [i % 250 for i in range(3 * BLOCK + 7)]
    with torch.no_grad():
        expected = MODEL(torch.tensor([[*prompt, 9]]))[0, -2:]
    reader = PrefixReader(MODEL)
    found = torch.stack([reader.read_prompt(prompt), reader.read_token(9)])
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def test_whole_blocks_are_not_read_again():
    model = StateModel(MODEL)
    reader = PrefixReader(model)
    prompt = list(range(200))
    reader.read_prompt(prompt)
    assert model.read == 200
    assert reader.shared([*prompt, 1, 2]) == 3 * BLOCK
    reader.read_prompt([*prompt, 1, 2])
    assert model.read == 200 + 202 - 3 * BLOCK
    reader.read_prompt([9, *prompt])
    assert model.read == 200 + 202 - 3 * BLOCK + 201
    assert reader.shared(prompt[:BLOCK]) == 0


@pytest.mark.parametrize("length", [0, 401])
def test_a_prompt_that_does_not_fit_is_refused(length):
    with pytest.raises(GenerationError, match=f"a prompt has {length} tokens, expected 1 to 400"):
        PrefixReader(MODEL).read_prompt([1] * length)


def test_bytes_are_those_of_the_cache_and_room_is_what_is_left():
    reader = PrefixReader(MODEL)
    reader.read_prompt([1] * 10)
    cache = reader._whole
    assert reader.bytes == cache.bytes == 2 * 2 * 20 * 8 * 4  # layers, keys and values, room for 20, head width, bytes
    assert reader.room == 390


@pytest.mark.parametrize("wrapped", [lambda model: model, StateModel])
@pytest.mark.parametrize("kept", [0, 2 * BLOCK])
def test_a_prompt_that_is_left_in_the_middle_changes_no_other(wrapped, kept):
    reader, prompt = PrefixReader(wrapped(MODEL)), [i % 250 for i in range(3 * BLOCK + 7)]
    reading = reader.read_blocks(prompt)
    next(reading), next(reading)
    reading.close()
    other = [*prompt[:kept], *[5] * BLOCK]
    assert torch.equal(reader.read_prompt(other), PrefixReader(wrapped(MODEL)).read_prompt(other))
    assert torch.equal(reader.read_prompt(prompt), PrefixReader(wrapped(MODEL)).read_prompt(prompt))


def test_a_prompt_that_was_just_read_is_not_read_again():
    model = StateModel(MODEL)
    reader = PrefixReader(model)
    for _ in reader.read_blocks(range(100)):
        pass
    after = reader.read_prompt(range(100))
    assert model.read == 100
    reader.read_token(3)
    assert torch.equal(reader.read_prompt(range(100)), after)
    assert model.read == 100 + 1 + 100 - BLOCK
