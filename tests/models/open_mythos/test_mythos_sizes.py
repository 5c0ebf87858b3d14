"""Numbers of parameters and bytes of the looped family that are computed, against models that are there."""

from itertools import product

import pytest
import torch

from everytoken.models import (
    cache_bytes_per_token,
    largest_tensor,
    layer_activation_bytes,
    layer_input_bytes,
    layer_parameter_counts,
    parameter_counts,
)
from everytoken.models.families import build_model, empty_model
from tests.models.open_mythos.tiny import ATTENTIONS, BUDGET, DEV, MLA, OFF, REFERENCE_32B, shape


def without_memory(parameters, vocab_size):
    with torch.device("meta"):
        return empty_model(parameters, vocab_size=vocab_size, max_seq_len=64)


@pytest.mark.parametrize(
    ("sizes", "vocab_size", "total", "active"),
    [(DEV, 32_000, 12.595e6, 11.81e6), (REFERENCE_32B, 128_256, 32.028e9, 3.717e9)],
    ids=["dev", "reference"],
)
def test_the_two_sizes_have_their_numbers_of_parameters(sizes, vocab_size, total, active):
    parameters = shape(**sizes)
    counts = parameter_counts(parameters, vocab_size)
    assert counts.total == pytest.approx(total, rel=1e-4) and counts.active == pytest.approx(active, rel=1e-3)
    assert counts.total == without_memory(parameters, vocab_size).parameter_count()


KINDS = {
    "embedding": "embedding",
    "attention.": "attention",
    "router": "feed_forward",
    "feed_forward.shared": "feed_forward",
    "injection": "recurrence",
    "adapter": "recurrence",
    "halting": "recurrence",
}


@pytest.mark.parametrize(
    "parameters",
    [
        shape(attention=attention, halting=halting, **sparse)
        for attention, halting, sparse in product(
            [*ATTENTIONS.values(), {**MLA, "q_lora": 0}],
            (OFF, BUDGET),
            ({}, {"d_ff": None, "experts": {"layers": "all", "shared": 3}}),
        )
    ],
    ids=str,
)
def test_numbers_by_kind_are_those_of_the_tensors(parameters):
    model = without_memory(parameters, 321)
    counts = parameter_counts(parameters, 321)
    found = dict.fromkeys(vars(counts), 0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3:
            share = parameters.experts.per_token / parameters.experts.n_experts
            found["active_experts"] += int(share * parameter.numel())
            found["idle_experts"] += int((1 - share) * parameter.numel())
        elif "norm" in name:
            found["norms"] += parameter.numel()
        else:
            kind = next((kind for part, kind in KINDS.items() if part in name), "feed_forward")
            found[kind] += parameter.numel()
    assert vars(counts) == found
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.layers()]
    assert [*layer_parameter_counts(parameters)] == layers
    assert counts.total - counts.idle_experts == counts.active
    largest = max(parameter.numel() for name, parameter in model.named_parameters())
    assert largest_tensor(parameters, 321) == largest


def kept_bytes(parameters, seq, precision):
    """Return the bytes that autograd keeps of a window in all runs of blocks: what a further window adds."""

    def of(batch):
        model = build_model(parameters, vocab_size=50, max_seq_len=seq, seed=0)
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
            return tensor

        narrow = precision == "bfloat16"
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", enabled=narrow):
            states = model.hidden_states(torch.arange(batch * seq).view(batch, seq) % 50)
        assert states.requires_grad
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    return of(3) - of(2)


LARGER = {"d_model": 64, "n_heads": 4, "d_ff": 96, "experts": {"d_ff": 80}}
LATENT = {"kind": "mla", "q_lora": 24, "kv_lora": 32, "nope": 8, "rope": 8, "v": 16}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"halting": BUDGET},
        {"max_loops": 2, "experts": {"n_experts": 8, "per_token": 3, "d_ff": 80}},
        {"attention": LATENT, "d_ff": None, "experts": {"layers": "all", "d_ff": 48}},
    ],
    ids=str,
)
def test_runs_of_blocks_keep_at_most_the_bytes_that_are_planned_and_not_much_less(precision, changes):
    parameters, seq = shape(**{**LARGER, **changes}), 160
    runs = layer_activation_bytes(parameters, precision, seq)
    assert len(runs) == 2 + parameters.max_loops
    final_norm = 4 * parameters.d_model + 4
    planned = (sum(runs) + final_norm) * seq
    assert 0.75 * planned <= kept_bytes(parameters, seq, precision) <= planned


def test_loops_without_a_gradient_keep_nothing_and_a_policy_says_how_many_have_one():
    def runs(**changes):
        parameters = shape(max_loops=6, **changes)
        assert len(layer_input_bytes(parameters)) == len(layer_activation_bytes(parameters, "float32", 64))
        return len(layer_activation_bytes(parameters, "float32", 64)) - 2

    assert runs() == 6
    assert runs(gradient_loops=2) == 2
    assert runs(depth={"kind": "uniform", "least": 2, "most": 9}) == 9
    assert 12 < runs(depth={"kind": "poisson", "mean": 4.0}) < 20
    assert runs(depth={"kind": "poisson", "mean": 4.0}, gradient_loops=4) == 4


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_cache_has_the_bytes_that_are_planned(attention):
    parameters = shape(attention=ATTENTIONS[attention])
    model = build_model(parameters, vocab_size=50, max_seq_len=64, seed=0)
    cache, room = model.new_cache(), 2
    with torch.no_grad():
        model.hidden_states(torch.zeros(1, 16, dtype=torch.int64), cache)
    assert cache.bytes == pytest.approx(room * 16 * cache_bytes_per_token(parameters, "float32"), rel=0.05)
