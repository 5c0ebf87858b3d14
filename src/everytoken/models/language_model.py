"""What training, evaluation and generation ask of a model, whatever its family.

A family splits its forward pass in two: ``hidden_states`` up to and with the final norm, and
``output_weight``, the matrix that turns a state into logits. The loss multiplies the two in row chunks, so
the logits of a whole batch never exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from everytoken.models.errors import ModelsError


class Cache(Protocol):
    """What a family keeps of the tokens it has read; ``length`` counts them."""

    length: int


class LanguageModel(nn.Module, ABC):
    """A causal model: the state at position t depends on tokens 0..t only."""

    def __init__(self, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__()
        if vocab_size < 1 or max_seq_len < 1:
            raise ModelsError(f"vocab_size and max_seq_len must be at least 1, found {vocab_size} and {max_seq_len}")
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len

    @abstractmethod
    def hidden_states(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq).

        With a cache, the tokens continue those already in it, and the cache is extended in place. Raises
        ``ModelsError`` when cached and new tokens together exceed ``max_seq_len``.
        """

    @abstractmethod
    def output_weight(self) -> Tensor:
        """Return the output matrix (vocab_size, d_model)."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """Return an empty cache for one batch of sequences."""

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return float32 (or wider) logits (batch, seq, vocab_size) of int64 tokens (batch, seq)."""
        logits = nn.functional.linear(self.hidden_states(tokens, cache), self.output_weight())
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def checked_positions(self, tokens: Tensor, past: int) -> tuple[int, int]:
        """Return the first position of ``tokens`` and the one after the last, or raise if they do not fit."""
        end = past + tokens.shape[-1]
        if end > self.max_seq_len:
            raise ModelsError(
                f"sequence too long: {past} cached + {tokens.shape[-1]} new = {end} tokens, the model was "
                f"built for at most max_seq_len = {self.max_seq_len}; cut the input or train with a larger seq_length"
            )
        return past, end
