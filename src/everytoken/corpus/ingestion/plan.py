"""The shard plan: which shards a run reads, in which order.

``order = list(range(n_total)); random.Random(seed).shuffle(order); order = order[offset:offset + n_shards]``, with
indices into the sorted list of all shards of all sources. Part ``part_00000`` holds ``order[0]`` and so on: the name
comes from the position in the plan, never from the order of completion. Two plans with the same seed and n_total and
disjoint slices share no shard.

The *shards* of a source are its files, or ranges of ``rows_per_shard`` rows of them. ``shard_index`` counts files, so
the address of a document (`everytoken.address`) stays what it is when ``rows_per_shard`` changes.

With ``files_per_shard`` files of a source that follow each other are read together: files 0 to n - 1, n to 2n - 1, ....
The content of a file moves no other file to another group, nor does a file that comes after all others.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from everytoken.corpus.errors import PlanError
from everytoken.corpus.expectations import NOTHING_EXPECTED, ExpectParameters
from everytoken.corpus.ingestion.planned_shards import PlannedShard, ShardPlan, ShardRange, shards_by_part
from everytoken.corpus.ingestion.source import Source
from everytoken.corpus.reading import ReadingLimits, count_rows, format_of
from everytoken.corpus.upstreams import PLAN_AGAIN, HubUpstream, UpstreamFile
from everytoken.seeds import python_random
from everytoken.shards import value_digest


class PlanParameters(BaseModel):
    """Which shards to read.

    Attributes:
        seed: of the shuffle of all shards; not negative, as ``random.Random`` takes -42 for 42.
        offset: first position of the shuffled order that is read.
        n_shards: how many shards are read, or null for all from ``offset`` on.
        expect_shards: how many shards there must be before any selection, or null when this is not pinned.
        try_parts: of that slice read only so many parts, and the first one of each source that has none among them;
            null for all. `everytoken submit-test` gives it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: NonNegativeInt
    offset: NonNegativeInt = 0
    n_shards: PositiveInt | None = None
    expect_shards: PositiveInt | None = None
    try_parts: PositiveInt | None = Field(default=None, exclude_if=lambda value: value is None)


def list_shards(source: Source, files: Sequence[UpstreamFile], limits: ReadingLimits) -> list[list[ShardRange]]:
    """Return the shards of a source, sorted by path, then first row; those that are read together in one list.

    Nothing but names is looked at when shards are whole files; else the rows of every file are counted. An empty file
    gives one shard without rows, so that no file is missing from the plan.
    """
    shards: list[ShardRange] = []
    for index, file in enumerate(files):
        format_of(file, source.reading)  # an unknown format stops here, before anything is planned
        base = ShardRange(source=file.source, path=file.path, shard_index=index, first_row=0, rows=None)
        if source.rows_per_shard is None:
            shards.append(base)
            continue
        size, total = source.rows_per_shard, count_rows(file, source.reading, limits)
        for first in range(0, max(total, 1), size):
            shards.append({**base, "first_row": first, "rows": min(size, total - first)})
    together = source.files_per_shard
    return [shards[first : first + together] for first in range(0, len(shards), together)]


def list_all_shards(
    sources: Mapping[str, Source], files: Mapping[str, Sequence[UpstreamFile]], limits: ReadingLimits
) -> list[list[ShardRange]]:
    """Return what the plan's order indexes: the shards of all sources, by source name, then path, then first row."""
    return [shard for name in sorted(sources) for shard in list_shards(sources[name], files[name], limits)]


def shard_order(n_total: int, parameters: PlanParameters) -> list[int]:
    """Return the chosen indices in plan order.

    Raises:
        PlanError: ``n_total`` is not what ``expect_shards`` pins, or the slice reaches past the last shard.
    """
    expected = parameters.expect_shards
    if expected is not None and n_total != expected:
        raise PlanError(
            f"the upstreams have {n_total:,} shards, expect_shards pins {expected:,}. One shard more or less changes "
            f"the whole order: check the pinned revision and the files, or set expect_shards to {n_total}. "
            f"Nothing was read."
        )
    offset, count = parameters.offset, parameters.n_shards
    end = n_total if count is None else offset + count
    if offset >= n_total or end > n_total:
        raise PlanError(
            f"the slice [{offset:,}, {end:,}) reaches past the {n_total:,} shards there are. "
            f"Lower offset or n_shards (null reads all from offset on)."
        )
    return _shuffled(n_total, parameters.seed)[offset:end]


def _shuffled(n_total: int, seed: int) -> list[int]:
    order = list(range(n_total))
    python_random(seed).shuffle(order)
    return order


def first_parts(order: list[int], listed: Sequence[Sequence[ShardRange]], count: int) -> list[int]:
    """Return the first ``count`` of an order, and the first one of each source that has none among them."""
    first: dict[str, int] = {}
    for place, index in enumerate(order):
        first.setdefault(listed[index][0]["source"], place)
    return [index for place, index in enumerate(order) if place < count or place in first.values()]


def make_shard_plan(
    sources: Mapping[str, Source],
    files: Mapping[str, Sequence[UpstreamFile]],
    parameters: PlanParameters,
    limits: ReadingLimits,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> ShardPlan:
    """List all shards, choose and order them, and take the digests of the chosen files.

    A file is read for that, once, only when its upstream tells no digest of it (see `UpstreamFile.planned_digest`).

    Args:
        limits: for counting the rows of files that are cut into several shards.
        expect: which revisions, how many shards and which order are expected.

    Raises:
        PlanError: see `shard_order`; raised before any chosen file is read or fetched, as the next one.
        ExpectationError: a value that is expected differs.
    """
    _require_enough_shards(sources, files, parameters)
    listed = list_all_shards(sources, files, limits)
    order = shard_order(len(listed), parameters)
    revisions = {name: one.upstream.revision for name, one in sources.items() if isinstance(one.upstream, HubUpstream)}
    shuffled = _shuffled(len(listed), parameters.seed)
    expect.check(revisions=revisions, shards=len(listed), first_shards=shuffled)
    by_path = {(file.source, file.path): file for of_source in files.values() for file in of_source}
    if parameters.try_parts is not None:
        order = first_parts(order, listed, parameters.try_parts)
    chosen = [shard for index in order for shard in listed[index]]
    digests = {place: by_path[place].planned_digest() for place in sorted({(s["source"], s["path"]) for s in chosen})}
    return ShardPlan(
        parameters=parameters.model_dump(mode="json"),
        n_total=len(listed),
        order=[index for index in order for _ in listed[index]],
        shards=[PlannedShard(**shard, digest=digests[shard["source"], shard["path"]]) for shard in chosen],
    )


def _require_enough_shards(
    sources: Mapping[str, Source], files: Mapping[str, Sequence[UpstreamFile]], parameters: PlanParameters
) -> None:
    """Stop before any file is fetched to count its rows, where files alone give more shards than there may be."""
    expected, n_files = parameters.expect_shards, sum(map(len, files.values()))
    least = sum(-(-len(files[name]) // source.files_per_shard) for name, source in sources.items())
    if expected is not None and least > expected:
        many = "as many" if least == n_files else f"{least:,}"
        raise PlanError(
            f"the upstreams have {n_files:,} files, and so at least {many} shards; expect_shards pins {expected:,}. "
            f"One shard more or less changes the whole order: check the pinned revision and the files, or set "
            "expect_shards to null, and then to n_total of shard_plan.json. Nothing was read."
        )


def part_values(
    plan: ShardPlan, sources: Mapping[str, Source], files: Mapping[str, Sequence[UpstreamFile]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return, in plan order, what `read_part` needs for each part, and the digest that stands for it in the recipe.

    The values say where files are on this machine; the digests do not, so a moved folder redoes nothing. They cover
    the shards (with the digests of their files) and how the source is read: another renderer redoes that source's parts
    alone. ``shared`` says whether other parts read the same file (ranges of it, or another source of the same dataset).
    """
    by_path = {(file.source, file.path): file for of_source in files.values() for file in of_source}
    planned = (by_path.get((shard["source"], shard["path"])) for shard in plan["shards"])
    readers = Counter(file.location for file in planned if file is not None)
    rules = {name: _rules_of(sources[name]) for name in {shard["source"] for shard in plan["shards"]}}
    values, digests = [], []
    for shards in shards_by_part(plan):
        source = sources[shards[0]["source"]]
        given = [_file_of(shard, by_path) for shard in shards]
        stands_for = dict(rules[shards[0]["source"]])
        if any(format_of(file, source.reading).kind == "txt" for file in given):
            stands_for["text_id"] = "path"  # without it, parts of earlier versions would keep texts without ids
        covered = {"shard": dict(shards[0])} if len(shards) == 1 else {"shards": [dict(shard) for shard in shards]}
        digests.append(value_digest({**covered, **stands_for}))
        read = [
            {"shard": dict(shard), "file": file.to_json(), "shared": readers[file.location] > 1}
            for shard, file in zip(shards, given, strict=True)
        ]
        values.append({**stands_for, "files": read})
    return values, digests


def _rules_of(source: Source) -> dict[str, Any]:
    """Return what decides, but for the files, which documents a part of a source has."""
    rules = source.model_dump(mode="json", include={"quality"})["quality"]
    said = {"reading": source.reading.model_dump(mode="json"), "quality": rules}
    if rules is not None:
        said["unicode"] = unicodedata.unidata_version  # classes of characters are Python's
    return said


def _file_of(shard: PlannedShard, by_path: Mapping[tuple[str, str], UpstreamFile]) -> UpstreamFile:
    place = (shard["source"], shard["path"])
    if place not in by_path:
        raise PlanError(
            f"the plan has file {shard['path']} of source {shard['source']!r}, which is no longer there. "
            f"Put it back, or {PLAN_AGAIN}."
        )
    return by_path[place]
