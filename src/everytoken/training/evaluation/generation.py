"""Text from a model: seeded sampling with temperature and top-k, token by token with the model's cache.

Each prompt draws from a generator of its own, so its text does not depend on which other prompts there are. A
prompt follows an EOS, as a document does in the compact stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from everytoken.models import LanguageModel
from everytoken.seeds import torch_generator
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.parameters import GenerationParameters
from everytoken.training.step import autocast, execution

Finish = Literal["eos", "max_new_tokens", "context"]


@dataclass(frozen=True)
class Generated:
    """What followed a prompt, without EOS, and why it ended ("context": the model's context is full)."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    finish: Finish


def generate(model: LanguageModel, encoder: DocumentEncoder, parameters: GenerationParameters) -> Iterator[Generated]:
    """Yield the continuation of each prompt, in order.

    Raises:
        TrainingError: a prompt leaves no room in the model's context.
        NonFiniteError: what the model computes is not finite.
    """
    tokenizer = encoder.tokenizer
    for number, prompt in enumerate(parameters.prompts):
        encoded = encoder.encode([prompt])
        context = [tokenizer.eos_id, *encoded.values[:-1].tolist()]  # EOS before the prompt instead of after it
        with execution(parameters.execution):
            tokens, finish = generate_tokens(
                model,
                context,
                eos_id=tokenizer.eos_id,
                parameters=parameters,
                generator=torch_generator(parameters.seed, "generation", number),
            )
        text = tokenizer.tokenizer.decode(list(tokens), skip_special_tokens=False)
        yield Generated(prompt, text, tokens, finish)


@torch.inference_mode()
def generate_tokens(
    model: LanguageModel,
    context: Sequence[int],
    *,
    eos_id: int,
    parameters: GenerationParameters,
    generator: torch.Generator,
) -> tuple[tuple[int, ...], Finish]:
    """Return the tokens drawn after ``context`` (EOS excluded) and why drawing ended."""
    if not 1 <= len(context) <= model.max_seq_len:
        raise TrainingError(
            f"a prompt has {len(context)} tokens with the EOS before it, expected 1 to {model.max_seq_len}; shorten it"
        )
    model.eval()
    cache = model.new_cache()
    drawn: list[int] = []
    device = model.output_weight().device
    new = torch.tensor([list(context)], device=device)  # (1, new tokens)
    while len(drawn) < parameters.max_new_tokens:
        with autocast(parameters.execution):
            logits = model(new, cache)[0, -1]  # (vocab,)
        if not logits.isfinite().all():
            raise NonFiniteError(
                f"after {len(context) + len(drawn)} tokens of a prompt and its continuation the model's logits are not "
                "finite numbers: its training diverged"
            )
        token = draw(logits.cpu(), parameters.temperature, parameters.top_k, generator)
        if token == eos_id:
            return tuple(drawn), "eos"
        drawn.append(token)
        if cache.length == model.max_seq_len:
            return tuple(drawn), "context"
        new = torch.tensor([[token]], device=device)
    return tuple(drawn), "max_new_tokens"


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Draw from ``softmax(logits / temperature)`` over the ``top_k`` largest logits (vocab,); the largest at
    temperature 0.

    Of equal logits the one with the lowest id comes first, in top-k and at temperature 0.
    """
    ordered, ids = torch.sort(logits.double(), descending=True, stable=True)
    if temperature == 0:
        return int(ids[0])
    kept = ordered[:top_k]
    # relative to the largest, so that a tiny temperature gives exp(-inf) = 0 and not inf - inf
    probabilities = torch.softmax((kept - kept[0]) / temperature, dim=0)
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])
