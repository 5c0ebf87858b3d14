"""Texts that a model continues, prompt by prompt.

Each prompt draws from a generator of its own, so its text does not depend on which other prompts there are. A
prompt follows an EOS, as a document does in the compact stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tokenizers import Tokenizer

from everytoken.generation import Finish, GenerationError, NonFiniteLogits, PrefixReader, speak
from everytoken.models import LanguageModel
from everytoken.progress import progress
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.parameters import PromptParameters
from everytoken.training.step import autocast, execution

_Returned = TypeVar("_Returned")


@dataclass(frozen=True)
class Generated:
    """What followed a prompt, without EOS, and why it ended ("context": the model's context is full).

    ``loops``: mean number of loops behind a drawn token, None where the model loops no block.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    finish: Finish
    loops: float | None = None


def generate(model: LanguageModel, encoder: DocumentEncoder, parameters: PromptParameters) -> Iterator[Generated]:
    """Yield the continuation of each prompt, in order; the model stays on the device that it is on.

    Raises:
        TrainingError: a prompt leaves no room in the model's context.
        NonFiniteError: what the model computes is not finite.
    """
    ids = [encoder.encode([prompt]).values[:-1].tolist() for prompt in parameters.prompts]  # without EOS
    yield from continue_prompts(model, encoder.tokenizer.tokenizer, encoder.tokenizer.eos_id, ids, parameters)


def continue_prompts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    eos_id: int,
    prompts: Sequence[Sequence[int]],
    parameters: PromptParameters,
) -> Iterator[Generated]:
    """Yield what `generate` does, with any tokenizer.

    Args:
        prompts: the ids of each of ``parameters.prompts``.
    """
    given = progress(zip(parameters.prompts, prompts, strict=True), len(prompts), "generating", "prompt")
    for number, (text, ids) in enumerate(given):
        speaking = speak(
            PrefixReader(model),
            tokenizer,
            [eos_id, *ids],  # EOS before the prompt, as before a document
            parameters,
            ends={eos_id},
            key=[number],
            shows_special=True,
        )
        try:
            with execution(parameters.execution), autocast(parameters.execution, model.output_weight().device.type):
                reply = _last(speaking)
        except NonFiniteLogits as error:
            raise NonFiniteError(str(error)) from error
        except GenerationError as error:
            raise TrainingError(f"prompt {number + 1}, with the EOS before it: {error}") from error
        yield Generated(text, reply.text, tuple(token.id for token in reply.tokens), reply.finish, reply.loops)


def _last(speaking: Generator[str, None, _Returned]) -> _Returned:
    """Return what a generator returns."""
    while True:
        try:
            next(speaking)
        except StopIteration as ended:
            returned: _Returned = ended.value
            return returned
