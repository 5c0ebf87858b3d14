"""The results of a run as value parts, one a rank, known by their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everytoken.reflections.ranks import RankFolder, ranks_of, read_content, require_idle
from everytoken.shards import Shards


def list_replies(root: Path) -> Shards:
    """Return a value for each rank: folder of the run, number, rows, and how many of them have a result.

    Ranks that are not complete are among them, and those that were never started: their rows have no result.

    Raises:
        ReflectionError: there is no run, or a rank is being made.
    """
    ranks = ranks_of(root)
    require_idle(ranks)
    listed = [_listed(rank) for rank in ranks]
    return Shards.from_values([value for value, _ in listed], [digest for _, digest in listed])


def _listed(rank: RankFolder) -> tuple[dict[str, Any], str]:
    value = {"folder": str(rank.root), "rank": rank.number, "rows": [rank.first, rank.end]}
    if (said := rank.completion()) is not None:
        return {**value, "results": said["results"], "bytes": said["bytes"]}, said["digest"]
    content = read_content(rank)
    return {**value, "results": content.results, "bytes": content.bytes}, content.digest
