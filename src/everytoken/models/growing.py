"""What the caches of attention share: tensors with room for tokens to come, and which cached keys a query sees."""

from __future__ import annotations

import torch
from torch import Tensor


def written(new: Tensor, held: Tensor | None, length: int, axis: int) -> Tensor:
    """Return ``held`` with ``new`` behind its first ``length`` positions along ``axis``.

    Where there is no room, the tensor that is returned is a larger one, for twice as many positions as it holds.
    """
    end = length + new.shape[axis]
    if held is None or end > held.shape[axis]:
        room = new.new_zeros(*new.shape[:axis], 2 * end, *new.shape[axis + 1 :])
        if held is not None:
            room.narrow(axis, 0, length).copy_(held.narrow(axis, 0, length))
        held = room
    held.narrow(axis, length, new.shape[axis]).copy_(new)
    return held


def visible_of_cached(past: int, queries: int, device: torch.device) -> Tensor | None:
    """Return which of ``past + queries`` keys each query sees, bool (queries, keys): key j where j <= past + i.

    None where no mask is needed: for one query, which sees all, and without a past, where a causal product does it.
    """
    if not past or queries == 1:
        return None
    return torch.ones(queries, past + queries, dtype=torch.bool, device=device).tril(past)
