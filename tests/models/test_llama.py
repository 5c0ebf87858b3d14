import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from everytoken.models import LlamaParameters, ModelsError
from everytoken.models.families import build_model
from everytoken.models.llama import RMSNorm, llama_parameter_count, rope_tables, rotate
from everytoken.seeds import torch_generator

TINY = {
    "family": "llama",
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 48,
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
    expected = llama_parameter_count(LlamaParameters(**{**TINY, **changes}), vocab_size)
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
    assert "cos" not in model.state_dict()
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
