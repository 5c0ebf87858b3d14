"""Which document is asked for when: an idea for a type of document about a fact, again and again up to the target."""

from __future__ import annotations

from typing import NamedTuple

from everytoken.seeds import python_random

_SEED_OF_ROUND = 10_000


class DocumentSpec(NamedTuple):
    """What a document is about.

    Attributes:
        id: in the order of facts, types and ideas.
    """

    id: str
    fact: str
    doc_type: str
    doc_idea: str


def spec_order(specs: int, have: int, target: int, round_number: int, seed: int) -> list[int]:
    """Return the specs to ask for in a round: all in turn until nothing is missing, shuffled.

    Args:
        specs: their number.
        have: documents that are there.
        round_number: from 0; the seed of the shuffle is ``seed + have + 10000 * round_number``.

    >>> spec_order(3, 0, 3, 0, 42)
    [1, 0, 2]
    """
    order = [number % specs for number in range(target - have)]
    python_random(seed + have + _SEED_OF_ROUND * round_number).shuffle(order)
    return order
