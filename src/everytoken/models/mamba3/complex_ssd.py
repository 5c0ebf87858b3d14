"""The layer that the public Mamba-3-Lite ships, under the name `complex_ssd_lite`: to compare with, not to build on.

For each head, with Delta = softplus(dt) and one complex number A of the head:

    s_t = exp(Delta A) s_{t-1} + B_t x_t  in C^{P x N},     y_t = Re(sum_n C_{t,n} s_{t,n})

B and C are complex and of each head. A linear map mixes the outputs of all heads, and another follows, which makes one
matrix of both. With ``exp(Delta A) = e^a e^{i theta}`` and phi the running sum of theta, y reads
``sum_j e^{c_t - c_j} Re((C_t e^{i phi_t}) (B_j e^{-i phi_j})) x_j``: the real scan of state width 2 N.
Nothing keeps Re(A) below 0, as in the original; a positive one grows without bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from everytoken.models.elementwise import in_dtype_of
from everytoken.models.mamba3.scan import chunked_scan
from everytoken.models.mamba3.state import LayerState
from everytoken.models.parameters import ComplexSsdParameters


class ComplexSsd(nn.Module):
    """``R^d -> R^d`` of a sequence; all matrices are plain parameters (out, in)."""

    def __init__(self, parameters: ComplexSsdParameters) -> None:
        super().__init__()
        d, heads, n = parameters.d_model, parameters.n_heads, parameters.state_width
        self.heads, self.width, self.state_width, self.chunk = heads, d // heads, n, parameters.chunk
        self._split = [d, 2 * heads * n, 2 * heads * n, heads]
        self.project_in = nn.Parameter(torch.empty(sum(self._split), d))
        self.decay = nn.Parameter(torch.tensor([-1.0, 0.0]).repeat(heads, 1))  # (heads, 2): Re(A) and Im(A)
        self.mix_heads = nn.Parameter(torch.empty(d, d))
        self.project_out = nn.Parameter(torch.empty(d, d))

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the output (batch, seq, d) of x (batch, seq, d), in chunks; documents (batch, seq) or None."""
        return self._chunked(x, None, documents)[0]

    def extend(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        """Return the output of tokens that follow those of the state, and the state after them."""
        return self._chunked(x, state, None)

    def _chunked(self, x: Tensor, state: LayerState | None, documents: Tensor | None) -> tuple[Tensor, LayerState]:
        parts = torch.split(in_dtype_of(self.project_in, x), self._split, dim=-1)
        inputs, keys, queries, step = (part.to(torch.promote_types(x.dtype, torch.float32)) for part in parts)
        step = softplus(step)
        turns = (step * self.decay[:, 1]).double().cumsum(1)
        phases = torch.remainder(turns if state is None else turns + state.phases[:, None, :, 0], 2 * math.pi)
        cos, sin = (f(phases).to(step.dtype)[..., None] for f in (torch.cos, torch.sin))
        (key_re, key_im), (query_re, query_im) = (
            part.view(*x.shape[:2], 2, self.heads, self.state_width).unbind(2) for part in (keys, queries)
        )
        keys = torch.cat((key_re * cos + key_im * sin, key_im * cos - key_re * sin), dim=-1)  # B e^{-i phi}
        queries = torch.cat(
            (query_re * cos - query_im * sin, -query_im * cos - query_re * sin), dim=-1
        )  # its conjugate
        ones = torch.ones_like(step)
        before = ones
        if documents is not None:  # the last token of a document is read by none of the next
            ends = documents[:, 1:] != documents[:, :-1]
            before = torch.cat((ones[:, 1:] * ~ends[..., None], ones[:, :1]), dim=1)
        mixed, after = chunked_scan(
            queries[..., None, :],
            keys[..., None, :],
            inputs.view(*x.shape[:2], self.heads, 1, self.width),
            step * self.decay[:, 0],
            before,
            ones,
            chunk=self.chunk,
            state=None if state is None else state.state,
            documents=documents,
        )
        out = in_dtype_of(self.project_out, in_dtype_of(self.mix_heads, mixed[..., 0, :].flatten(2)))
        return out, LayerState(phases[:, -1, :, None].clone(), after)
