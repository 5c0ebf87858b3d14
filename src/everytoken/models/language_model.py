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
- Weight decay acts on parameters of two axes or more. A family with others that must not decay names them in
  ``decays``.
- A draw in training, such as the number of loops, is a pure function of the `TrainingPoint`: of the seed and the step,
  so that neither processes nor the micro-batch size nor a restart can change it.
- Further terms of the loss (balance of experts, cost of pondering) are sums over positions like the cross-entropy.
  The family keeps them of its last ``hidden_states``; ``training.step.objective.Objective`` asks for them within the
  one forward pass that DDP and FSDP2 see.
- What changes after an optimiser step without a gradient (the bias of a router) is a buffer, so that checkpoints hold
  it. What is counted for it since the last step is none: a checkpoint is made between two steps.
- Every parameter with a gradient takes part in each forward pass of training. All processes call the same layers
  equally often.
- With activation checkpointing a layer is run a second time for its gradient: what it counts has to be counted once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from everytoken.models.errors import ModelsError


class Cache(Protocol):
    """What a family keeps of the tokens it has read; ``length`` counts them, and ``hidden_states`` appends.

    It may be a state of constant size, which holds no token that it could give back.
    """

    length: int

    @property
    def taken(self) -> Tensor | None:
        """Loops that each token took, (batch, length) int64; None where no block is looped."""

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


@dataclass(frozen=True)
class TrainingPoint:
    """Where in a training run a forward pass is: the run's seed, the optimiser step (0-based) of so many."""

    seed: int
    step: int
    steps: int


class LanguageModel(nn.Module, ABC):
    """A causal model: the state at position t depends on tokens 0..t only."""

    # names of the further terms of the loss, in the order of `further_losses`
    further_terms: tuple[str, ...] = ()

    # whether a training step keeps only the input of each layer and computes the rest again: less memory, more time
    activation_checkpointing: bool = False

    def __init__(self, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__()
        if vocab_size < 1 or max_seq_len < 1:
            raise ModelsError(f"vocab_size and max_seq_len must be at least 1, found {vocab_size} and {max_seq_len}")
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len

    @property
    def loops(self) -> int | None:
        """How often a looped block is run at most outside training; None where no block is looped."""
        return None

    @loops.setter
    def loops(self, loops: int) -> None:
        raise ModelsError("this family runs each layer once: only a model that loops a block takes a number of loops")

    @abstractmethod
    def hidden_states(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq).

        With a cache, the tokens continue those already in it, and the cache is extended in place. With ``documents``
        (batch, seq) int64, the number of the document of each position, never falling along seq, the states of each
        document are those of this document alone. Raises ``ModelsError`` when cached and new tokens together exceed
        ``context``, and when both a cache and documents are given.
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

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Return whether weight decay acts on a parameter: on matrices, not on norms and biases."""
        return parameter.ndim >= 2

    def begin(self, point: TrainingPoint | None) -> None:
        """Take the place in training of the forward passes that follow; None: they are no part of training.

        A model is not in training when it is made. What a family counts for `after_step`, it counts in training alone.
        """

    def further_losses(self, counted: Tensor) -> tuple[Tensor, ...]:
        """Return the terms that ``further_terms`` names, scalars with a gradient, of the last ``hidden_states``.

        counted (batch, seq) bool: the positions whose prediction counts in the loss. Each term is weighted, and a sum
        over these positions as the cross-entropy is: what is a mean over a sequence is multiplied by their number in
        that sequence. Asked once after each ``hidden_states`` in training.
        """
        return ()

    def after_step(self, add: Callable[[Tensor], Tensor], updated: bool) -> None:
        """Change what is learned without a gradient, after an optimiser step of all processes.

        ``add`` returns the sum of a tensor over processes; all call it alike. Not ``updated``: the step was skipped, so
        what was counted since the last step is dropped, and nothing changes.
        """

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return float32 (or wider) logits (batch, seq, vocab_size) of int64 tokens (batch, seq)."""
        weight = self.output_weight()
        logits = nn.functional.linear(self.hidden_states(tokens, cache).to(weight.dtype), weight)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def context(self) -> int:
        """The most tokens of one sequence, cached and new."""
        return self.max_seq_len

    def checked_positions(self, tokens: Tensor, past: int) -> tuple[int, int]:
        """Return the first position of ``tokens`` and the one after the last, or raise if they do not fit."""
        end = past + tokens.shape[-1]
        if end > self.context:
            raise ModelsError(
                f"sequence too long: {past} cached + {tokens.shape[-1]} new = {end} tokens, the model was "
                f"built for at most max_seq_len = {self.context}; cut the input or train with a larger seq_length"
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


def recomputed(layer: nn.Module, *arguments: Any) -> Any:
    """Return ``layer(*arguments)``, computed again for its gradient instead of kept; the same bits."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
