"""The rows that a version of a prompt is tried on: a seeded sample, and another one for each improvement."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.prompts import DocumentRequest, RequestBuilder, SidecarRow
from everytoken.reflections.ranks import GenerationPlan, row_groups, sidecar_rows
from everytoken.seeds import python_random

_DRAWN_MORE = 4  # times the size, and 100: some rows are not asked about


def sampled_rows(
    plan: GenerationPlan, builder: RequestBuilder, size: int, seed: int, purpose: str, without: Collection[int] = ()
) -> list[SidecarRow]:
    """Return rows that the run asks about, ascending: a pure function of seed, purpose and range.

    Args:
        size: of the sample; fewer where the range has fewer such rows.
        purpose: a part of the key of the draw.
        without: numbers of rows that are not drawn.

    Raises:
        ReflectionError: the run asks about no drawn row.
    """
    first, end = plan.rows()
    wanted = min(end - first, _DRAWN_MORE * (size + len(without)) + 100)
    order = python_random(seed, "prompt_sample", purpose).sample(range(first, end), wanted)
    left = [number for number in order if number not in without]
    drawn: list[SidecarRow] = []
    numbers = iter(left)
    while len(drawn) < size and (some := list(islice(numbers, size - len(drawn)))):
        rows = {row.number: row for row in rows_at(plan.sidecar, some)}
        drawn += [rows[number] for number in some if isinstance(builder.build(rows[number]), DocumentRequest)]
    if not drawn:
        raise ReflectionError(
            f"the run {plan.name} asks about none of {len(left):,} drawn rows of [{first:,}, {end:,}): choose other "
            "rows (reflection.rows)"
        )
    return sorted(drawn)


def rows_at(sidecar: Path, numbers: Collection[int]) -> Iterator[SidecarRow]:
    """Yield rows by their numbers, ascending; only row groups that have one of them are read."""
    wanted = set(numbers)
    if not wanted:
        return
    with pq.ParquetFile(sidecar) as file:
        groups = list(row_groups(file, min(wanted), max(wanted) + 1))
    for _, start, stop in groups:
        if inside := wanted.intersection(range(start, stop)):
            low, high = min(inside), max(inside) + 1
            yield from sidecar_rows(sidecar, low, high, done=set(range(low, high)) - inside)
