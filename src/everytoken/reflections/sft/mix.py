"""Which prompts of which pool are in the mix, and in which order.

One ``Random(seed)`` draws from the pools in their order and then shuffles what was drawn. A draw depends on the sizes
of the pools alone, so no pool is held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from everytoken.seeds import python_random

Slots = int | Literal["all"]


class DrawnRow(NamedTuple):
    """A prompt of the mix: its pool, and its place among the prompts of the pool that fit."""

    pool: str
    place: int


def rows_of_pools(rows: int, slots: Mapping[str, Slots], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return how many rows are wanted of each pool.

    A pool with the slots ``all`` gives every row, and the others share what is left. If what is left would be less for
    each slot than such a pool has, it gives none: a small mix is no mix of one pool.

    Args:
        slots: shares by pool; at least one is a number.
        sizes: rows of the pools with the slots ``all``.
    """
    shares = sum(count for count in slots.values() if count != "all")
    whole = sum(sizes.get(pool, 0) for pool, count in slots.items() if count == "all")
    takes_whole = rows > shares * whole
    of_a_slot = (rows - whole * takes_whole) // shares
    return {
        pool: sizes.get(pool, 0) * takes_whole if count == "all" else count * of_a_slot for pool, count in slots.items()
    }


def draw_mix(
    seed: int, wanted: Mapping[str, int], sizes: Mapping[str, int], slots: Mapping[str, Slots]
) -> list[DrawnRow]:
    """Return the mix in its order; no row comes twice, and a pool that is too small gives all that it has.

    Args:
        wanted: rows by pool, in the order of the draw.
        sizes: rows that fit, by pool.
        slots: pools with ``all`` are taken without a draw.
    """
    generator = python_random(seed)
    drawn: list[DrawnRow] = []
    for pool, count in wanted.items():
        places: Iterable[int] = range(min(count, sizes[pool]))
        if slots[pool] != "all":
            places = generator.sample(range(sizes[pool]), min(count, sizes[pool]))
        drawn += [DrawnRow(pool, place) for place in places]
    generator.shuffle(drawn)
    return drawn


def prompts_digest(prompts: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 over id and text of each prompt, in order: ``id NUL text LF`` in UTF-8."""
    found = hashlib.sha256()
    for source_id, user in prompts:
        found.update(f"{source_id}\0{user}\n".encode())
    return found.hexdigest()
