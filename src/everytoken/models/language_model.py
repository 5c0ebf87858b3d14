"""What training, evaluation and generation ask of a model, whatever its family.

The contract. A family splits its forward pass in two: ``hidden_states`` up to and with the final norm, and
``output_weight``, the matrix that turns a state into logits. The loss multiplies the two in row chunks, so
the logits of a whole batch never exist. Beside these:

- Arithmetic: parameters are float32, or float64 in tests, or bfloat16 where a model is only read; norms, residual
  stream and what is summed over many steps (a recurrent state, weights of halting) are float32 or wider, also under
  autocast. The same call gives the same bits: no draw in a forward pass but from a generator of ``everytoken.seeds``
  that the caller's step number seeds.
- ``layers``: the parts, alike and in order, that training compiles, spreads over processes and recomputes one by one.
  What they need is passed as tensors (tables of positions, masks): a look into the model from a layer would break the
  compiled graph. A family that runs a layer many times names it once.
- Sizes: ``flop_per_token`` is how often a parameter is used, not how many there are: a looped or routed family counts
  the uses of one token.
- Weight decay acts on parameters of two axes or more (``training.step.loop.decays``). A family with tables of two axes
  that must not decay says so there, by name.
- Further terms of the loss (balance of experts, cost of pondering) are sums over positions like the cross-entropy.
  They belong into ``training.step.objective.Objective``, whose forward pass is the one that DDP and FSDP2 see: the
  family keeps them of its last ``hidden_states``, the objective adds them. What changes after an optimiser step
  without a gradient (the bias of a router) is a buffer, so that checkpoints hold it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, Self, cast

import torch
from torch import Tensor, nn

from everytoken.models.errors import ModelsError


class Cache(Protocol):
    """What a family keeps of the tokens it has read; ``length`` counts them, and ``hidden_states`` appends.

    It may be a state of constant size, which holds no token that it could give back.
    """

    length: int

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""

    @property
    def can_truncate(self) -> bool:
        """Whether `truncate` is possible."""

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ``ModelsError`` where that is not possible."""

    def clone(self) -> Self:
        """Return a copy that shares no tensor with this one."""


class LanguageModel(nn.Module, ABC):
    """A causal model: the state at position t depends on tokens 0..t only."""

    # whether a training step keeps only the input of each layer and computes the rest again: less memory, more time
    activation_checkpointing: bool = False

    def __init__(self, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__()
        if vocab_size < 1 or max_seq_len < 1:
            raise ModelsError(f"vocab_size and max_seq_len must be at least 1, found {vocab_size} and {max_seq_len}")
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len

    @abstractmethod
    def hidden_states(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq).

        With a cache, the tokens continue those already in it, and the cache is extended in place. With ``documents``
        (batch, seq) int64, the number of the document of each position, never falling along seq, the states of each
        document are those of this document alone. Raises ``ModelsError`` when cached and new tokens together exceed
        ``max_seq_len``, and when both a cache and documents are given.
        """

    @abstractmethod
    def output_weight(self) -> Tensor:
        """Return the output matrix (vocab_size, d_model)."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """Return an empty cache for one batch of sequences."""

    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """Return the parts that are compiled, sharded and recomputed one by one."""

    @abstractmethod
    def flop_per_token(self, seq_length: int) -> float:
        """Return the floating-point operations of a forward and backward pass a token, in windows of seq_length."""

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return float32 (or wider) logits (batch, seq, vocab_size) of int64 tokens (batch, seq)."""
        weight = self.output_weight()
        logits = nn.functional.linear(self.hidden_states(tokens, cache).to(weight.dtype), weight)
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

    def check_documents(self, tokens: Tensor, cache: Cache | None, documents: Tensor | None) -> None:
        """Raise unless the numbers of documents, if any, fit the tokens and there is no cache beside them."""
        if documents is None:
            return
        if documents.shape != tokens.shape:
            raise ModelsError(f"documents: expected the shape {tuple(tokens.shape)}, found {tuple(documents.shape)}")
        if cache is not None:
            raise ModelsError("a cache holds one document a row; found numbers of documents too: give one of the two")


def recomputed(layer: nn.Module, *arguments: Tensor | None) -> Tensor:
    """Return ``layer(*arguments)``, computed again for its gradient instead of kept; the same bits."""
    from torch.utils.checkpoint import checkpoint

    return cast(Tensor, checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False))
