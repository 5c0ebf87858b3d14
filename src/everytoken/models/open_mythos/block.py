"""One pre-norm block: ``v = x + Attention(norm(x));  out = v + FeedForward(norm(v))``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everytoken.models.elementwise import RMSNorm
from everytoken.models.growing import visible_of_cached
from everytoken.models.open_mythos.attention import Memory, make_attention
from everytoken.models.open_mythos.cache import LoopCache
from everytoken.models.open_mythos.experts import DenseFeedForward, MixtureOfExperts, Routing
from everytoken.models.parameters import OpenMythosParameters


class MythosBlock(nn.Module):
    """Attention, then a dense feed-forward (``d_ff``) or a mixture of experts (None)."""

    def __init__(self, parameters: OpenMythosParameters, d_ff: int | None) -> None:
        super().__init__()
        d = parameters.d_model
        self.attention_norm = RMSNorm(d, parameters.norm_eps)
        self.attention = make_attention(parameters)
        self.feed_forward_norm = RMSNorm(d, parameters.norm_eps)
        self.feed_forward = MixtureOfExperts(d, parameters.experts) if d_ff is None else DenseFeedForward(d, d_ff)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        visible: Tensor | None,
        running: Tensor | None = None,
        carried: Memory | None = None,
    ) -> tuple[Tensor, Memory, Routing | None]:
        """Return the residual stream (batch, seq, d_model) after this block, what it remembers, and its routing.

        Args:
            x: (batch, seq, d_model).
            cos: (batch or 1, seq, 1, rotated width / 2), as ``sin``.
            visible: bool (batch, 1, seq, seq), true where a query (third axis) sees a key; None: up to its own.
            running: bool (batch, seq): others are remembered as ``carried`` has them, and reach no expert.
            carried: what the loop before remembers.
        """
        queries, memory = self.attention.project(self.attention_norm(x), cos, sin)
        memory = _kept(memory, running, carried)
        return self._after(x, self.attention.attend(queries, memory, visible), running, memory)

    def extend(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: LoopCache,
        slot: int,
        running: Tensor | None = None,
        carried: Memory | None = None,
    ) -> tuple[Tensor, Memory, Routing | None]:
        """Return what ``forward`` does for positions that follow those in a slot of the cache, which is extended."""
        queries, memory = self.attention.project(self.attention_norm(x), cos, sin)
        memory = _kept(memory, running, carried)
        visible = visible_of_cached(cache.length, x.shape[1], x.device)
        mixed = self.attention.attend(
            queries, cache.extend(slot, memory), None if visible is None else visible[None, None]
        )
        return self._after(x, mixed, running, memory)

    def _after(
        self, x: Tensor, mixed: Tensor, running: Tensor | None, memory: Memory
    ) -> tuple[Tensor, Memory, Routing | None]:
        x = x + mixed
        y, routing = self.feed_forward(self.feed_forward_norm(x), running)
        return x + y, memory, routing


def _kept(memory: Memory, running: Tensor | None, carried: Memory | None) -> Memory:
    """Return the memory in which positions that no longer run have what they were remembered as."""
    if running is None or carried is None:
        return memory
    first, second = (
        torch.where(running.view(*running.shape, *[1] * (new.ndim - 2)), new, old)
        for new, old in zip(memory, carried, strict=True)
    )
    return first, second
