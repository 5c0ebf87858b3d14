"""The smallest OpenMythos of the tests, and what they draw."""

from typing import Any

import torch
from torch import Tensor

from everytoken.models import OpenMythos, OpenMythosParameters
from everytoken.models.families import build_model
from everytoken.seeds import torch_generator

VOCAB = 61
GQA = {"kind": "gqa", "n_kv_heads": 2}
MLA = {"kind": "mla", "q_lora": 12, "kv_lora": 8, "nope": 4, "rope": 4, "v": 6}
ATTENTIONS = {"gqa": GQA, "mla": MLA}
OFF = {"kind": "off"}
PONDER = {"kind": "ponder", "threshold": 0.99, "cost": 1e-3}
BUDGET = {"kind": "budget", "threshold": 0.99, "depth": 2.0}
EXPERTS = {
    "n_experts": 4,
    "per_token": 2,
    "shared": 1,
    "d_ff": 12,
    "shared_width": 2,
    "layers": "recurrent",
    "bias_rate": 1e-2,
}
TINY: dict[str, Any] = {
    "family": "open_mythos",
    "d_model": 32,
    "n_heads": 4,
    "attention": GQA,
    "prelude_layers": 1,
    "coda_layers": 1,
    "max_loops": 4,
    "d_ff": 24,
    "experts": EXPERTS,
    "lora_rank": 4,
    "loop_embedding": 8,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
}
DEV: dict[str, Any] = {
    **TINY,
    "d_model": 256,
    "n_heads": 8,
    "attention": {"kind": "gqa", "n_kv_heads": 4},
    "prelude_layers": 2,
    "coda_layers": 2,
    "d_ff": 341,
    "experts": {**EXPERTS, "d_ff": 512},
    "lora_rank": 16,
    "loop_embedding": 32,
    "halting": PONDER,
}
REFERENCE_32B: dict[str, Any] = {
    **DEV,
    "d_model": 5120,
    "n_heads": 32,
    "attention": {"kind": "mla", "q_lora": 1536, "kv_lora": 512, "nope": 128, "rope": 64, "v": 128},
    "max_loops": 28,
    "d_ff": None,
    "experts": {
        **EXPERTS,
        **{"n_experts": 64, "per_token": 4, "shared": 2, "d_ff": 6144, "shared_width": 1, "layers": "all"},
    },
    "loop_embedding": 640,
    "rope_theta": 500000.0,
}


def shape(**changes: Any) -> OpenMythosParameters:
    """Return the parameters with some of them changed; ``experts`` may give only what differs."""
    if "experts" in changes:
        changes["experts"] = {**EXPERTS, **changes["experts"]}
    return OpenMythosParameters.model_validate({**TINY, **changes})


def tiny(vocab_size: int = VOCAB, max_seq_len: int = 40, seed: int = 1, **changes: Any) -> OpenMythos:
    model = build_model(shape(**changes), vocab_size=vocab_size, max_seq_len=max_seq_len, seed=seed)
    assert isinstance(model, OpenMythos)
    return model.eval()


@torch.no_grad()
def lively(model: OpenMythos, seed: int = 0) -> OpenMythos:
    """Return the model in float64 with tensors large enough that loops, halting and experts matter."""
    model.double()
    for name, parameter in model.named_parameters():
        generator = torch_generator(seed, "lively", name)
        std = 0.6 if name.endswith("halting.weight") else 0.25
        if parameter.ndim > 1 or name.endswith(("halting.weight", "injection.a")):
            parameter.normal_(0.0, std, generator=generator)
        elif name.endswith("halting.bias"):
            parameter.fill_(-1.0)
    return model


def random_tokens(*shape: int, high: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch_generator(seed, "test tokens"))
