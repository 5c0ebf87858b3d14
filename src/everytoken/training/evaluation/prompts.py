"""Prompts from held-out documents: the beginnings of those that a seeded hash of their address puts first.

The choice depends on seed and addresses alone, so it is the same for any number of parts and workers.
"""

from __future__ import annotations

import heapq

from everytoken.address import ADDRESS_COLUMNS, address_rows
from everytoken.seeds import uniform_hash
from everytoken.shards import Shards
from everytoken.training.errors import TrainingError

N_DOCUMENTS, CHARACTERS = 4, 40
"""How many documents, and how many characters of each at most; a word is not cut where the beginning has several."""


def held_out_prompts(held_out: Shards, seed: int) -> tuple[str, ...]:
    """Return the beginnings of some held-out documents, in the order of their hashes.

    Memory holds a batch of documents.

    Raises:
        TrainingError: no document is held out.
    """
    first: list[tuple[float, str]] = []
    for part in held_out:
        for batch in part.batches([*ADDRESS_COLUMNS, "text"]):
            texts = batch.column("text")
            hashed = [(uniform_hash(seed, *address), row) for row, address in enumerate(address_rows(batch))]
            some = [(key, beginning(texts[row].as_py())) for key, row in heapq.nsmallest(N_DOCUMENTS, hashed)]
            first = heapq.nsmallest(N_DOCUMENTS, [*first, *some])
    if not first:
        raise TrainingError(
            "evaluation.generation names no prompts, and no document is held out to begin with: give "
            "evaluation.generation.prompts, or hold documents out (subsampling.held_out_share)"
        )
    return tuple(text for _, text in first)


def beginning(text: str) -> str:
    """Return the first words of a text.

    >>> beginning("The city of Florence lies on the river Arno, in Tuscany.")
    'The city of Florence lies on the river'
    """
    begun = text.strip()
    if len(begun) <= CHARACTERS:
        return begun[: max(1, len(begun) // 2)]  # something is left to write
    words = begun[: CHARACTERS + 1].rsplit(maxsplit=1)
    return words[0] if len(words) > 1 else begun[:CHARACTERS]
