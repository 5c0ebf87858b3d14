"""The state of AdamW as a flat dict of tensors, and back: what ``optimizer.safetensors`` holds.

For each parameter p of the optimiser, by its name in the model (a tied one has its first name): ``step/<p>``, float32
(), the updates done; ``exp_avg/<p>`` and ``exp_avg_sq/<p>``, the first and second moment, of the shape and type of p.
A parameter that was never updated has zeros, which is what AdamW begins with. Learning rate, betas and weight decay are
parameters of the run, not state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everytoken.training.checkpoints import check_tensors
from everytoken.training.errors import CheckpointError

OPTIMIZER_FILE = "optimizer.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
_KINDS = ("step", *MOMENTS)


def optimizer_tensors(optimizer: torch.optim.AdamW, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of every parameter of the optimiser, in the order of the model, not copied.

    Raises:
        CheckpointError: a parameter of the optimiser is not of the model, or it keeps more state than this (amsgrad).
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter, group in _parameters(optimizer, model):
        state = optimizer.state.get(parameter) or _fresh(parameter, group)
        tensors |= {f"{kind}/{name}": state[kind].detach() for kind in _KINDS}
    return tensors


def load_optimizer_tensors(
    optimizer: torch.optim.AdamW, model: nn.Module, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Give the optimiser a copy of the state that `optimizer_tensors` returned.

    Args:
        optimizer: over parameters of ``model``; what state it has is replaced.
        tensors: of exactly the names, shapes and types that `optimizer_tensors` would give.
        where: what to call them in an error.

    Raises:
        CheckpointError: a name is missing or superfluous, or a shape or type differs; nothing is changed then.
    """
    parameters = {name: parameter for name, parameter, _ in _parameters(optimizer, model)}
    state = {name: _fresh(parameter, group) for name, parameter, group in _parameters(optimizer, model)}
    own = flat_state(state)
    check_tensors(tensors, own, f"{where} does not fit the optimiser")
    for key, tensor in own.items():
        tensor.copy_(tensors[key])
    for name, parameter in parameters.items():
        optimizer.state[parameter] = state[name]


def begin_state(optimizer: torch.optim.AdamW) -> None:
    """Give parameters without state what AdamW begins with; torch's state dicts would do an update to get there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter.detach()),
                    "exp_avg_sq": torch.zeros_like(parameter.detach()),
                }


def begun_optimizer_tensors(optimizer: torch.optim.AdamW, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's own tensors, as `optimizer_tensors`; a parameter that had no state has one then."""
    begin_state(optimizer)
    return optimizer_tensors(optimizer, model)


def flat_state(state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return ``{"step/<p>": ...}`` for ``{p: {"step": ...}}``, the form of torch's full optimiser state dicts."""
    return {f"{kind}/{name}": kinds[kind] for name, kinds in state.items() for kind in _KINDS}


def _parameters(optimizer: torch.optim.AdamW, model: nn.Module) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Yield name, parameter and parameter group of the optimiser's parameters, in the model's order."""
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        group = groups.pop(parameter, None)
        if group is None:
            continue  # frozen: it has no state
        if group["amsgrad"]:
            raise CheckpointError("the optimiser has amsgrad=True, expected False: its third moment is not kept")
        yield name, parameter, group
    if groups:
        shapes = [tuple(parameter.shape) for parameter in groups]
        raise CheckpointError(
            f"{len(groups)} parameters of the optimiser are not the model's; their shapes: {shapes[:5]}"
        )


def _fresh(parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state of a parameter before its first update."""
    on_device = group["fused"] or group["capturable"]
    step = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
    return {"step": step, **{kind: torch.zeros_like(parameter.detach()) for kind in MOMENTS}}
