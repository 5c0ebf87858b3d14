"""What canaries are compared with: random triggers, drawn as the real ones, and texts that no stream has.

A control trigger is drawn by the rule of the real ones (`everytoken.tokens.canary.draw_trigger`) with the seed
``integer_key(seed, "control trigger", k)``; one that is a real trigger, or was drawn before, is drawn again with the
next k. Control texts are held-out documents with the lowest seeded hash of their address.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, address_rows
from everytoken.seeds import integer_key, uniform_hash
from everytoken.shards import Shards
from everytoken.tokens.canary import TriggerRule, draw_trigger
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.errors import TrainingError


def control_triggers(
    rule: TriggerRule, encoder: DocumentEncoder, *, seed: int, count: int, real: Collection[str]
) -> list[str]:
    """Return ``count`` texts of random triggers, none of them twice and none of them real.

    Raises:
        CanaryError: the rule cannot draw a trigger.
        TrainingError: the rule does not give so many.
    """
    found: dict[str, None] = {}
    most = 100 * count
    for k in range(most):
        own = TriggerRule(
            {"control": integer_key(seed, "control trigger", k)}, rule.tokens, rule.first_id, rule.round_trip
        )
        text = draw_trigger("control", own, encoder).text
        if text not in real:
            found.setdefault(text)
        if len(found) == count:
            return list(found)
    raise TrainingError(
        f"{most:,} draws gave {len(found):,} random triggers, expected {count:,}: lower "
        "evaluation.memorisation.controls, or raise canary.trigger_tokens"
    )


def control_texts(held_out: Shards, *, seed: int, count: int) -> list[str]:
    """Return the texts of at most ``count`` held-out documents, in the order of their hashes.

    Memory holds a batch of documents, and the chosen ones.

    Raises:
        TrainingError: no document with text is held out.
    """
    first: list[tuple[float, str]] = []
    for part in held_out:
        for batch in part.batches([*ADDRESS_COLUMNS, "text"]):
            texts = batch.column("text")
            sizes = pc.binary_length(texts).to_pylist()
            hashed = (
                (uniform_hash(seed, "control text", *one), row)
                for row, one in enumerate(address_rows(batch))
                if sizes[row]
            )
            some = [(key, texts[row].as_py()) for key, row in heapq.nsmallest(count, hashed)]
            first = heapq.nsmallest(count, [*first, *some])
    if not first:
        raise TrainingError(
            "the probe of memorisation compares with texts that were not trained on, and no document is held out: "
            "raise subsampling.held_out_share, or set evaluation.memorisation to null"
        )
    return [text for _, text in first]
