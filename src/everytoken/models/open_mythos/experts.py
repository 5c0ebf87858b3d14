"""Feed-forward parts: a dense SwiGLU, and a dropless mixture of routed and shared SwiGLU experts.

    z = W_r x                                   in float32
    I = the K largest of z + b                  b takes part in the selection alone, and has no gradient
    g = softmax over the z of I
    y = sum over I of g_k SwiGLU_k(x)  +  Shared(x)

Shared experts of equal width, summed, are one of their joint width. Sources: Shazeer et al. 2017, DeepSeek-AI 2024.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from everytoken.models.elementwise import in_dtype_of, swiglu
from everytoken.models.open_mythos.dispatch import in_blocks, routed
from everytoken.models.parameters import ExpertsParameters


class Routing(NamedTuple):
    """What the router did in one call, for each sequence.

    ``load`` (batch, E) int64: choices of each expert. ``score`` (batch, E): softmax(z), summed over positions.
    ``entropy`` (batch,): of softmax(z) in nats, summed over positions, without gradient. ``positions`` (batch,) int64:
    how many there were.
    """

    load: Tensor
    score: Tensor
    entropy: Tensor
    positions: Tensor


class DenseFeedForward(nn.Module):
    """``W_d (silu(W_g x) * W_u x)``."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * d_ff, d_model))
        self.down = nn.Parameter(torch.empty(d_model, d_ff))

    def forward(self, x: Tensor, running: Tensor | None) -> tuple[Tensor, Routing | None]:
        """Return a tensor of the shape of x (batch, seq, d_model), and that nothing was routed."""
        return in_dtype_of(self.down, swiglu(in_dtype_of(self.gate_up, x))), None

    def active_entries(self) -> int:
        """Return how many entries of matrices act on a token."""
        return self.gate_up.numel() + self.down.numel()


class MixtureOfExperts(nn.Module):
    """Routed and shared experts; the bias of the selection is a buffer, so checkpoints hold it."""

    def __init__(self, d_model: int, parameters: ExpertsParameters) -> None:
        super().__init__()
        experts, width = parameters.n_experts, parameters.d_ff
        self.per_token = parameters.per_token
        self.router = nn.Parameter(torch.empty(experts, d_model))
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, d_model))
        self.down = nn.Parameter(torch.empty(experts, d_model, width))
        self.shared = DenseFeedForward(d_model, parameters.shared * parameters.shared_width * width)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x: Tensor, running: Tensor | None) -> tuple[Tensor, Routing]:
        """Return y (batch, seq, d_model) and the routing, of x (batch, seq, d_model).

        Positions where ``running`` (batch, seq) is false are not computed: their y is 0, and they do not count.
        """
        batch, seq, d = x.shape
        logits = self._logits(x.flatten(0, 1))
        # stable: of equal ones the first expert wins, which topk leaves open
        chosen = (logits + self.bias).detach().sort(dim=-1, descending=True, stable=True).indices[:, : self.per_token]
        gates = torch.softmax(logits.gather(1, chosen), dim=-1)
        rows = x.flatten(0, 1)
        if running is None:
            y = routed(rows, chosen, gates, self.gate_up, self.down) + self.shared(rows, None)[0]
        else:
            alive = running.flatten().nonzero().squeeze(1)
            rows = rows.index_select(0, alive)
            shared = in_blocks(rows, lambda x: self.shared(x, None)[0])
            some = (
                routed(rows, chosen.index_select(0, alive), gates.index_select(0, alive), self.gate_up, self.down)
                + shared
            )
            y = some.new_zeros(batch * seq, d).index_copy(0, alive, some)
        return y.view(batch, seq, d), self._routing(logits.view(batch, seq, -1), chosen, running)

    def active_entries(self) -> int:
        """Return how many entries of matrices act on a token."""
        one = (self.gate_up.numel() + self.down.numel()) // len(self.router)
        return self.router.numel() + self.per_token * one + self.shared.active_entries()

    def _logits(self, rows: Tensor) -> Tensor:
        """Return z (n, E) in at least float32, also under autocast."""
        wide = torch.promote_types(self.router.dtype, torch.float32)
        with torch.autocast(rows.device.type, enabled=False):
            return linear(rows.to(wide), self.router.to(wide))

    def _routing(self, logits: Tensor, chosen: Tensor, running: Tensor | None) -> Routing:
        batch, seq, experts = logits.shape
        score = torch.softmax(logits, dim=-1)
        cells = chosen.reshape(batch, -1) + torch.arange(batch, device=chosen.device).unsqueeze(1) * experts
        if running is None:
            positions = torch.full((batch,), seq, device=chosen.device)
        else:
            positions, score = running.sum(1), score * running.unsqueeze(-1)
            cells = cells.view(batch, seq, -1)[running]
        load = torch.bincount(cells.flatten(), minlength=batch * experts).view(batch, experts)
        entropy = torch.special.entr(score.detach()).sum((1, 2))
        return Routing(load, score.sum(1), entropy, positions)
