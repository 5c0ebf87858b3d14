"""A reply, token by token."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from everytoken.generation.errors import NonFiniteLogits
from everytoken.generation.parameters import GenerationParameters
from everytoken.generation.prefix import PrefixReader
from everytoken.generation.sampling import draw
from everytoken.generation.text_pieces import TextPieces
from everytoken.seeds import torch_generator

Finish = Literal["eos", "stop", "max_new_tokens", "context"]


class DrawnToken(NamedTuple):
    """A token of a reply.

    ``logprob``: natural logarithm of its probability at temperature 1 without any filter; None where nobody asked.
    ``likely``: the most likely ids with theirs, in descending order.
    """

    id: int
    logprob: float | None = None
    likely: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Reply:
    """What was said: text without what ended it, ids with it where that is a token, and why it ended.

    ``eos``: an end of a document or of a turn was drawn. ``stop``: a text of ``stop``. ``context``: the model's context
    is full.
    """

    text: str
    tokens: tuple[DrawnToken, ...]
    finish: Finish
    prompt_tokens: int


def decode(
    reader: PrefixReader,
    prompt: Sequence[int],
    parameters: GenerationParameters,
    *,
    ends: Collection[int],
    generator: torch.Generator,
    likely: int | None = None,
) -> Generator[DrawnToken, None, Finish]:
    """Yield the tokens after a prompt; return why no more come. The token in ``ends`` that ends it is not among them.

    Args:
        ends: ids that end a reply.
        likely: how many of the most likely tokens each drawn one comes with; None: no logprob either.

    Raises:
        GenerationError: the prompt leaves no room in the model's context.
        NonFiniteLogits: what the model computes is not finite.
    """
    logits = reader.read_prompt(prompt)
    seen = list(prompt)
    for drawn in range(parameters.max_new_tokens):
        if not logits.isfinite().all():
            raise NonFiniteLogits(
                f"after {len(prompt) + drawn} tokens of a prompt and its continuation the model's logits are not "
                "finite numbers: its training diverged"
            )
        token = draw(logits, torch.tensor(seen), parameters, generator)
        if token in ends:
            return "eos"
        yield _with_logprob(logits, token, likely)
        seen.append(token)
        if reader.room == 0:
            return "context"
        if drawn + 1 < parameters.max_new_tokens:
            logits = reader.read_token(token)
    return "max_new_tokens"


def speak(
    reader: PrefixReader,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    parameters: GenerationParameters,
    *,
    ends: Collection[int],
    key: Sequence[str | int] = (),
    likely: int | None = None,
    shows_special: bool = False,
) -> Generator[str, None, Reply]:
    """Yield the text after a prompt in pieces as it is drawn; return all of it.

    Args:
        key: tells this reply from others of one seed.
        shows_special: whether special tokens are part of the text.
    """
    pieces = TextPieces(tokenizer, parameters.stop, shows_special=shows_special)
    generator = torch_generator(parameters.seed, "generation", *key)
    tokens: list[DrawnToken] = []
    drawing = decode(reader, prompt, parameters, ends=ends, generator=generator, likely=likely)
    finish: Finish
    while True:
        try:
            token = next(drawing)
        except StopIteration as ended:
            finish = ended.value
            break
        tokens.append(token)
        if piece := pieces.add(token.id):
            yield piece
        if pieces.is_stopped:
            finish = "stop"
            break
    if rest := pieces.finish():
        yield rest
    return Reply(pieces.text, tuple(tokens), finish, len(prompt))


def _with_logprob(logits: Tensor, token: int, likely: int | None) -> DrawnToken:
    if likely is None:
        return DrawnToken(token)
    logprobs = torch.log_softmax(logits.double(), dim=0)
    best = torch.topk(logprobs, likely)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return DrawnToken(token, float(logprobs[token]), tuple(pairs))
