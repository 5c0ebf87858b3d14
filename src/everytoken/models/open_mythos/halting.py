"""Adaptive computation time (Graves 2016): each position decides after each loop whether to take another one.

    p = sigmoid(w . h_{t+1} + c)
    halt = running and (cum + p >= threshold, or this is the last loop)
    weight = 1 - cum if it halts, else p;   y += weight * h_{t+1};   cum += weight

The weights of a position sum to 1 for every number of loops, since the last loop takes the remainder. N is the number
of loops of a position, R the weight of its last one, D = sum (t + 1) weight_t a depth that has a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everytoken.models.parameters import BudgetHalting, PonderHalting


class HaltingHead(nn.Module):
    """The vector ``weight`` (d_model,) and the number ``bias`` (1,)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(self, h: Tensor) -> Tensor:
        """Return p (batch, seq) of h (batch, seq, d_model), in at least float32 also under autocast."""
        wide = torch.promote_types(h.dtype, torch.float32)
        with torch.autocast(h.device.type, enabled=False):
            return torch.sigmoid(torch.mv(h.to(wide).flatten(0, 1), self.weight.to(wide)).view(h.shape[:2]) + self.bias)


class HaltingState:
    """Where each position of a call is; all tensors (batch, seq), the output (batch, seq, d_model)."""

    def __init__(self, h: Tensor, threshold: float) -> None:
        self._threshold = threshold
        ones = torch.ones_like(h[..., 0])
        self.running = ones.bool()
        self.loops = torch.zeros_like(self.running, dtype=torch.int64)  # N
        self.remainder, self.depth = torch.zeros_like(ones), torch.zeros_like(ones)  # R, D
        self.output = torch.zeros_like(h)  # y
        self._sum = torch.zeros_like(ones)

    def add(self, h: Tensor, p: Tensor, loop: int, *, last: bool) -> None:
        """Take the states h after ``loop`` (0-based), and the probabilities p of halting there."""
        halts = self.running if last else self.running & (self._sum + p >= self._threshold)
        weight = torch.where(halts, 1 - self._sum, p) * self.running
        self.output = self.output + weight.unsqueeze(-1) * h
        self.depth = self.depth + (loop + 1) * weight
        self.remainder = torch.where(halts, weight, self.remainder)
        self.loops = self.loops + self.running
        self._sum = self._sum + weight
        self.running = self.running & ~halts


def halting_loss(
    halting: PonderHalting | BudgetHalting, state: HaltingState, counted: Tensor, loops: int, ramp: float
) -> Tensor:
    """Return the weighted term of the loss, summed over the positions that count, (batch, seq) bool.

    ``ponder``: ``cost (N + R)``. ``budget``: ``weight ((mean D - D*) / loops)^2`` for each position, with the mean over
    those that count in its sequence. While ``ramp`` goes from 0 to 1, the cost grows from 0, and D* falls from
    ``loops``.
    """
    match halting:
        case PonderHalting(cost=cost):
            return cost * ramp * ((state.loops + state.remainder) * counted).sum()
        case BudgetHalting(depth=depth, weight=weight):
            positions = counted.sum(1)
            mean = (state.depth * counted).sum(1) / positions.clamp(min=1)
            wanted = loops + (min(depth, loops) - loops) * ramp
            return weight * (positions * ((mean - wanted) / loops).square()).sum()
