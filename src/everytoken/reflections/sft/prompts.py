"""The file of prompts: a mix of pools in its order, and what tells it from another one."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.reading import ReadingLimits
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.progress import progress, working
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.sft.mix import DrawnRow, draw_mix, prompts_digest, rows_of_pools
from everytoken.reflections.sft.parameters import PromptMix
from everytoken.reflections.sft.pools import PoolCounts, PoolPrompt, read_pool
from everytoken.shards import Built, Rows, versioned, write_rows, write_text

PROMPTS_FILE, FINGERPRINT_FILE = "prompts.parquet", "fingerprint.json"
_BATCH = 1_000
_SCHEMA = pa.schema(
    [
        ("global_row_idx", pa.int64()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("user", pa.large_string()),
        ("meta", pa.string()),
        ("harm_category", pa.string()),
    ]
)
logger = logging.getLogger(__name__)


class PoolStatistics(TypedDict):
    """Rows of a pool, those set aside by reason, those that fit, and how many the mix wanted and got."""

    rows: int
    set_aside: dict[str, int]
    fit: int
    wanted: int
    drawn: int


class PromptStatistics(TypedDict):
    """What a file of prompts holds; ``content_sha256``: see `prompts_digest`."""

    n: int
    seed: int
    content_sha256: str
    sources: dict[str, int]
    harm_categories: dict[str, int]
    repeated_texts: int
    repeated_ids: int
    pools: dict[str, PoolStatistics]


class PromptRow(NamedTuple):
    """A prompt: its row in the file, its id in its source, and what the export needs of it."""

    number: int
    doc_id: str
    source: str
    user: str
    meta: str
    harm_category: str

    @property
    def key(self) -> str:
        """What the draws of the prompt are made with."""
        return self.doc_id


@versioned("write_sft_prompts", 1, unrecorded=["files"])
def write_prompts(
    folder: Path,
    *,
    mix: PromptMix,
    files: Mapping[str, Sequence[UpstreamFile]],
    digests: Mapping[str, Sequence[str]],
    limits: ReadingLimits,
) -> Built:
    """Write ``prompts.parquet`` and ``fingerprint.json``. Memory holds the prompts of the mix, and no pool.

    Args:
        files: of each pool, sorted by path; each is read twice.
        limits: bounds of memory of a row.

    Raises:
        ReflectionError: too many rows of a pool cannot be read, or nothing is drawn.
        RowError: a file is missing or damaged, or is not the planned one.
    """
    for name in mix.drawn_pools:
        for file, digest in zip(files[name], digests[name], strict=True):
            file.require(digest)
    counts = {name: _counted(name, mix, files[name], limits) for name in mix.drawn_pools}
    fit = {name: count.rows - count.set_aside.total() for name, count in counts.items()}
    slots = {name: pool.slots for name, pool in mix.active_pools.items()}
    wanted = {name: count for name, count in rows_of_pools(mix.rows, slots, fit).items() if name in counts}
    drawn = draw_mix(mix.seed, wanted, fit, slots)
    if not drawn:
        raise ReflectionError("sft.mix draws no prompt: give more rows, or pools with prompts that fit")
    prompts = _taken(drawn, fit, mix, files, limits)
    write_rows(Rows(_SCHEMA, _batches(prompts)), folder / PROMPTS_FILE)
    of_pools = Counter(row.pool for row in drawn)
    pools = {
        name: PoolStatistics(
            rows=count.rows,
            set_aside=dict(sorted(count.set_aside.items())),
            fit=fit[name],
            wanted=wanted[name],
            drawn=of_pools[name],
        )
        for name, count in counts.items()
    }
    for name, one in pools.items():
        if one["drawn"] < one["wanted"]:
            logger.warning("warning: pool %s has %s of the %s prompts", name, f"{one['drawn']:,}", f"{one['wanted']:,}")
    statistics = _statistics(mix, prompts, pools)
    told = {name: statistics[name] for name in ("n", "seed", "sources", "content_sha256")}
    write_text(folder / FINGERPRINT_FILE, json.dumps(told, indent=1) + "\n")
    return Built(statistics)


def read_prompts(path: Path, first: int, end: int, done: Collection[int] = ()) -> Iterator[PromptRow]:
    """Yield the prompts [first, end) of a file that are not done."""
    number = 0
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(_BATCH):
            low, high = max(first - number, 0), min(end - number, batch.num_rows)
            for row in batch.slice(low, high - low).to_pylist() if low < high else ():
                if row["global_row_idx"] not in done:
                    yield PromptRow(
                        row["global_row_idx"],
                        row["source_id"],
                        row["source"],
                        row["user"],
                        row["meta"],
                        row["harm_category"],
                    )
            number += batch.num_rows


def _counted(name: str, mix: PromptMix, files: Sequence[UpstreamFile], limits: ReadingLimits) -> PoolCounts:
    counts = PoolCounts()
    with working("", None, "row") as work:
        for _ in read_pool(name, mix.drawn_pools[name], files, limits, mix.max_characters, counts):
            work.add()
    counts.require_few_bad(name, mix.max_bad_share)
    return counts


def _taken(
    drawn: Sequence[DrawnRow],
    fit: Mapping[str, int],
    mix: PromptMix,
    files: Mapping[str, Sequence[UpstreamFile]],
    limits: ReadingLimits,
) -> list[PoolPrompt]:
    """Return the prompts that were drawn, in the order of the draw."""
    found: dict[DrawnRow, PoolPrompt] = {}
    wanted = set(drawn)
    for name in dict.fromkeys(row.pool for row in drawn):
        rows = read_pool(name, mix.drawn_pools[name], files[name], limits, mix.max_characters, PoolCounts())
        numbered = enumerate(progress(rows, fit[name], "", "row"))
        found |= {DrawnRow(name, place): row for place, row in numbered if DrawnRow(name, place) in wanted}
    return [found[row] for row in drawn]


def _batches(prompts: Sequence[PoolPrompt]) -> Generator[pa.RecordBatch, None, Mapping[str, Any]]:
    for start in range(0, len(prompts), _BATCH):
        some = prompts[start : start + _BATCH]
        values = {
            "global_row_idx": range(start, start + len(some)),
            "source": [one.source for one in some],
            "source_id": [one.source_id for one in some],
            "user": [one.user for one in some],
            "meta": [one.meta for one in some],
            "harm_category": [one.harm_category for one in some],
        }
        yield pa.RecordBatch.from_arrays([pa.array(values[one.name], one.type) for one in _SCHEMA], schema=_SCHEMA)
    return {}


def _statistics(mix: PromptMix, prompts: Sequence[PoolPrompt], pools: Mapping[str, PoolStatistics]) -> PromptStatistics:
    return PromptStatistics(
        n=len(prompts),
        seed=mix.seed,
        content_sha256=prompts_digest((one.source_id, one.user) for one in prompts),
        sources=dict(sorted(Counter(one.source for one in prompts).items())),
        harm_categories=dict(sorted(Counter(one.harm_category for one in prompts).items())),
        repeated_texts=len(prompts) - len({one.user for one in prompts}),
        repeated_ids=len(prompts) - len({one.source_id for one in prompts}),
        pools=dict(pools),
    )
