"""Small recurrent models of the tests."""

from typing import Any

import torch

from everytoken.models import ComplexSsdParameters, Mamba3Parameters
from everytoken.models.families import build_model
from everytoken.models.mamba3 import RecurrentModel
from everytoken.seeds import torch_generator

MAMBA3 = Mamba3Parameters(
    family="mamba3",
    d_model=64,
    n_layers=2,
    expand=2,
    head_width=16,
    state_width=16,
    rank=1,
    rotated_share=0.5,
    d_ff=96,
    chunk=16,
    norm_eps=1e-5,
    init_std=0.02,
)
LITE = ComplexSsdParameters(
    family="complex_ssd_lite",
    d_model=64,
    n_layers=2,
    n_heads=4,
    state_width=8,
    d_ff=96,
    chunk=16,
    norm_eps=1e-5,
    init_std=0.02,
)
VOCABULARY = 50


def small_model(family: str = "mamba3", *, seed: int = 1, larger: float = 1.0, **changes: Any) -> RecurrentModel:
    """Return a model of 50 tokens; its matrices are ``larger`` times as large as drawn, so that layers differ."""
    parameters = (MAMBA3 if family == "mamba3" else LITE).model_copy(update=changes)
    model = build_model(parameters, vocab_size=VOCABULARY, max_seq_len=256, seed=seed)
    assert isinstance(model, RecurrentModel)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(larger)
    return model.eval()


def some_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random tokens."""
    return torch.randint(0, VOCABULARY, shape, generator=torch_generator(seed, "test tokens"))
