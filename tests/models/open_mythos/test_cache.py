"""A window read at once, in pieces or token by token has the same states, with genuine early exit."""

import pytest
import torch

from everytoken.models import ModelsError
from everytoken.models.llama import KeyValueCache
from tests.models.open_mythos.tiny import ATTENTIONS, GQA, MLA, OFF, PONDER, lively, random_tokens, tiny

PIECES = {"tokens": [1] * 24, "chunks": [7, 8, 9]}


def read(model, tokens, pieces):
    cache = model.new_cache()
    return torch.cat([model(piece, cache) for piece in tokens.split(pieces, dim=1)], dim=1), cache


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@torch.no_grad()
def test_reading_in_pieces_equals_reading_at_once_where_positions_halt_at_mixed_depths(attention, batch, pieces):
    model, tokens = lively(tiny(attention=attention, halting=PONDER, max_loops=6)), random_tokens(batch, 24)
    whole, taken = model(tokens), model.last_pass.loops_taken
    assert len(taken.unique()) >= 3
    found, cache = read(model, tokens, pieces)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-11)
    assert torch.equal(cache.taken, taken) and cache.length == 24
    single, _ = read(model.float(), tokens, pieces)
    assert torch.equal(read(model, tokens, [24])[1].taken, taken)
    torch.testing.assert_close(single, model(tokens), rtol=0, atol=5e-5)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@torch.no_grad()
def test_a_decoded_token_costs_as_many_calls_of_the_block_as_it_takes_loops(attention):
    model, tokens = lively(tiny(attention=attention, halting=PONDER, max_loops=6)), random_tokens(1, 24)
    calls = []
    extend = model.core.block.extend
    model.core.block.extend = lambda *a: calls.append(1) or extend(*a)
    cache = model.new_cache()
    for position, token in enumerate(tokens.split(1, dim=1)):
        calls.clear()
        model(token, cache)
        assert len(calls) == cache.taken[0, position]
    assert cache.taken.sum() < 24 * 6


@pytest.mark.parametrize("halting", [OFF, PONDER])
@torch.no_grad()
def test_a_cache_can_be_cut_and_copied(halting):
    model, tokens = lively(tiny(halting=halting)), random_tokens(2, 24)
    whole, cache = read(model, tokens, [24])
    copied = cache.clone()
    cache.truncate(10)
    assert cache.length == 10 and cache.taken.shape == (2, 10)
    torch.testing.assert_close(model(tokens[:, 10:], cache), whole[:, 10:], rtol=0, atol=1e-11)
    assert copied.length == 24 and copied.bytes == cache.bytes
    copied.truncate(23)
    torch.testing.assert_close(model(tokens[:, 23:], copied), whole[:, 23:], rtol=0, atol=1e-11)


@torch.no_grad()
def test_the_cache_holds_a_memory_for_each_loop_and_of_latent_attention_latents_alone():
    numbers = {"gqa": 2 * 2 * 8, "mla": 8 + 4}
    for name, attention in ATTENTIONS.items():
        model = tiny(attention=attention).double()
        _, cache = read(model, random_tokens(1, 10), [10])
        memories = [x for held in cache._slots for x in held]
        assert sum(x[0, 0].numel() for x in memories) == numbers[name] * (1 + 4 + 1)
        assert cache.bytes == 20 * (numbers[name] * 6 + 1) * 8  # room for twice the tokens, and a count of loops each


def test_all_calls_on_a_cache_take_the_same_loops():
    model = tiny()
    cache = model.new_cache()
    model(random_tokens(1, 5), cache)
    model.loops = 6
    with pytest.raises(ModelsError, match=r"made for 4 loops, this call takes 6"):
        model(random_tokens(1, 1), cache)
    with pytest.raises(ModelsError, match=r"needs a LoopCache .* found KeyValueCache"):
        model(random_tokens(1, 1), KeyValueCache(2))


@pytest.mark.parametrize("attention", [GQA, MLA])
@torch.no_grad()
def test_packed_documents_have_the_states_of_each_document_alone(attention):
    model, tokens = lively(tiny(attention=attention, halting=PONDER)), random_tokens(2, 20)
    documents = torch.tensor([0] * 5 + [1] * 1 + [2] * 14).expand(2, -1)
    alone = torch.cat([model.hidden_states(one) for one in tokens.split([5, 1, 14], dim=1)], dim=1)
    torch.testing.assert_close(model.hidden_states(tokens, documents=documents), alone, rtol=0, atol=1e-11)
    assert (model.hidden_states(tokens) - alone)[:, 5:].abs().max() > 1e-3
