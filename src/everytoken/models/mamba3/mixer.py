"""The Mamba-3 layer: a rotating state with the two-point (exponential-trapezoidal) rule, of rank 1 or more.

Symbols: d width, H heads of width P, N state width, R rank, J pairs of state dimensions that rotate. For each head and
token, with Delta = softplus(dt + bias):

    a       = -max(F(a_raw), 1e-4) Delta,     F(x) = 1 + x for x >= 0, 1 / (1 - x) for x < 0
    lambda  = sigmoid(lambda_raw)
    phi_t   = phi_{t-1} + Delta pi tanh(angle)      in R^J
    k_r     = Rot(phi_t)(norm(B_r) + b_B),   q_r = Rot(phi_t)(norm(C_r) + b_C)
    S_t     = e^a S_{t-1} + (1 - lambda) Delta e^a sum_r v_{r,t-1} k_{r,t-1}^T + lambda Delta sum_r v_{r,t} k_{r,t}^T
    o_r     = S_t q_r + D v_r
    y       = sum_r m_r o_r silu(g_r)

Rank 1 has v = x, g = z; more have v_r = m^x_r x and g_r = m^z_r z, a vector of P numbers for each head and r.
Source: Mamba-3 (Lahoti et al., 2026); a rotating real state is a complex one (section 3 there).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from everytoken.models.elementwise import RMSNorm, in_dtype_of
from everytoken.models.mamba3.scan import chunked_scan
from everytoken.models.mamba3.state import LayerState
from everytoken.models.parameters import Mamba3Parameters

_LEAST_DECAY = 1e-4


class Rates(NamedTuple):
    """Of each head and token, (batch, seq, heads), at least float32."""

    step: Tensor  # Delta
    log_decay: Tensor  # a
    now: Tensor  # lambda Delta
    last: Tensor  # (1 - lambda) Delta


class Mixer(nn.Module):
    """``R^d -> R^d`` of a sequence; all matrices are plain parameters (out, in)."""

    def __init__(self, parameters: Mamba3Parameters) -> None:
        super().__init__()
        d, self.heads, self.width = parameters.d_model, parameters.n_heads, parameters.head_width
        self.state_width, self.rank, self.pairs = parameters.state_width, parameters.rank, parameters.rotated_pairs
        self.chunk = parameters.chunk
        inner, n, r, heads = self.heads * self.width, self.state_width, self.rank, self.heads
        self._split = [inner, inner, r * n, r * n, heads, heads, heads, self.pairs]
        self.project_in = nn.Parameter(torch.empty(sum(self._split), d))
        self.project_out = nn.Parameter(torch.empty(d, inner))
        self.step_bias = nn.Parameter(torch.empty(heads))
        self.key_norm, self.query_norm = RMSNorm(n, parameters.norm_eps), RMSNorm(n, parameters.norm_eps)
        self.key_bias, self.query_bias = nn.Parameter(torch.ones(heads, r, n)), nn.Parameter(torch.ones(heads, r, n))
        self.skip = nn.Parameter(torch.ones(heads))
        if r > 1:
            self.value_scale = nn.Parameter(torch.full((heads, r, self.width), 1 / r))
            self.gate_scale = nn.Parameter(torch.ones(heads, r, self.width))
            self.output_scale = nn.Parameter(torch.full((heads, r, self.width), 1 / r))

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the output (batch, seq, d) of x (batch, seq, d), in chunks; documents (batch, seq) or None."""
        return self._chunked(x, None, documents)[0]

    def extend(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        """Return the output of tokens that follow those of the state, and the state after them."""
        if x.shape[1] == 1 and state is not None:
            return self._step(x, state)
        return self._chunked(x, state, None)

    def _chunked(self, x: Tensor, state: LayerState | None, documents: Tensor | None) -> tuple[Tensor, LayerState]:
        gates, inputs, rates, phases, queries, keys = self._projected(x, None if state is None else state.phases)
        values = self._values(inputs)
        found = None
        if state is not None:
            first = rates.last[:, 0, :, None, None]
            found = state.state + first * self._outer(self._values(_of(state.inputs)), _of(state.keys))
        following = rates.last[:, 1:]
        if documents is not None:
            following = following * (documents[:, 1:] == documents[:, :-1])[..., None]
        before = rates.now + torch.cat((following, torch.zeros_like(rates.last[:, :1])), dim=1)
        mixed, after = chunked_scan(
            queries,
            keys,
            values,
            rates.log_decay,
            before,
            rates.now,
            chunk=self.chunk,
            state=found,
            documents=documents,
        )
        left = LayerState(phases[:, -1].clone(), after, keys[:, -1].clone(), inputs[:, -1].clone())  # not views of all
        return self._output(mixed, values, gates), left

    def _step(self, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Do one token by the recurrence itself."""
        gates, inputs, rates, phases, queries, keys = self._projected(x, state.phases)
        step = Rates(*(rate[:, 0, :, None, None] for rate in rates))  # (batch, heads, 1, 1)
        values = self._values(inputs)
        old = self._outer(self._values(_of(state.inputs)), _of(state.keys))
        new = self._outer(values[:, 0], keys[:, 0])
        after = step.log_decay.exp() * (state.state + step.last * old) + step.now * new
        mixed = queries[:, 0] @ after.transpose(-1, -2)  # (batch, heads, rank, P)
        left = LayerState(phases[:, 0], after, keys[:, 0], inputs[:, 0])
        return self._output(mixed[:, None], values, gates), left

    def _projected(self, x: Tensor, phases: Tensor | None) -> tuple[Tensor, Tensor, Rates, Tensor, Tensor, Tensor]:
        """Return gates and inputs (batch, seq, heads, P), rates, phases, rotated queries and keys."""
        parts = torch.split(in_dtype_of(self.project_in, x), self._split, dim=-1)
        gates, inputs, keys, queries = parts[:4]
        step, decay, share, angles = (_wide(part) for part in parts[4:])
        rates = self._rates(step, decay, share)
        gates, inputs = (part.view(*x.shape[:2], self.heads, self.width) for part in (gates, inputs))
        phases = turned(phases, rates.step, angles)
        cos, sin = (f(phases).to(rates.step.dtype)[..., None, :] for f in (torch.cos, torch.sin))
        queries, keys = (
            rotated(norm(part.view(*x.shape[:2], self.rank, self.state_width))[:, :, None] + bias, cos, sin)
            for part, norm, bias in (
                (queries, self.query_norm, self.query_bias),
                (keys, self.key_norm, self.key_bias),
            )
        )
        return gates, inputs, rates, phases, queries, keys

    def _rates(self, step: Tensor, decay: Tensor, share: Tensor) -> Rates:
        delta = softplus(step + self.step_bias)
        slope = torch.where(decay >= 0, 1 + decay, 1 / (1 - decay.clamp(max=0)))
        weight = torch.sigmoid(share)
        return Rates(delta, -slope.clamp(min=_LEAST_DECAY) * delta, weight * delta, (1 - weight) * delta)

    def _values(self, inputs: Tensor) -> Tensor:
        """Return v (.., heads, rank, P) of x (.., heads, P), at least float32."""
        wide = _wide(inputs)[..., None, :]
        return wide if self.rank == 1 else wide * self.value_scale

    def _outer(self, values: Tensor, keys: Tensor) -> Tensor:
        """Return the sum over ranks of v k^T, (batch, heads, P, N)."""
        return values.transpose(-1, -2) @ keys

    def _output(self, mixed: Tensor, values: Tensor, gates: Tensor) -> Tensor:
        """Return (batch, seq, d) of what the queries read (batch, seq, heads, rank, P)."""
        mixed = mixed + self.skip[:, None, None] * values
        if self.rank == 1:
            out = mixed[..., 0, :] * silu(_wide(gates))
        else:
            out = (mixed * silu(_wide(gates)[..., None, :] * self.gate_scale) * self.output_scale).sum(-2)
        return in_dtype_of(self.project_out, out.flatten(2))


def turned(before: Tensor | None, step: Tensor, angles: Tensor) -> Tensor:
    """Return the phases in [0, 2 pi) after each token, (batch, seq, heads, pairs) float64.

    The sum is float64 until it is reduced: in float32 it is 2e-3 rad off after 8,000 tokens.

    Args:
        before: (batch, heads, pairs) before the first token; None: 0.
        step: Delta, (batch, seq, heads).
        angles: (batch, seq, pairs).
    """
    turns = (step[..., None] * (math.pi * torch.tanh(angles))[:, :, None]).double().cumsum(1)
    return torch.remainder(turns if before is None else turns + before[:, None], 2 * math.pi)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + J}), i < J, of x (.., N) by angles whose cos and sin (.., J) broadcast to x."""
    pairs = cos.shape[-1]
    first, second, rest = torch.split(x, [pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a state of another variant"
    return tensor
