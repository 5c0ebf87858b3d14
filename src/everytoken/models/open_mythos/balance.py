"""Two ways to keep experts equally busy: a bias that moves between steps, and an auxiliary loss.

The bias (Wang et al. 2024) acts on the selection alone: after an optimiser step ``b_e += u sign(mean(n) - n_e)``, and
``b -= mean(b)``, without which it drifts. n counts the choices of the whole step. The auxiliary loss of a sequence is
``E / (K N) sum_e n_e mean(softmax(z)_e)``, 1 where all experts are equally busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from everytoken.models.open_mythos.experts import MixtureOfExperts, Routing


def balance_values(routings: Sequence[Routing], per_token: int) -> Tensor:
    """Return the auxiliary loss of each sequence (batch,), the mean over the calls that had positions of it."""
    load, score, positions = (
        torch.stack([getattr(routing, name) for routing in routings]) for name in ("load", "score", "positions")
    )  # (calls, batch, E), (calls, batch, E), (calls, batch)
    values = load.shape[-1] / per_token * (load * score).sum(-1) / positions.clamp(min=1).square()
    return values.sum(0) / (positions > 0).sum(0)


class LoadCounter:
    """Choices of experts since the last optimiser step: no buffer, since DDP would send those of one process around."""

    def __init__(self) -> None:
        self._loads: dict[MixtureOfExperts, Tensor] = {}

    def count(self, experts: MixtureOfExperts, routing: Routing) -> None:
        """Add the choices of one call."""
        load = routing.load.sum(0)
        self._loads[experts] = load + self._loads[experts] if experts in self._loads else load

    @torch.no_grad()
    def move_biases(self, rate: float, add: Callable[[Tensor], Tensor], *, updated: bool) -> None:
        """Move the bias of each mixture that was called; forget what was counted. Not ``updated``: move nothing."""
        loads, self._loads = self._loads, {}
        if not updated or not loads or not rate:
            return
        totals = add(torch.stack(list(loads.values())))
        for experts, total in zip(loads, totals, strict=True):
            experts.bias += rate * torch.sign(total.double().mean() - total).to(experts.bias.dtype)
            experts.bias -= experts.bias.mean()
