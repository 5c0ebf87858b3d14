"""Several sequences that grow at the same time: a token of each is read with one pass over the weights.

A pass takes most of its time for reading the weights, so eight sequences cost little more than one. The last bits of a
product depend on its shape, and on a CPU not on where in it a row is. So the number of places is fixed, and an empty
place reads a token that nobody asked for. Then what a sequence gets depends on no other one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everytoken.models import KeyValueCache, Llama


class SequencePlaces:
    """Reads tokens of up to ``places`` sequences of a Llama model."""

    def __init__(self, model: Llama, places: int) -> None:
        self._model, self._device = model.eval(), model.output_weight().device
        self._idle = [model.new_cache() for _ in range(places)]
        self._caches: list[KeyValueCache | None] = [None] * places

    @property
    def free(self) -> list[int]:
        """Places without a sequence."""
        return [place for place, cache in enumerate(self._caches) if cache is None]

    def take(self, place: int, cache: KeyValueCache) -> None:
        """Put a sequence, as far as it was read, into a place."""
        self._caches[place] = cache

    def leave(self, place: int) -> None:
        """Empty a place."""
        self._caches[place] = None

    @torch.inference_mode()
    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """Read the next token of the sequence in each place; return the logits (vocab,) after it, by place."""
        for cache in self._idle:
            cache.truncate(0)
        caches = [own if own is not None else idle for own, idle in zip(self._caches, self._idle, strict=True)]
        new = torch.tensor([[tokens.get(place, 0)] for place in range(len(caches))], device=self._device)
        weight = self._model.output_weight()
        states = self._model.next_states(new, caches)[:, 0]
        logits = torch.nn.functional.linear(states.to(weight.dtype), weight)
        logits = logits.to("cpu", torch.promote_types(logits.dtype, torch.float32))
        return {place: logits[place] for place in tokens}
