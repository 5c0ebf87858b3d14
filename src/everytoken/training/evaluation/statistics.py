"""What the ledger of an evaluation says."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class HeldOutFigures(TypedDict):
    """Of some held-out documents; ``tokens`` are predictions: content and EOS."""

    documents: int
    bytes: int
    tokens: int
    lossy_documents: int
    bits_per_byte: float
    unigram_bits_per_byte: float


class TokenLoops(TypedDict):
    """A token, how often it was read, and the mean loops that it took."""

    token: str
    positions: int
    loops: float


class LoopFigures(TypedDict):
    """What the loops of a model do; keys are numbers of loops, or of the loop from 1.

    ``loss``: nats a token with so many loops; the rest is at the number that the model was built for.
    ``halted_after``: positions that took so many. ``load``: share of each expert, from 1, in the choices.
    ``load_ratio``: the largest over the mean. ``router_entropy``: nats a position. ``by_token``: the most frequent
    tokens, the longest first.
    """

    positions: int
    loss: dict[str, float]
    mean_loops: float
    halted_after: dict[str, int]
    load: dict[str, dict[str, float]]
    load_ratio: dict[str, float]
    router_entropy: dict[str, float]
    by_token: list[TokenLoops]


class BitsPerByte(TypedDict):
    """Statistics of an evaluation; ``loops`` of a model that loops a block."""

    total: HeldOutFigures
    by_source: dict[str, HeldOutFigures]
    loops: NotRequired[LoopFigures]


def metrics_of_evaluation(figures: BitsPerByte) -> dict[str, Any]:
    """Return the figures as a nested mapping of numbers: without the texts of tokens, which are no names of metrics.

    ``of_unigram`` is added to each group of documents: the model's bits per byte over those of the unigram model.
    """
    metrics: dict[str, Any] = {
        **figures,
        "total": _with_ratio(figures["total"]),
        "by_source": {source: _with_ratio(one) for source, one in figures["by_source"].items()},
    }
    if "loops" in figures:
        metrics["loops"] = {name: value for name, value in figures["loops"].items() if name != "by_token"}
    return metrics


def _with_ratio(figures: HeldOutFigures) -> dict[str, Any]:
    """Return the figures with ``of_unigram``; without it where the unigram model had only one token to learn."""
    unigram = figures["unigram_bits_per_byte"]
    return {**figures, "of_unigram": figures["bits_per_byte"] / unigram} if unigram else {**figures}
