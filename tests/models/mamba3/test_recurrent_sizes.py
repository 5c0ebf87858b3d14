"""Sizes from parameters alone are those of the tensors."""

import pytest
import torch

from everytoken.models import (
    build_model,
    layer_activation_bytes,
    layer_parameter_counts,
    parameter_counts,
    state_bytes,
)
from tests.models.mamba3.shapes import LITE, MAMBA3, some_tokens
from tests.models.test_sizes import kept_bytes

SHAPES = [
    MAMBA3,
    MAMBA3.model_copy(update={"rotated_share": 1.0, "state_width": 32, "chunk": 32, "d_ff": 200}),
    MAMBA3.model_copy(update={"rank": 2, "head_width": 32}),
    MAMBA3.model_copy(update={"rank": 4, "expand": 1, "chunk": 8}),
    LITE,
    LITE.model_copy(update={"n_heads": 8, "state_width": 16}),
]


@pytest.mark.parametrize("parameters", SHAPES)
def test_numbers_of_parameters_are_those_of_the_tensors(parameters):
    model = build_model(parameters, vocab_size=321, max_seq_len=64, seed=0)
    counts, twice = parameter_counts(parameters, 321), parameters.n_heads if parameters.family != "mamba3" else 0
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2 and p.shape[-1] > 2]
    assert counts.total == model.parameter_count()
    assert counts.layer_matrices == sum(p.numel() for p in matrices)
    assert counts.norms == sum(p.numel() for name, p in model.named_parameters() if name.endswith("norm.weight"))
    layers = [sum(p.numel() for p in layer.parameters()) - twice for layer in model.layers()]
    assert [*layer_parameter_counts(parameters)] == layers


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("parameters", SHAPES)
def test_a_layer_keeps_at_most_the_bytes_that_are_planned_and_not_much_less(precision, parameters):
    planned = layer_activation_bytes(parameters, precision, 128)[0] * 128
    assert 0.75 * planned <= kept_bytes(parameters, 128, precision) <= planned


@pytest.mark.parametrize("parameters", SHAPES)
def test_the_state_has_the_planned_bytes(parameters):
    model = build_model(parameters, vocab_size=50, max_seq_len=64, seed=0)
    cache = model.new_cache()
    with torch.inference_mode():
        model.hidden_states(some_tokens(1, 64), cache)
    assert cache.bytes == state_bytes(parameters)
