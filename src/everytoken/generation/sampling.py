"""Which token comes next: the logits of one position and a seeded generator give one id.

The order of steps is that of transformers: repetition penalty, temperature, top-k, top-p, min-p. All is computed in
float64, and of equal logits the lowest id comes first, so a draw depends on the logits and the generator alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everytoken.generation.parameters import GenerationParameters


def draw(logits: Tensor, seen: Tensor, parameters: GenerationParameters, generator: torch.Generator) -> int:
    """Return the id that is drawn.

    Args:
        logits: (vocab,), finite.
        seen: ids that the repetition penalty acts on, int64, each once or more often.
        generator: takes one draw; none at temperature 0.
    """
    logits = logits.double()
    if parameters.repetition_penalty != 1:
        logits = _penalised(logits, seen, parameters.repetition_penalty)
    if parameters.temperature == 0:
        return int((logits == logits.max()).nonzero()[0])
    kept, ids = _most_likely(logits, parameters.top_k)
    # relative to the largest, so that a tiny temperature gives exp(-inf) = 0 and not inf - inf
    probabilities = torch.softmax((kept - kept[0]) / parameters.temperature, dim=0)
    if parameters.top_p is not None:
        before = torch.cumsum(probabilities, 0) - probabilities
        probabilities = probabilities * (before < parameters.top_p)
    if parameters.min_p is not None:
        probabilities = probabilities * (probabilities >= parameters.min_p * probabilities[0])
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


def _penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    old = logits[seen]
    return logits.index_put((seen,), torch.where(old > 0, old / penalty, old * penalty))


def _most_likely(logits: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest logits, or all, in descending order, and their ids."""
    ids = torch.arange(len(logits))
    if count is not None and count < len(logits):
        ids = (logits >= torch.topk(logits, count).values[-1]).nonzero()[:, 0]  # more than count where some are equal
    ordered, places = torch.sort(logits[ids], descending=True, stable=True)
    return ordered[:count], ids[places[:count]]
