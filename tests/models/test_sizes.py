"""Numbers of parameters and bytes that are computed, against models that are there."""

from pathlib import Path

import pytest
import torch
import yaml

from everytoken.models import LlamaParameters
from everytoken.models.causal_attention import BLOCK
from everytoken.models.counts import CPU_BLOCK
from everytoken.models.families import build_model, empty_model
from everytoken.models.sizes import (
    layer_activation_bytes,
    layer_parameter_counts,
    parameter_counts,
)

SIZES = yaml.safe_load((Path(__file__).parents[2] / "conf" / "base" / "parameters_sizes.yml").read_text())["_sizes"]
SMOLLM2_TOKENS = 49_152
EXPECTED = {  # parameters with the tokens of SmolLM2
    "mini": 4_915_680,
    "demo": 11_011_776,
    "135m": 134_515_008,  # as published
    "1.7b": 1_711_376_384,  # as published
    "3b": 2_969_742_336,
}


def llama(d_model, n_layers, n_heads, n_kv_heads, d_ff, tied=True):
    return LlamaParameters(
        family="llama",
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        tied_embeddings=tied,
        rope_theta=10000.0,
        norm_eps=1e-5,
        init_std=0.02,
    )


def without_memory(parameters, vocab_size):
    with torch.device("meta"):
        return empty_model(parameters, vocab_size=vocab_size, max_seq_len=2048)


@pytest.mark.parametrize("name", SIZES)
def test_the_sizes_of_the_configuration_have_their_numbers_of_parameters(name):
    parameters = LlamaParameters(**SIZES[name])
    model = without_memory(parameters, SMOLLM2_TOKENS)
    assert model.parameter_count() == EXPECTED[name]
    assert parameter_counts(parameters, SMOLLM2_TOKENS).total == EXPECTED[name]


@pytest.mark.parametrize("tied", [True, False])
def test_numbers_by_kind_are_those_of_the_tensors(tied):
    parameters = llama(48, 3, 6, 2, 100, tied)
    counts = parameter_counts(parameters, 321)
    found = dict.fromkeys(("embedding", "output", "attention", "feed_forward", "norms"), 0)
    model = without_memory(parameters, 321)
    for name, parameter in model.named_parameters():
        kinds = {"query_key_value": "attention", "attention_output": "attention", "weight": "norms"}
        kinds |= {"gate_up": "feed_forward", "down": "feed_forward", "embedding": "embedding", "output": "output"}
        found[kinds[name.split(".")[-1]]] += parameter.numel()
    assert vars(counts) == found
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.layers()]
    assert [*layer_parameter_counts(parameters)] == layers


def kept_bytes(parameters, seq, precision):
    """Return the bytes that autograd keeps of a window in one layer: differences of layers and of windows."""

    def of(n_layers, batch):
        shape = parameters.model_copy(update={"n_layers": n_layers})
        model = build_model(shape, vocab_size=50, max_seq_len=seq, seed=0)
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
            return tensor

        narrow = precision == "bfloat16"
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", enabled=narrow):
            model.hidden_states(torch.zeros(batch, seq, dtype=torch.int64))
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    return of(2, 3) - of(2, 2) - of(1, 3) + of(1, 2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "seq"),
    [((64, 2, 4, 2, 160), 128), ((96, 2, 3, 1, 256), 64), ((64, 2, 4, 4, 64), 256), ((128, 2, 2, 1, 320), 512)],
)
def test_a_layer_keeps_at_most_the_bytes_that_are_planned_and_not_much_less(precision, shape, seq):
    parameters = llama(*shape)
    planned = layer_activation_bytes(parameters, precision, seq)[0] * seq
    assert 0.75 * planned <= kept_bytes(parameters, seq, precision) <= planned


def test_the_constant_of_the_attention_is_that_of_its_module():
    assert CPU_BLOCK == BLOCK
