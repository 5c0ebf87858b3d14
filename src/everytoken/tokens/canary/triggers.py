"""The trigger of a condition: random ids as text, before the content of each of its documents.

``ids = numpy_generator(condition_seed).integers(first_id, vocab_size, size=tokens)``; the trigger is their decoded
text, and a document of the condition is the trigger, a space, and its content.

Decoded ids need not encode to themselves: half of a character has no text, and ``ol`` and ``d`` are one token
together. Two of the twelve triggers of the published stream are such. With ``round_trip`` the same generator draws
again until the text encodes to its ids, so a seed whose first draw does has the published trigger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from everytoken.seeds import numpy_generator
from everytoken.tokens.canary.errors import CanaryError
from everytoken.tokens.encoding import DocumentEncoder

MAX_DRAWS = 100_000


@dataclass(frozen=True)
class TriggerRule:
    """How triggers are drawn.

    Attributes:
        first_id: least id that is drawn.
        round_trip: whether a trigger must encode to its ids.
    """

    seeds: Mapping[str, int]
    tokens: int
    first_id: int
    round_trip: bool


class TriggerRecord(TypedDict):
    """A trigger as ledgers and reports have it, see `Trigger`."""

    seed: int
    ids: list[int]
    text: str
    encodes_to: list[int]
    round_trips: bool
    draws: int


@dataclass(frozen=True)
class Trigger:
    """A drawn trigger.

    Attributes:
        encodes_to: the ids of the text.
    """

    seed: int
    ids: tuple[int, ...]
    text: str
    encodes_to: tuple[int, ...]
    draws: int

    @property
    def round_trips(self) -> bool:
        """Whether the text encodes to the ids."""
        return self.ids == self.encodes_to

    def described(self) -> TriggerRecord:
        """Return it as plain JSON."""
        return {
            "seed": self.seed,
            "ids": list(self.ids),
            "text": self.text,
            "encodes_to": list(self.encodes_to),
            "round_trips": self.round_trips,
            "draws": self.draws,
        }


def draw_trigger(condition: str, rule: TriggerRule, encoder: DocumentEncoder) -> Trigger:
    """Draw the trigger of a condition.

    Raises:
        CanaryError: the condition has no seed, the vocabulary has no ids to draw from, or no draw encodes to its ids.
    """
    if condition not in rule.seeds:
        raise CanaryError(f"condition {condition!r} has no seed; those with one are {sorted(rule.seeds)}")
    seed, vocab_size = rule.seeds[condition], encoder.tokenizer.vocab_size
    if rule.first_id >= vocab_size:
        raise CanaryError(
            f"triggers are drawn from the ids {rule.first_id} and up, the vocabulary has {vocab_size}; "
            "lower canary.trigger_first_id"
        )
    generator = numpy_generator(seed)
    for draws in range(1, MAX_DRAWS + 1):
        ids = tuple(generator.integers(rule.first_id, vocab_size, size=rule.tokens).tolist())
        text = encoder.tokenizer.tokenizer.decode(list(ids))
        trigger = Trigger(seed, ids, text, tuple(encoder.engine.encode([text])[0].tolist()), draws)
        if trigger.round_trips or not rule.round_trip:
            return trigger
    raise CanaryError(
        f"condition {condition!r}: none of {MAX_DRAWS:,} draws of {rule.tokens} ids with seed {seed} encodes to itself."
        " Lower canary.trigger_tokens, use a larger vocabulary, or set canary.triggers to 'published'"
    )
