"""What is remembered of tokens, in one slot for each time that a block attends: prelude, every loop, coda.

A position that halted after N loops has in all deeper slots what it was remembered as in its last loop. So each slot
has the same length, and a token can be read with fewer loops than there are slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everytoken.models.growing import written
from everytoken.models.open_mythos.attention import Memory


class LoopCache:
    """Memories (batch, length, ...) of all slots; how many loops each position took.

    The tensors have room for more positions than they hold: a new token is written and nothing is copied.
    """

    can_truncate = True

    def __init__(self, slots: int, loops: int) -> None:
        """``loops`` is the number that all calls on this cache may take at most."""
        self.length = 0
        self.loops = loops
        self._slots: list[Memory | None] = [None] * slots
        self._taken: Tensor | None = None

    def extend(self, slot: int, new: Memory) -> Memory:
        """Write new positions (batch, seq, ...) after the ``length`` that there are; return all of the slot."""
        first, second = self._slots[slot] or (None, None)
        held = written(new[0], first, self.length, 1), written(new[1], second, self.length, 1)
        self._slots[slot] = held
        end = self.length + new[0].shape[1]
        return held[0][:, :end], held[1][:, :end]

    def finish(self, taken: Tensor) -> None:
        """Count the new positions, of which each slot has the memory, and their loops (batch, seq) int64."""
        self._taken = written(taken, self._taken, self.length, 1)
        self.length += taken.shape[1]

    @property
    def taken(self) -> Tensor:
        """Loops that each position took, (batch, length) int64."""
        return torch.zeros(1, 0, dtype=torch.int64) if self._taken is None else self._taken[:, : self.length]

    @property
    def bytes(self) -> int:
        """Bytes of its tensors, with the room for positions to come."""
        memories = [x for held in self._slots if held is not None for x in held]
        return sum(x.nbytes for x in [*memories, *([] if self._taken is None else [self._taken])])

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self.length = min(self.length, length)

    def clone(self) -> LoopCache:
        """Return a copy that shares no tensor with this one."""
        copied = LoopCache(len(self._slots), self.loops)
        copied.length = self.length
        copied._slots = [None if held is None else (held[0].clone(), held[1].clone()) for held in self._slots]
        copied._taken = None if self._taken is None else self._taken.clone()
        return copied
