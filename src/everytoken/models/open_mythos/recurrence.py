"""What makes the loops of one block differ, and keeps their state bounded.

    u_t     = norm(h_t + l_t + e)
    v_t     = Block(u_t)
    h_{t+1} = A * h_t + B * e + v_t + D_t,      D_t = U ((L v_t) * s_t)

A and B are vectors: ``Delta = softplus(delta)``, ``lambda = clip(Delta exp(a), 1e-3, 20)``, ``A = exp(-lambda)``,
``B = Delta b``. So ``2e-9 <= A <= 0.9990005`` in float32 too, and since u_t is normalised, |h| stays below a bound that
does not depend on the number of loops. It does not follow that h converges. A and h are never in bfloat16, which has no
number between 0.996 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from everytoken.models.elementwise import in_dtype_of

_SLOWEST, _FASTEST = 1e-3, 20.0


class Injection(nn.Module):
    """The vectors ``a``, ``delta`` and ``b`` (d_model,)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(d_model))
        self.delta = nn.Parameter(torch.empty(d_model))
        self.b = nn.Parameter(torch.empty(d_model))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return A and B (d_model,) in at least float32."""
        wide = torch.promote_types(self.a.dtype, torch.float32)
        step = softplus(self.delta.to(wide))
        return torch.exp(-(step * torch.exp(self.a.to(wide))).clamp(_SLOWEST, _FASTEST)), step * self.b.to(wide)


class DepthAdapter(nn.Module):
    """``D_t``: L is ``reduce`` (r, d), U is ``expand`` (d, r), s is ``scale`` (loops, r)."""

    def __init__(self, d_model: int, rank: int, loops: int) -> None:
        super().__init__()
        self.reduce = nn.Parameter(torch.empty(rank, d_model))
        self.expand = nn.Parameter(torch.empty(d_model, rank))
        self.scale = nn.Parameter(torch.empty(loops, rank))

    def forward(self, v: Tensor, loop: int) -> Tensor:
        """Return D_t of v (batch, seq, d); loops beyond the last row of ``scale`` have that row."""
        return in_dtype_of(self.expand, in_dtype_of(self.reduce, v) * self.scale[min(loop, len(self.scale) - 1)])


def loop_embeddings(loops: int, channels: int, d_model: int) -> Tensor:
    """Return l (loops, d_model) float32: sin and cos of ``t 10000^(-2j/channels)`` in the first channels, else 0."""
    frequencies = 10000.0 ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    angles = torch.outer(torch.arange(loops, dtype=torch.float64), frequencies)
    rest = torch.zeros(loops, d_model - channels, dtype=torch.float64)
    return torch.cat((angles.sin(), angles.cos(), rest), dim=1).float()
