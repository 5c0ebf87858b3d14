"""RMSNorm, rotary positions and SwiGLU, with their gradients written out, and the product around them.

Taken apart into single operations, each reads and writes a whole activation, which on a CPU takes longer than its
arithmetic. Here each is done in few passes, and keeps what its gradient needs and no intermediate. While torch
compiles, which joins operations by itself, RMSNorm and SwiGLU are the plain formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu


class RMSNorm(nn.Module):
    """``x * w / sqrt(mean(x^2) + eps)`` over the last axis, in at least float32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``; the dtype is at least float32."""
        # promote_types and not .float(): float64 models must stay float64
        wide = torch.promote_types(x.dtype, torch.float32)
        x, weight = x.to(wide), self.weight.to(wide)
        if torch.compiler.is_compiling():
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight
        out: Tensor = _RMSNorm.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return out


class _RMSNorm(torch.autograd.Function):
    """With r = 1 / sqrt(mean(x^2) + eps), y = x r, h = w dout: ``dx = r (h - y mean(h y))``, ``dw = sum(dout y)``.

    The kernel of layer norm does nearly this in one pass. Told that the mean is 0, its dx has ``- r mean(h)`` in
    addition, which is added back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        reciprocal: Tensor = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, reciprocal)
        out: Tensor = (x * reciprocal).mul_(weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, reciprocal = ctx.saved_tensors
        width, gradient = x.shape[-1], gradients[0].contiguous()
        mean_gradient = torch.mv(gradient.view(-1, width), weight).view_as(reciprocal).div_(width)
        x_gradient, weight_gradient, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, [width], torch.zeros_like(reciprocal), reciprocal, weight, None, [True, True, False]
        )
        return x_gradient.add_(mean_gradient.mul_(reciprocal)), weight_gradient, None


def in_dtype_of(weight: Tensor, x: Tensor) -> Tensor:
    """Return ``x weight^T`` in the dtype of the weight: norms are float32 also in a bfloat16 model."""
    return linear(x.to(weight.dtype), weight)


def rope_tables(max_seq_len: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin of ``position * theta^(-2j/width)``, each (max_seq_len, width / 2) float32.

    Computed in float64 and stored as two real tables: a complex one loses its imaginary part in
    ``module.to(bfloat16)``.
    """
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_j, x_{j + D/2}) of x (..., D) by angles whose cos and sin (..., D / 2) broadcast to x."""
    turned: Tensor = _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return turned


class _Rotation(torch.autograd.Function):
    """The gradient of a rotation is the rotation back: no intermediate is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradients[0], cos, -sin), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))  # bfloat16 would lose digits in the sums
    first, second = wide.chunk(2, dim=-1)
    return torch.cat(((first * cos).sub_(second * sin), (second * cos).add_(first * sin)), dim=-1).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return ``silu(g) * u`` (..., f) of gate_up (..., 2 f), g its first and u its second half (Shazeer 2020)."""
    if torch.compiler.is_compiling():  # which joins these by itself, and knows no out=
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
    out: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
    return out


class _SwiGLU(torch.autograd.Function):
    """Both halves of the gradient are written where they belong, instead of apart and then joined."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        activated = silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        both = torch.empty_like(gate_up)
        gate_gradient, up_gradient = both.chunk(2, dim=-1)
        torch.mul(gradients[0], activated, out=up_gradient)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=gate_gradient)
        return both
