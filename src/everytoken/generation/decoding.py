"""A reply, token by token."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from tokenizers import Tokenizer

from everytoken.generation.errors import NonFiniteLogits
from everytoken.generation.logprobs import DrawnToken, with_logprobs
from everytoken.generation.parameters import GenerationParameters
from everytoken.generation.prefix import PrefixReader
from everytoken.generation.sampling import draw
from everytoken.generation.text_pieces import TextPieces
from everytoken.seeds import torch_generator

Finish = Literal["eos", "stop", "max_new_tokens", "context"]


class Step(NamedTuple):
    """What one step of a reply brought: text that is certain now, and the token that was drawn.

    A step that reads a block of the prompt brings neither.
    """

    text: str = ""
    token: DrawnToken | None = None


class Ending(NamedTuple):
    """Why a reply ended, and the token that ended it, where one was drawn that is no part of it."""

    finish: Finish
    token: DrawnToken | None = None


@dataclass(frozen=True)
class Reply:
    """What was said: text without what ended it, ids with it where that is a token, and why it ended.

    ``eos``: an end of a document or of a turn was drawn. ``stop``: a text of ``stop``. ``context``: the model's context
    is full. ``end``: the token that ``eos`` drew. ``loops``: mean number of loops behind a drawn token, None where the
    model loops no block.
    """

    text: str
    tokens: tuple[DrawnToken, ...]
    finish: Finish
    prompt_tokens: int
    end: DrawnToken | None = None
    loops: float | None = None


def decode(
    reader: PrefixReader,
    prompt: Sequence[int],
    parameters: GenerationParameters,
    *,
    ends: Collection[int],
    generator: torch.Generator,
    likely: int | None = None,
) -> Generator[DrawnToken, None, Ending]:
    """Yield the tokens after a prompt; return why no more come. The token in ``ends`` that ends it is not among them.

    Args:
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
        scored = DrawnToken(token) if likely is None else with_logprobs(logits[None], [token], likely)[0]
        if token in ends:
            return Ending("eos", scored)
        yield scored
        seen.append(token)
        if reader.room == 0:
            return Ending("context")
        if drawn + 1 < parameters.max_new_tokens:
            logits = reader.read_token(token)
    return Ending("max_new_tokens")


def speak_in_steps(
    reader: PrefixReader,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    parameters: GenerationParameters,
    *,
    ends: Collection[int],
    key: Sequence[str | int] = (),
    likely: int | None = None,
    shows_special: bool = False,
) -> Generator[Step, None, Reply]:
    """Yield a reply as `speak` does, step by step: at most one block of the prompt or one token is read in each."""
    for _ in reader.read_blocks(prompt):
        yield Step()
    pieces = TextPieces(tokenizer, parameters.stop, shows_special=shows_special)
    generator = torch_generator(parameters.seed, "generation", *key)
    tokens: list[DrawnToken] = []
    drawing = decode(reader, prompt, parameters, ends=ends, generator=generator, likely=likely)
    ending = Ending("stop")
    while not pieces.is_stopped:
        try:
            token = next(drawing)
        except StopIteration as ended:
            ending = ended.value
            break
        tokens.append(token)
        yield Step(pieces.add(token.id), token)
    if rest := pieces.finish():
        yield Step(rest)
    return Reply(
        pieces.text, tuple(tokens), ending.finish, len(prompt), ending.token, reader.mean_loops(len(prompt) - 1)
    )


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
    steps = speak_in_steps(
        reader, tokenizer, prompt, parameters, ends=ends, key=key, likely=likely, shows_special=shows_special
    )
    while True:
        try:
            step = next(steps)
        except StopIteration as ended:
            reply: Reply = ended.value
            return reply
        if step.text:
            yield step.text
