"""What a model keeps of a prompt, so that of the next prompt only what differs is read.

The state of a position must not depend on what was kept, or a reply would change when a conversation is loaded again:
a product of one row and the same row in a product of many differ in their last bits. So a prompt is always read in
blocks of `PREFIX_BLOCK` tokens from its start on, and then the rest of it. Only whole blocks are kept for the next
prompt. Tokens that were drawn one by one are read again in blocks when they are part of a prompt.

Then the logits after a prompt are a function of model and prompt alone, on one machine with one number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from everytoken.generation.errors import GenerationError
from everytoken.models import Cache, LanguageModel

PREFIX_BLOCK = 64  # tokens read at once; more is faster for long prompts, and reads more of a reply again


class PrefixReader:
    """Reads prompts and the tokens after them, one sequence at a time."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model.eval()
        self._device = model.output_weight().device
        self._blocks: list[int] = []  # tokens of whole blocks, which `_whole` has read
        self._whole: Cache = model.new_cache()
        self._reading: Cache = self._whole  # the same object where it can be truncated
        self._prompt: list[int] | None = None  # that was read, while no token after it was
        self._after = torch.empty(0)  # its logits

    @property
    def model(self) -> LanguageModel:
        """The model."""
        return self._model

    @property
    def bytes(self) -> int:
        """Bytes of what is kept of tokens."""
        return self._whole.bytes + (0 if self._reading is self._whole else self._reading.bytes)

    @property
    def room(self) -> int:
        """How many tokens fit into the model's context after those that were read."""
        return self._model.context - self._reading.length

    def mean_loops(self, first: int) -> float | None:
        """Return how many loops the tokens from ``first`` on took; None where the model loops no block."""
        taken = self._reading.taken
        return None if taken is None else float(taken[0, first:].double().mean())

    def shared(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens need not be read again."""
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._blocks, tokens[:-1], strict=False)))
        return equal - equal % PREFIX_BLOCK

    @torch.inference_mode()
    def read_prompt(self, tokens: Sequence[int]) -> Tensor:
        """Read a prompt of at least one token; return the logits (vocab,) of what follows it.

        Raises:
            GenerationError: it has no token, or more than the model's context.
        """
        if self._prompt != list(tokens):
            for _ in self.read_blocks(tokens):
                pass
        return self._after

    @torch.inference_mode()
    def read_blocks(self, tokens: Sequence[int]) -> Iterator[None]:
        """Read a prompt as `read_prompt` does, which returns at once then; yield after each block, for other work.

        Raises:
            GenerationError: as `read_prompt`.
        """
        for _ in self._read(tokens, self.shared(tokens)):
            yield

    @torch.inference_mode()
    def read_again(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Read a prompt from its first token on, also what was kept; yield the logits (rows, vocab) of each block.

        Row i holds the logits of what follows token i. `read_prompt` of the same prompt returns at once then.

        Raises:
            GenerationError: as `read_prompt`.
        """
        for states in self._read(tokens, 0):
            yield self._logits(states)

    def kept(self) -> tuple[list[int], Cache]:
        """Return the tokens that need not be read again, and what the model keeps of them: whole blocks."""
        return list(self._blocks), self._whole

    def resume(self, tokens: Sequence[int], cache: Cache) -> None:
        """Go on from what `kept` returned."""
        self._blocks, self._whole, self._reading, self._prompt = list(tokens), cache, cache, None

    def copied_cache(self) -> Cache:
        """Return a copy of what is kept of the prompt and of the tokens after it."""
        return self._reading.clone()

    @torch.inference_mode()
    def read_token(self, token: int) -> Tensor:
        """Read one more token; return the logits (vocab,) of what follows it."""
        self._prompt = None
        return self._logits(self._states([token], self._reading))[0]

    def _read(self, tokens: Sequence[int], shared: int) -> Iterator[Tensor]:
        """Read all but the first ``shared`` tokens of a prompt; yield the states (rows, d_model) of each block."""
        if not 1 <= len(tokens) <= self._model.context:
            raise GenerationError(
                f"a prompt has {len(tokens):,} tokens, expected 1 to {self._model.context:,}, the model's context; "
                "shorten it"
            )
        self._prompt = None
        last = (len(tokens) - 1) // PREFIX_BLOCK * PREFIX_BLOCK
        for start in range(self._keep(shared), last, PREFIX_BLOCK):
            block = list(tokens[start : start + PREFIX_BLOCK])
            states = self._states(block, self._whole)
            self._blocks += block
            yield states
        self._reading = self._whole if self._whole.can_truncate else self._whole.clone()
        states = self._states(tokens[last:], self._reading)
        self._prompt, self._after = list(tokens), self._logits(states[-1:])[0]
        yield states

    def _keep(self, shared: int) -> int:
        """Forget all but the first tokens; return how many are kept: none where a state cannot go back."""
        if self._whole.can_truncate:
            self._whole.truncate(shared)
        elif shared < self._whole.length:
            self._whole, shared = self._model.new_cache(), 0
        del self._blocks[shared:]
        return shared

    def _states(self, tokens: Sequence[int], cache: Cache) -> Tensor:
        new = torch.tensor([list(tokens)], device=self._device)
        return self._model.hidden_states(new, cache)[0]  # (tokens, d_model)

    def _logits(self, states: Tensor) -> Tensor:
        weight = self._model.output_weight()
        logits = torch.nn.functional.linear(states.to(weight.dtype), weight)
        return logits.to("cpu", torch.promote_types(logits.dtype, torch.float32))
