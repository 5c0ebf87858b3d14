"""The chunked form of a linear recurrence with decay: exact, and made of matrix products.

The recurrence, for a head of width P with a state S of P x N and rank R:

    S_t = exp(a_t) S_{t-1} + sum over r of v_{t,r} k_{t,r}^T,    o_{t,r} = S_t q_{t,r}

Token j adds ``v_j k_j^T``, with weight ``now_j`` for itself and ``before_j`` for later tokens. So the coefficient of
(v_j, k_j) in o_t is ``exp(c_t - c_j) before_j`` for j < t, c the running sum of a, and ``now_t`` for j = t. Within
chunks of Q tokens that is a product of Q R x Q R; between chunks the state is carried on (Dao and Gu 2024, section 6).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def chunked_scan(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    before: Tensor,
    now: Tensor,
    *,
    chunk: int,
    state: Tensor | None = None,
    documents: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what the queries read, (batch, seq, heads, rank, P), and the state after the last token.

    Args:
        queries, keys: (batch, seq, heads, rank, N).
        values: (batch, seq, heads, rank, P).
        log_decay: a, (batch, seq, heads), at most 0.
        before, now: weights of a token for later tokens and for itself, (batch, seq, heads).
        chunk: Q, tokens of a chunk. It changes time and memory, and the last bits.
        state: (batch, heads, P, N) that the first token finds, weights of the first token included; None: zero.
        documents: (batch, seq), number of the document of each token, never falling along seq. A token reads nothing of
            other documents. ``before`` has to be 0 where the next token begins a document.
    """
    seq, rank = queries.shape[1], queries.shape[3]
    chunk = min(chunk, seq)
    queries, keys, values = (_chunks(x, chunk).flatten(3, 4) for x in (queries, keys, values))  # (.., Q rank, N or P)
    log_decay, before, now = (_chunks(x, chunk) for x in (log_decay, before, now))  # (batch, chunks, heads, Q)
    decays = log_decay.cumsum(-1)
    whole = decays[..., -1:]
    to_end, from_start, kept = (whole - decays).exp() * before, decays.exp(), whole.exp()
    weights = _weights(decays, before, now)
    if documents is not None:
        numbers = _chunks(documents[..., None], chunk, repeat_last=True)
        last = numbers[..., -1:]
        first = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), dim=1)  # of the token before the chunk
        weights = weights * (numbers[..., :, None] == numbers[..., None, :])
        to_end, from_start, kept = to_end * (numbers == last), from_start * (numbers == first), kept * (last == first)
    scores = queries @ keys.transpose(-1, -2)  # (batch, chunks, heads, Q rank, Q rank)
    by_token = scores.view(*scores.shape[:3], chunk, rank, chunk, rank) * weights[..., :, None, :, None]
    mixed = by_token.view_as(scores) @ values
    added = (values * _each_rank(to_end, rank)).transpose(-1, -2) @ keys  # (batch, chunks, heads, P, N)
    found, state = _carried(added, kept[..., None], state)
    mixed = mixed + (queries @ found.transpose(-1, -2)) * _each_rank(from_start, rank)
    mixed = mixed.reshape(*mixed.shape[:3], chunk, rank, -1)
    return mixed.transpose(2, 3).flatten(1, 2)[:, :seq], state


def _chunks(x: Tensor, chunk: int, repeat_last: bool = False) -> Tensor:
    """Return (batch, seq, heads, ..) as (batch, chunks, heads, chunk, ..); what is added at the end is 0.

    A token with a log decay of 0 and weights of 0 leaves the state as it is.
    """
    missing = -x.shape[1] % chunk
    if missing and repeat_last:
        x = torch.cat((x, x[:, -1:].expand(-1, missing, -1)), dim=1)
    elif missing:
        x = pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.reshape(x.shape[0], -1, chunk, *x.shape[2:]).transpose(2, 3)


def _weights(decays: Tensor, before: Tensor, now: Tensor) -> Tensor:
    """Return the coefficients (batch, chunks, heads, Q, Q) of tokens (last axis) for the tokens of their chunk."""
    size = decays.shape[-1]
    earlier = torch.ones(size, size, dtype=torch.bool, device=decays.device).tril(-1)
    between = decays[..., :, None] - decays[..., None, :]
    between = between.masked_fill(~earlier, -torch.inf)  # before exp: it overflows above the diagonal
    return between.exp() * before[..., None, :] + torch.diag_embed(now)


def _each_rank(weights: Tensor, rank: int) -> Tensor:
    """Return weights (.., Q) of tokens as (.., Q rank, 1)."""
    return weights[..., :, None].expand(*weights.shape, rank).flatten(-2)[..., None]


def _carried(added: Tensor, kept: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the state that each chunk finds (batch, chunks, heads, P, N), and the one after the last chunk."""
    added = added.to(kept.dtype)  # the state is float32 also where products are bfloat16
    current = torch.zeros_like(added[:, 0]) if state is None else state
    found = []
    for share, new in zip(kept.unbind(1), added.unbind(1), strict=True):
        found.append(current)
        current = share * current + new
    return torch.stack(found, dim=1), current
