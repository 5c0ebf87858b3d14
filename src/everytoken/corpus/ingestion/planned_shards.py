"""The shard plan as it is stored, read without the code that makes one: `everytoken trace` looks up files in it."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any, TypedDict


class ShardRange(TypedDict):
    """A shard as it is listed: a whole file (``rows`` null), or the rows ``[first_row, first_row + rows)`` of it."""

    source: str
    path: str
    shard_index: int
    first_row: int
    rows: int | None


class PlannedShard(ShardRange):
    """A shard of the plan: its range, and the digest of its whole file (or wheel member).

    The digest is the one that the upstream tells (``git-sha1:<hex>`` or ``sha256:<hex>``, and then nothing is fetched
    for the plan), else ``sha256:<hex>`` of the bytes.
    """

    digest: str


class ShardPlan(TypedDict):
    """The plan as it is stored; it names no place on this machine.

    ``order`` has a number for each of ``shards``. Files that are read together have the same number and follow each
    other: see `shards_by_part`. ``n_total`` counts what is numbered.
    """

    parameters: dict[str, Any]
    n_total: int
    order: list[int]
    shards: list[PlannedShard]


def shards_by_part(plan: ShardPlan) -> list[list[PlannedShard]]:
    """Return the shards of each part in plan order: one, or the files that are read together, sorted by path."""
    numbered = zip(plan["order"], plan["shards"], strict=True)
    return [[shard for _, shard in part] for _, part in groupby(numbered, itemgetter(0))]
