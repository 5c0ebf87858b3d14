"""Texts that a model continues, prompt by prompt.

Each prompt draws from a generator of its own, so its text does not depend on which other prompts there are. A
prompt follows an EOS, as a document does in the compact stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from everytoken.generation import Finish, GenerationError, NonFiniteLogits, PrefixReader, Reply, speak
from everytoken.models import LanguageModel
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.parameters import PromptParameters
from everytoken.training.step import autocast, execution

_Returned = TypeVar("_Returned")


@dataclass(frozen=True)
class Generated:
    """What followed a prompt, without EOS, and why it ended ("context": the model's context is full)."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    finish: Finish


def generate(model: LanguageModel, encoder: DocumentEncoder, parameters: PromptParameters) -> Iterator[Generated]:
    """Yield the continuation of each prompt, in order; the model stays on the device that it is on.

    Raises:
        TrainingError: a prompt leaves no room in the model's context.
        NonFiniteError: what the model computes is not finite.
    """
    for number, prompt in enumerate(parameters.prompts):
        try:
            with execution(parameters.execution), autocast(parameters.execution, model.output_weight().device.type):
                reply = _continuation(model, encoder, prompt, number, parameters)
        except NonFiniteLogits as error:
            raise NonFiniteError(str(error)) from error
        except GenerationError as error:
            raise TrainingError(f"prompt {number + 1}, with the EOS before it: {error}") from error
        yield Generated(prompt, reply.text, tuple(token.id for token in reply.tokens), reply.finish)


def _continuation(
    model: LanguageModel, encoder: DocumentEncoder, prompt: str, number: int, parameters: PromptParameters
) -> Reply:
    tokenizer = encoder.tokenizer
    encoded = encoder.encode([prompt])
    speaking = speak(
        PrefixReader(model),
        tokenizer.tokenizer,
        [tokenizer.eos_id, *encoded.values[:-1].tolist()],  # EOS before the prompt instead of after it
        parameters,
        ends={tokenizer.eos_id},
        key=[number],
        shows_special=True,
    )
    return _last(speaking)


def _last(speaking: Generator[str, None, _Returned]) -> _Returned:
    """Return what a generator returns."""
    while True:
        try:
            next(speaking)
        except StopIteration as ended:
            returned: _Returned = ended.value
            return returned
