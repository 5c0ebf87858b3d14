"""Log-probabilities of tokens: of those that are drawn, and of those of a given text."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from everytoken.generation.errors import NonFiniteLogits
from everytoken.generation.prefix import PrefixReader

_ROWS = 16  # of float64 logits at once


class DrawnToken(NamedTuple):
    """A token of a reply, or of a text that was scored.

    ``logprob``: natural logarithm of its probability at temperature 1 without any filter; None where nobody asked, and
    for the first token of a text. ``likely``: the most likely ids with theirs, in descending order.
    """

    id: int
    logprob: float | None = None
    likely: tuple[tuple[int, float], ...] = ()


def with_logprobs(logits: Tensor, tokens: Sequence[int], likely: int) -> list[DrawnToken]:
    """Return tokens with their log-probabilities, given logits (rows, vocab), one row a token."""
    scored: list[DrawnToken] = []
    for rows, targets in zip(torch.split(logits, _ROWS), _split(tokens), strict=True):
        logprobs = torch.log_softmax(rows.double(), dim=1)
        own = logprobs[torch.arange(len(targets)), torch.tensor(targets)].tolist()
        best = torch.topk(logprobs, likely)
        for token, logprob, ids, values in zip(targets, own, best.indices.tolist(), best.values.tolist(), strict=True):
            scored.append(DrawnToken(token, logprob, tuple(zip(ids, values, strict=True))))
    return scored


def score(
    reader: PrefixReader, tokens: Sequence[int], likely: int = 0
) -> Generator[tuple[DrawnToken, ...], None, None]:
    """Yield the tokens of a text, each with its log-probability given those before, a block of the text at a time.

    The logits of a block are all that exist at once. The reader has read the text then.

    Args:
        likely: how many of the most likely tokens each one comes with.

    Raises:
        GenerationError: the text has no token, or more than the model's context.
        NonFiniteLogits: what the model computes is not finite.
    """
    done = 0
    for logits in reader.read_again(tokens):
        if not logits.isfinite().all():
            raise NonFiniteLogits(
                f"among the first {done + len(logits)} tokens of a text the model's logits are not finite numbers: its "
                "training diverged"
            )
        targets = tokens[done + 1 : done + 1 + len(logits)]
        scored = with_logprobs(logits[: len(targets)], targets, likely) if targets else []
        yield tuple([DrawnToken(tokens[0]), *scored] if done == 0 else scored)
        done += len(logits)


def _split(tokens: Sequence[int]) -> list[Sequence[int]]:
    return [tokens[start : start + _ROWS] for start in range(0, len(tokens), _ROWS)]
