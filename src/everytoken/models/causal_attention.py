"""Causal attention with its gradient written out, for training on a CPU; and the mask of packed documents.

    P = softmax(Q K^T / sqrt(D) + mask),   O = P V
    dV = P^T dO,   dS = P * (dP - sum(dP * P)) with dP = dO V^T,   dQ = dS K / sqrt(D),   dK = dS^T Q / sqrt(D)

Queries are taken ``BLOCK`` positions at a time, each block against the keys up to its end, so the half of the scores
that no one sees is not computed, and memory grows with seq and not with its square. The query heads that share a key
head lie side by side in one product, so keys and values are never repeated. torch's own kernel for CPUs does a
small product for each head and block, which takes longer. Without a gradient, with a mask, on another device, or
compiled, ``scaled_dot_product_attention`` is used instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BLOCK = 64  # positions; with the heads of a group this is a product of 64 to 256 rows


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return (batch, seq, heads, D) of queries (batch, seq, heads, D), keys and values (batch, seq, groups, D).

    Query head h sees the keys of group ``h // (heads / groups)`` at its own and earlier positions. Differentiable
    once.
    """
    batch, seq, heads, width = queries.shape
    groups = keys.shape[2]
    per_group = heads // groups
    # (batch * groups, seq * heads a group, D): the heads of one position are neighbouring rows
    by_group = queries.view(batch, seq, groups, per_group, width).transpose(1, 2).reshape(-1, seq * per_group, width)
    keys, values = (x.transpose(1, 2).reshape(-1, seq, width) for x in (keys, values))
    mixed: Tensor = _CausalAttention.apply(by_group, keys, values)  # type: ignore[no-untyped-call]
    return mixed.view(batch, groups, seq, per_group, width).transpose(1, 2).reshape(batch, seq, heads, width)


def document_mask(documents: Tensor) -> tuple[Tensor, Tensor]:
    """Return which keys a query sees, (batch, 1, seq, seq) bool, and each position in its document, (batch, seq) int64.

    documents (batch, seq) int64 numbers the document of each position, never falling along seq. A query sees the keys
    of its own document up to its own position; positions start at 0 in each document.
    """
    seq = documents.shape[1]
    index = torch.arange(seq, device=documents.device)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    start = torch.where(first, index, 0).cummax(dim=1).values  # of the document of each position
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril().unsqueeze(1), index - start


def _blocks(seq: int, per_group: int) -> list[tuple[int, int, slice]]:
    """Return (first position, end, rows) of each block of queries."""
    bounds = [(start, min(start + BLOCK, seq)) for start in range(0, seq, BLOCK)]
    return [(start, end, slice(start * per_group, end * per_group)) for start, end in bounds]


def _future(queries: Tensor, per_group: int) -> Tensor:
    """Return what is added to the scores of a block among itself: 0, and -inf where the key is in the future."""
    square = queries.new_full((BLOCK, BLOCK), -math.inf).triu(1)
    return square.repeat_interleave(per_group, dim=0)  # (rows of a block, BLOCK)


def _probabilities(queries: Tensor, keys: Tensor, future: Tensor, start: int) -> Tensor:
    """Return the softmax (n, rows, end) of a block's scaled queries (n, rows, D) over keys (n, end, D)."""
    scores = torch.bmm(queries, keys.transpose(1, 2))
    own = scores[:, :, start:]
    own += future[: own.shape[1], : own.shape[2]]
    return torch.softmax(scores, dim=-1, out=scores)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return mixed values (n, seq * per_group, D) of queries (n, seq * per_group, D); keys, values (n, seq, D)."""
        seq, width = keys.shape[1:]
        per_group = queries.shape[1] // seq
        queries = queries * width**-0.5
        future = _future(queries, per_group)
        out = torch.empty_like(queries)
        kept = []
        # kept for the gradient where they are few beside the other activations, otherwise computed again
        keep = seq <= 8 * width
        for start, end, rows in _blocks(seq, per_group):
            probabilities = _probabilities(queries[:, rows], keys[:, :end], future, start)
            out[:, rows] = torch.bmm(probabilities, values[:, :end])
            if keep:
                kept.append(probabilities)
        ctx.save_for_backward(queries, keys, values, future, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values, future, *kept = ctx.saved_tensors
        out_gradient = gradients[0].contiguous()
        seq, width = keys.shape[1:]
        per_group = queries.shape[1] // seq
        wide = torch.promote_types(keys.dtype, torch.float32)
        query_gradient = torch.empty_like(queries)
        key_gradient, value_gradient = (torch.zeros_like(x, dtype=wide) for x in (keys, values))
        for number, (start, end, rows) in enumerate(_blocks(seq, per_group)):
            block, block_gradient = queries[:, rows], out_gradient[:, rows]
            p = kept[number] if kept else _probabilities(block, keys[:, :end], future, start)
            p_gradient = torch.bmm(block_gradient, values[:, :end].transpose(1, 2))
            score_gradient = torch._softmax_backward_data(p_gradient, p, -1, p.dtype)
            _add_product(value_gradient[:, :end], p, block_gradient)
            _add_product(key_gradient[:, :end], score_gradient, block)
            torch.mul(torch.bmm(score_gradient, keys[:, :end]), width**-0.5, out=query_gradient[:, rows])
        return query_gradient, key_gradient.to(keys.dtype), value_gradient.to(values.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left^T right`` to ``total`` (n, end, D), of left (n, rows, end) and right (n, rows, D)."""
    if total.dtype == left.dtype:
        total.baddbmm_(left.transpose(1, 2), right)
    else:
        total += torch.bmm(left.transpose(1, 2), right)
