"""Both attentions against their formulas."""

import math

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from everytoken.models.elementwise import rope_tables
from everytoken.models.open_mythos.attention import LatentAttention, make_attention
from everytoken.seeds import torch_generator
from tests.models.open_mythos.tiny import ATTENTIONS, GQA, MLA, OFF, PONDER, random_tokens, shape, tiny


def normal(*size, key=0):
    return torch.randn(*size, generator=torch_generator(0, "attention", key, *size), dtype=torch.float64)


def filled(attention):
    made = make_attention(shape(attention=attention)).double()
    for number, parameter in enumerate(made.parameters()):
        parameter.data.copy_(normal(*parameter.shape, key=number) / 3)
    return made


def tables(seq, width):
    return [table[:, None].double() for table in rope_tables(seq, width, 10000.0)]


def turned(x, position):
    half = len(x) // 2
    angles = [position * 10000.0 ** (-2 * j / len(x)) for j in range(half)]
    first = [x[j] * math.cos(a) - x[j + half] * math.sin(a) for j, a in enumerate(angles)]
    return torch.stack([*first, *(x[j + half] * math.cos(a) + x[j] * math.sin(a) for j, a in enumerate(angles))])


def rms(x, weight):
    return x / (x.square().mean() + 1e-5).sqrt() * weight


def latent_by_the_book(attention, x):
    """The formulas of the module once more, position by position and head by head."""
    p, heads, latents, keys, queries = attention.widths, attention.n_heads, [], [], []
    for i, row in enumerate(x):
        if p.q_lora:
            row_q = attention.query_up @ rms(attention.query_down @ row, attention.query_norm.weight)
        else:
            row_q = attention.query_up @ row
        queries.append(row_q.view(heads, p.nope + p.rope))
        down = attention.key_value_down @ row
        latents.append(rms(down[: p.kv_lora], attention.key_value_norm.weight))
        keys.append(turned(down[p.kv_lora :], i))
    out = []
    for i in range(len(x)):
        mixed = []
        for h in range(heads):
            up = attention.key_value_up.view(heads, p.nope + p.v, p.kv_lora)[h]
            plain, turning = queries[i][h][: p.nope], turned(queries[i][h][p.nope :], i)
            scores = [
                (plain @ (up[: p.nope] @ latents[j]) + turning @ keys[j]) / math.sqrt(p.nope + p.rope)
                for j in range(i + 1)
            ]
            weights = torch.softmax(torch.stack(scores), 0)
            mixed.append(sum(w * (up[p.nope :] @ latents[j]) for j, w in enumerate(weights)))
        out.append(attention.output @ torch.cat(mixed))
    return torch.stack(out)


@pytest.mark.parametrize("q_lora", [12, 0])
@torch.no_grad()
def test_latent_attention_is_that_of_its_formulas(q_lora):
    attention, x = filled({**MLA, "q_lora": q_lora}), normal(1, 7, 32)
    queries, memory = attention.project(x, *tables(7, 4))
    expected = latent_by_the_book(attention, x[0])
    torch.testing.assert_close(attention.attend(queries, memory, None)[0], expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_grouped_attention_is_that_of_its_formulas():
    attention, x = filled(GQA), normal(1, 7, 32)
    heads = linear(x[0], attention.query_key_value).view(7, 8, 8)
    rotated = torch.stack([torch.stack([turned(head, i) for head in row[:6]]) for i, row in enumerate(heads)])
    keys, values = rotated[:, [4, 4, 5, 5]], heads[:, [6, 6, 7, 7]]  # query head i reads head i // 2 of keys
    queries, keys, values = (part.transpose(0, 1) for part in (rotated[:, :4], keys, values))
    mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
    found = attention.attend(*attention.project(x, *tables(7, 8)), None)[0]
    torch.testing.assert_close(found, linear(mixed.transpose(0, 1).flatten(1), attention.output), rtol=0, atol=1e-6)


@pytest.mark.parametrize("q_lora", [12, 0])
@torch.no_grad()
def test_absorbed_latent_attention_is_the_naive_one_and_remembers_latents_alone(q_lora):
    attention = filled({**MLA, "q_lora": q_lora})
    assert isinstance(attention, LatentAttention)
    queries, memory = attention.project(normal(3, 9, 32), *tables(9, 4))
    assert [x.shape for x in memory] == [(3, 9, 8), (3, 9, 4)]
    last = queries[:, -1:]
    every = torch.ones(1, 1, 1, 9, dtype=torch.bool)
    naive = attention.naive(last, memory, every)
    torch.testing.assert_close(attention.absorbed(last, memory), naive, rtol=0, atol=1e-11)
    torch.testing.assert_close(attention.attend(last, memory, None), naive, rtol=0, atol=1e-11)
    torch.testing.assert_close(attention.attend(queries, memory, None)[:, -1:], naive, rtol=0, atol=1e-11)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_no_matrix_of_all_scores_is_made(attention):
    """The scores of each query and key would be seq^2 numbers a head: no operation returns as many."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
            nonlocal largest
            result = operation(*arguments, **(keywords or {}))
            tensors = [x for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, torch.Tensor)]
            largest = max([largest, *(x.numel() for x in tensors)])
            return result

    made, seq = filled(attention).float(), 1024
    width = 8 if attention["kind"] == "gqa" else 4
    cos, sin = (table.float() for table in tables(seq, width))
    with torch.no_grad(), Watch():
        made.attend(*made.project(normal(1, seq, 32).float(), cos, sin), None)
    assert largest < seq * seq / 4


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("halting", [OFF, PONDER])
def test_a_block_returns_no_view(attention, halting):
    """FSDP2 has hooks on what a block returns, and an operation in place on a view would drop them."""
    model, returned = tiny(attention=attention, halting=halting), []
    for block in model.layers():
        block.register_forward_hook(lambda module, inputs, out: returned.extend([out[0], *out[1]]))
    model(random_tokens(2, 9))
    assert len(returned) == 3 * (1 + 4 + 1)
    assert all(x.requires_grad and not x._is_view() for x in returned)
