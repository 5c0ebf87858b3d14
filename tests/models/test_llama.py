import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from everytoken.models import LlamaParameters, ModelParameters, ModelsError
from everytoken.models.causal_attention import BLOCK, causal_attention
from everytoken.models.elementwise import RMSNorm, rope_tables, rotate, swiglu
from everytoken.models.families import FAMILIES, build_model
from everytoken.models.sizes import parameter_counts
from everytoken.seeds import torch_generator

TINY = {
    "family": "llama",
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 48,
    "tied_embeddings": True,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "init_std": 0.02,
}


def tiny(vocab_size=97, max_seq_len=24, seed=1, **changes):
    return build_model(
        LlamaParameters(**{**TINY, **changes}), vocab_size=vocab_size, max_seq_len=max_seq_len, seed=seed
    ).eval()


def random_tokens(*shape, high=97, seed=0):
    return torch.randint(0, high, shape, generator=torch_generator(seed, "test tokens"))


def test_every_parameter_must_be_given_and_none_may_be_unknown():
    for name in TINY:
        with pytest.raises(ValidationError, match=name):
            LlamaParameters(**{key: value for key, value in TINY.items() if key != name})
    with pytest.raises(ValidationError, match="dropout"):
        LlamaParameters(**TINY, dropout=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 30}, "multiple of model.n_heads"),
        ({"n_kv_heads": 3}, "multiple of model.n_kv_heads"),
        ({"d_model": 36}, "must be even"),
    ],
)
def test_head_counts_that_do_not_divide_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        LlamaParameters(**{**TINY, **changes})


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)]),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 60),
)
def test_parameter_count_follows_the_formula(n_layers, heads, half_head_width, d_ff, vocab_size):
    n_heads, n_kv_heads = heads
    changes = {
        "d_model": 2 * half_head_width * n_heads,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "d_ff": d_ff,
    }
    expected = parameter_counts(LlamaParameters(**{**TINY, **changes}), vocab_size).total
    assert tiny(vocab_size=vocab_size, **changes).parameter_count() == expected


def test_initial_loss_is_close_to_that_of_uniform_guessing():
    model, tokens = tiny(vocab_size=1000), random_tokens(16, 25, high=1000)
    with torch.no_grad():
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(1000)) < 0.15


def test_initialisation_depends_on_the_seed_and_the_name_alone():
    first, again, other = tiny(seed=1), tiny(seed=1), tiny(seed=2)
    deeper = dict(tiny(seed=1, n_layers=3).named_parameters())
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, dict(again.named_parameters())[name])
        if parameter.ndim == 2:
            assert not torch.equal(parameter, dict(other.named_parameters())[name])
        if name.endswith(("embedding", "gate_up", "query_key_value")):
            assert torch.equal(parameter, deeper[name])


def test_matrices_have_the_stated_deviations_and_norms_are_one():
    model = tiny(vocab_size=400, d_model=64, d_ff=128, n_layers=2)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.all(parameter == 1)
        else:
            expected = 0.02 / math.sqrt(4) if name.endswith(("attention_output", "down")) else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 15), st.sampled_from([(4, 4), (4, 2), (4, 1)]))
def test_a_token_changes_only_states_at_and_after_it(position, heads):
    model = tiny(n_heads=heads[0], n_kv_heads=heads[1]).double()
    tokens = random_tokens(2, 16)
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % 97
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert torch.all(difference[:position] < 1e-12)
    assert difference[position] > 1e-6


def test_grouped_heads_equal_a_model_whose_key_value_heads_are_repeated():
    grouped, full = tiny().double(), tiny(n_kv_heads=4).double()
    state = dict(grouped.state_dict())
    for name in [name for name in state if name.endswith("query_key_value")]:
        queries, keys, values = state[name].split([32, 16, 16])
        repeated = [matrix.view(2, 8, 32).repeat_interleave(2, dim=0).flatten(0, 1) for matrix in (keys, values)]
        state[name] = torch.cat([queries, *repeated])
    full.load_state_dict(state)
    tokens = random_tokens(3, 10)
    with torch.no_grad():
        torch.testing.assert_close(grouped(tokens), full(tokens), rtol=0, atol=1e-12)


def test_rotation_is_the_complex_product_and_scores_depend_on_distance_alone():
    cos, sin = (table.double() for table in rope_tables(50, 8, 10000.0))
    x = torch.randn(1, 1, 50, 8, generator=torch_generator(0, "x"), dtype=torch.float64)
    angles = torch.outer(torch.arange(50.0), 10000.0 ** (-torch.arange(0, 8, 2) / 8)).double()
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat((turned.real, turned.imag), -1), rtol=0, atol=1e-5)
    same = x[:, :, :1].expand_as(x)
    turned_same = rotate(same, cos, sin)[0, 0]
    scores = turned_same @ turned_same.T
    assert torch.allclose(scores[0, 3], scores[40, 43], atol=1e-5)


def test_rope_tables_are_real_float32_and_survive_a_cast_of_the_model():
    model = tiny()
    assert model.cos.dtype == model.sin.dtype == torch.float32
    assert not {"cos", "sin"} & set(model.state_dict())
    torch.testing.assert_close(model.to(torch.bfloat16).sin.float(), tiny().sin, rtol=0, atol=4e-3)


def test_rms_norm_has_unit_mean_square_and_keeps_float64():
    x = torch.randn(5, 64, generator=torch_generator(0, "norm"), dtype=torch.float64) * 7
    normed = RMSNorm(64, 1e-12).double()(x)
    assert normed.dtype == torch.float64
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(5, dtype=torch.float64))
    assert RMSNorm(64, 1e-12)(x.bfloat16()).dtype == torch.float32


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5).filter(lambda cuts: sum(cuts) <= 24))
def test_reading_in_pieces_with_a_cache_equals_reading_at_once(pieces):
    model = tiny().double()
    tokens = random_tokens(3, sum(pieces))
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(piece, cache) for piece in tokens.split(pieces, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=0, atol=1e-12)
    assert cache.length == sum(pieces)


def test_a_sequence_that_is_too_long_is_an_error_with_both_numbers():
    model = tiny(max_seq_len=8)
    with pytest.raises(ModelsError, match=r"0 cached \+ 9 new = 9 tokens.*max_seq_len = 8"):
        model(random_tokens(1, 9))
    cache = model.new_cache()
    model(random_tokens(1, 8), cache)
    with pytest.raises(ModelsError, match=r"8 cached \+ 1 new = 9"):
        model(random_tokens(1, 1), cache)


def packed(model, *lengths):
    """Return tokens (2, sum of lengths), the documents' numbers, and the states of each document alone."""
    tokens = random_tokens(2, sum(lengths))
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    return tokens, documents, torch.cat([model.hidden_states(one) for one in tokens.split(lengths, dim=1)], dim=1)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5).filter(lambda lengths: sum(lengths) <= 24))
def test_packed_documents_have_the_states_of_each_document_alone(lengths):
    model = tiny().double()
    with torch.no_grad():
        tokens, documents, alone = packed(model, *lengths)
        torch.testing.assert_close(model.hidden_states(tokens, documents=documents), alone, rtol=0, atol=1e-12)
        assert (model.hidden_states(tokens) - alone)[:, lengths[0] :].abs().max() > 1e-3


def test_documents_may_lie_differently_in_each_row_and_have_any_rising_numbers():
    model = tiny().double()
    tokens = random_tokens(2, 6)
    documents = torch.tensor([[0, 0, 0, 0, 0, 0], [3, 3, 4, 9, 9, 9]])
    with torch.no_grad():
        found = model.hidden_states(tokens, documents=documents)
        torch.testing.assert_close(found[0], model.hidden_states(tokens)[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(found[1, 3:], model.hidden_states(tokens[1:, 3:])[0], rtol=0, atol=1e-12)


def test_gradients_of_packed_documents_are_those_of_each_document_alone():
    model = tiny().double()
    tokens, documents, alone = packed(model, 5, 1, 8)
    weights = torch.randn(alone.shape, generator=torch_generator(0, "weights"), dtype=torch.float64)
    parameters = list(model.parameters())
    expected = torch.autograd.grad((alone * weights).sum(), parameters)
    found = torch.autograd.grad((model.hidden_states(tokens, documents=documents) * weights).sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_documents_that_do_not_fit_are_refused():
    model, tokens = tiny(), random_tokens(2, 6)
    with pytest.raises(ModelsError, match=r"expected the shape \(2, 6\), found \(2, 5\)"):
        model.hidden_states(tokens, documents=torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(ModelsError, match="give one of the two"):
        model.hidden_states(tokens, model.new_cache(), torch.zeros(2, 6, dtype=torch.int64))


# fewer positions than a block, whole blocks, a last one cut short; past 8 head widths nothing is kept for the gradient
@pytest.mark.parametrize(("seq", "width"), [(1, 8), (BLOCK - 1, 8), (2 * BLOCK, 16), (2 * BLOCK + 9, 8)])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (6, 2), (3, 1)])
def test_written_out_attention_and_its_gradient_are_those_of_torch(seq, width, heads, groups):
    generator = torch_generator(0, "attention", seq, heads)
    made = [torch.randn(2, seq, n, width, generator=generator, dtype=torch.float64) for n in (heads, groups, groups)]
    inputs = [x.requires_grad_() for x in made]
    weights = torch.randn(2, seq, heads, width, generator=generator, dtype=torch.float64)
    found = causal_attention(*inputs)
    plain = scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found, plain.transpose(1, 2), rtol=0, atol=1e-13)
    gradients = torch.autograd.grad((found * weights).sum(), inputs)
    expected = torch.autograd.grad((plain.transpose(1, 2) * weights).sum(), inputs)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_bfloat16_attention_is_as_exact_as_torch_has_it():
    generator = torch_generator(0, "attention")
    exact = [torch.randn(2, 150, n, 16, generator=generator, requires_grad=True) for n in (4, 2, 2)]
    weights = torch.randn(2, 150, 4, 16, generator=generator)

    def errors(attention, reference):
        rough = [x.detach().bfloat16().requires_grad_() for x in exact]
        out = attention(*rough)
        found = (out, *torch.autograd.grad((out * weights).sum(), rough))
        return [(one.float() - other).abs().mean().item() for one, other in zip(found, reference, strict=True)]

    def plain(*inputs):
        heads = (x.transpose(1, 2) for x in inputs)
        return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)

    out = plain(*exact)
    reference = (out, *torch.autograd.grad((out * weights).sum(), exact))
    for ours, theirs in zip(errors(causal_attention, reference), errors(plain, reference), strict=True):
        assert ours < 1.5 * theirs + 1e-6


def test_norm_rotation_and_swiglu_have_the_gradients_of_central_differences():
    generator = torch_generator(0, "gradients")
    cos, sin = (table[:5, None].double() for table in rope_tables(5, 6, 10000.0))
    x = torch.randn(2, 5, 3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: rotate(y, cos, sin), x)
    assert torch.autograd.gradcheck(swiglu, x)
    norm = RMSNorm(6, 1e-5).double()
    norm.weight.data.normal_(generator=generator)
    assert torch.autograd.gradcheck(
        lambda y, weight: torch.func.functional_call(norm, {"weight": weight}, y), (x, norm.weight)
    )
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(swiglu(x), silu(gate) * up, rtol=0, atol=1e-15)


@pytest.mark.parametrize("with_documents", [False, True])
def test_the_largest_gradient_of_every_tensor_agrees_with_central_differences(with_documents):
    model, tokens = tiny(init_std=0.2).double(), random_tokens(2, 13)
    documents = torch.tensor([0] * 5 + [1] * 7).expand(2, -1) if with_documents else None

    def loss():
        states = model.hidden_states(tokens[:, :-1], documents=documents)
        return cross_entropy((states @ model.output_weight().T).flatten(0, 1), tokens[:, 1:].flatten())

    gradients = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss(), model.parameters()), strict=True))
    step = 1e-5
    for name, parameter in model.named_parameters():
        index = gradients[name].abs().argmax()
        entry = parameter.data.view(-1)
        around = []
        for change in (step, -2 * step):
            entry[index] += change
            with torch.no_grad():
                around.append(loss().item())
        entry[index] += step
        difference = (around[0] - around[1]) / (2 * step)
        assert gradients[name].view(-1)[index].item() == pytest.approx(difference, rel=1e-4), name


def test_states_with_and_without_a_gradient_are_the_same():
    model, tokens = tiny(max_seq_len=150).double(), random_tokens(2, 150)
    with torch.no_grad():
        read = model.hidden_states(tokens)
    torch.testing.assert_close(model.hidden_states(tokens), read, rtol=0, atol=1e-12)


@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputing_activations_changes_no_bit(with_documents, dtype):
    tokens = random_tokens(3, 20)
    documents = torch.tensor([0] * 9 + [1] * 11).expand(3, -1) if with_documents else None
    results = []
    for again in (False, True):
        model = tiny().train()
        model.activation_checkpointing = again
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            loss = model.hidden_states(tokens, documents=documents).square().mean()
        loss.backward()
        results.append([loss, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_recomputing_keeps_nothing_of_a_layer_but_its_input():
    model, tokens = tiny(n_layers=4).train(), random_tokens(2, 24)
    kept = {}
    for again in (False, True):
        model.activation_checkpointing = again
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):  # noqa: B023
            model.hidden_states(tokens)
        kept[again] = sum(sizes)
    assert kept[True] < kept[False] / 4


def test_a_bfloat16_model_reads_close_to_its_float32_original():
    tokens = random_tokens(2, 20)
    with torch.no_grad():
        exact, rough = tiny()(tokens), tiny().bfloat16()(tokens)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02 * exact.abs().max().item())


def test_flop_are_six_a_matrix_entry_and_those_of_causal_attention():
    for tied in (True, False):
        model = tiny(tied_embeddings=tied)
        used = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and name != "output")
        assert model.flop_per_token(24) == 6 * used + 6 * 2 * 32 * 24


def test_the_layers_hold_every_parameter_but_embedding_output_and_final_norm():
    model = tiny(tied_embeddings=False)
    inside = {id(parameter) for layer in model.layers() for parameter in layer.parameters()}
    outside = [name for name, parameter in model.named_parameters() if id(parameter) not in inside]
    assert sorted(outside) == ["embedding", "final_norm.weight", "output"]


def test_every_family_of_parameters_has_a_model():
    assert set(FAMILIES) == set(get_args(ModelParameters) or [ModelParameters])


def test_three_layers_learn_to_repeat():
    """Twelve random tokens of 16, then the same again: the second half can be known only by looking back."""
    steps, batch, length = 150, 32, 12
    model = tiny(vocab_size=16, max_seq_len=2 * length, d_model=64, n_layers=3, d_ff=128).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    accuracy = 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 100)
        tokens = random_tokens(batch, length, high=16, seed=step).repeat(1, 2)
        logits = model(tokens)[:, length - 1 : -1]  # predictions of the second half
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, length:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        accuracy = (logits[:, 1:].argmax(-1) == tokens[:, length + 1 :]).double().mean().item()
    assert accuracy >= 0.99


@pytest.mark.parametrize("pieces", [(1, 1, 1), (3, 1, 2), (1, 4), (5, 5), (2, 1)])
def test_cached_decoding_masks_the_future_and_nothing_else(pieces, monkeypatch):
    """What attention is asked for: no mask where every key may be seen, one that begins at the cached keys else."""
    asked = []

    def watched(queries, keys, values, attn_mask=None, is_causal=False, **rest):
        asked.append((queries.shape[2], keys.shape[2], attn_mask, is_causal))
        return scaled_dot_product_attention(queries, keys, values, attn_mask=attn_mask, is_causal=is_causal, **rest)

    monkeypatch.setattr("everytoken.models.llama.scaled_dot_product_attention", watched)
    model = tiny(n_layers=1)
    cache, past = model.new_cache(), 0
    with torch.no_grad():
        for piece in random_tokens(2, sum(pieces)).split(pieces, dim=1):
            model(piece, cache)
            new = piece.shape[1]
            ((queries, keys, mask, is_causal),) = asked
            assert (queries, keys) == (new, past + new)
            assert is_causal == (past == 0 and new > 1)
            if past and new > 1:
                assert mask.tolist() == [[key <= past + query for key in range(past + new)] for query in range(new)]
            else:
                assert mask is None
            asked.clear()
            past += new


def by_the_book(model, tokens, n_heads, n_kv_heads, theta=10000.0, eps=1e-5):
    """The formulas of the module once more, position by position and head by head."""

    def norm(x, weight):
        return x / (x.square().mean() + eps).sqrt() * weight

    def turned(x, position):
        half = len(x) // 2
        pairs = [(x[j], x[j + half], position * theta ** (-2 * j / len(x))) for j in range(half)]
        first = [a * math.cos(angle) - b * math.sin(angle) for a, b, angle in pairs]
        return torch.stack([*first, *(a * math.sin(angle) + b * math.cos(angle) for a, b, angle in pairs)])

    states = [model.embedding[token] for token in tokens]
    for block in model.blocks:
        width = len(states[0]) // n_heads
        rows = [block.query_key_value @ norm(x, block.attention_norm.weight) for x in states]
        heads = [row.view(n_heads + 2 * n_kv_heads, width) for row in rows]
        for i, x in enumerate(states):
            mixed = []
            for h in range(n_heads):
                group = n_heads + h // (n_heads // n_kv_heads)
                query = turned(heads[i][h], i)
                scores = torch.stack([query @ turned(heads[j][group], j) / width**0.5 for j in range(i + 1)])
                values = torch.stack([heads[j][group + n_kv_heads] for j in range(i + 1)])
                mixed.append((scores.exp() / scores.exp().sum()) @ values)
            v = x + block.attention_output @ torch.cat(mixed)
            gate, up = (block.gate_up @ norm(v, block.feed_forward_norm.weight)).chunk(2)
            states[i] = v + block.down @ (gate / (1 + (-gate).exp()) * up)
    output = model.embedding if model.output is None else model.output
    return torch.stack([output @ norm(x, model.final_norm.weight) for x in states])


@pytest.mark.parametrize(("heads", "groups", "tied"), [(4, 2, True), (2, 2, False), (4, 1, False)])
def test_logits_are_those_of_the_formulas(heads, groups, tied):
    model = tiny(n_heads=heads, n_kv_heads=groups, tied_embeddings=tied, init_std=0.3).double()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.data.uniform_(0.5, 2, generator=torch_generator(0, name))
    tokens = random_tokens(2, 7)
    with torch.no_grad():
        expected = torch.stack([by_the_book(model, row, heads, groups) for row in tokens])
        assert expected.std() > 1
        torch.testing.assert_close(model(tokens).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_model_computes_the_same_formulas(monkeypatch):
    """What torch compiles is written plainly; here it runs as it is written."""
    x = torch.randn(3, 8, generator=torch_generator(0, "x"), dtype=torch.float64, requires_grad=True)
    norm = RMSNorm(8, 0.5).double()
    norm.weight.data.uniform_(0.5, 2, generator=torch_generator(0, "w"))
    weights = torch.randn(3, 8, generator=torch_generator(0, "y"), dtype=torch.float64)
    results = {}
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        found = [norm(x), swiglu(x)]
        gradients = torch.autograd.grad((found[0] * weights).sum(), [x, norm.weight])
        results[compiling] = [*found, *gradients, *torch.autograd.grad((found[1] * weights[:, :4]).sum(), x)]
    expected = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * norm.weight
    torch.testing.assert_close(results[False][0], expected, rtol=0, atol=1e-14)
    for one, other in zip(results[True], results[False], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
