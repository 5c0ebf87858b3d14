"""What the files of a rank hold: counts, and a digest that does not depend on the order of their lines."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import parsed, records
from everytoken.reflections.ranks.folders import REMEDY_OF_DAMAGE, RankFolder
from everytoken.reflections.ranks.result_lines import ROW_KEY, Line, numbered_lines
from everytoken.shards import value_digest

COUNTED_TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "generated_tokens", "stored_tokens")


@dataclass(frozen=True)
class RankContent:
    """Content of a rank.

    Attributes:
        digest: of the lines in the order of their rows, and of the rows that failed.
        tokens: sums, by name; of a count that a server does not tell, those that it told.
        failed: kind of the last failure of each row that has no result.
    """

    digest: str
    statuses: dict[str, int]
    tokens: dict[str, int]
    failed: dict[int, str]
    bytes: int

    @property
    def results(self) -> int:
        """Rows with a result."""
        return sum(self.statuses.values())


def read_content(rank: RankFolder) -> RankContent:
    """Read the files of a rank.

    Raises:
        ReflectionError: a row is of another rank, or there are two results of one.
    """
    found = LineDigests(rank)
    statuses: Counter[str] = Counter()
    tokens: Counter[str] = Counter(dict.fromkeys(COUNTED_TOKENS, 0))
    for line in numbered_lines(rank.results):
        found.add(line)
        record = parsed(line.content)
        statuses[str(record.get("status", "ok"))] += 1
        tokens.update({name: record.get(name) or 0 for name in COUNTED_TOKENS})
    failed = failed_rows(rank, found.has)
    size = rank.results.stat().st_size if rank.results.exists() else 0
    return RankContent(found.digest(failed), dict(sorted(statuses.items())), dict(tokens), failed, size)


def damaged_lines(rank: RankFolder) -> str:
    """Say that the results of a complete rank are not those of its marker, and what to do."""
    return f"{rank.results}: its lines are not those that the marker {rank.marker} describes. {REMEDY_OF_DAMAGE}"


class LineDigests:
    """Digests of the result lines of a rank, and where each line begins: 41 bytes a row."""

    def __init__(self, rank: RankFolder) -> None:
        self._rank = rank
        self._digests = np.zeros((rank.rows, 32), np.uint8)
        self.offsets = np.full(rank.rows, -1, np.int64)

    def add(self, line: Line) -> None:
        """Add a line.

        Raises:
            ReflectionError: its row is of another rank, or has a line.
        """
        _require_row(self._rank, line)
        at = line.row - self._rank.first
        if self.offsets[at] >= 0:
            raise ReflectionError(
                f"{self._rank.results}: row {line.row:,} has two results, at the bytes {self.offsets[at]:,} and "
                f"{line.offset:,}. One process at a time writes the file, so it was edited or damaged. "
                f"{REMEDY_OF_DAMAGE}"
            )
        self.offsets[at] = line.offset
        self._digests[at] = np.frombuffer(hashlib.sha256(line.content).digest(), np.uint8)

    def has(self, row: int) -> bool:
        """Return whether a row of the rank has a line."""
        return bool(self.offsets[row - self._rank.first] >= 0)

    def digest(self, failed: Iterable[int]) -> str:
        """Return the digest of the rank, with the rows that failed."""
        is_there = self.offsets >= 0
        lines = hashlib.sha256(self._digests[is_there].tobytes()).hexdigest()
        rows = hashlib.sha256(np.packbits(is_there).tobytes()).hexdigest()
        return value_digest([lines, rows, sorted(failed)])


def _require_row(rank: RankFolder, line: Line) -> None:
    if not rank.first <= line.row < rank.end:
        raise ReflectionError(
            f"{rank.results}: row {line.row:,}, at byte {line.offset:,}, is none of the rows [{rank.first:,}, "
            f"{rank.end:,}) of rank {rank.name}: the file is of another run or rank, or damaged. "
            f"{REMEDY_OF_DAMAGE}"
        )


def failed_rows(rank: RankFolder, is_done: Callable[[int], bool]) -> dict[int, str]:
    """Return the kind of the last failure of each row that has no result."""
    found: dict[int, str] = {}
    for record in records(rank.failures):
        row = record.get(ROW_KEY)
        if type(row) is int and rank.first <= row < rank.end and not is_done(row):
            found[row] = str(record.get("class", "unknown"))
    return found


def marker_of(rank: RankFolder, content: RankContent) -> dict[str, Any]:
    """Return what the marker of a rank says, all of whose rows were asked."""
    return {
        "rank": rank.number,
        "rows": [rank.first, rank.end],
        "results": content.results,
        "failed": len(content.failed),
        "statuses": content.statuses,
        "tokens": content.tokens,
        "bytes": content.bytes,
        "digest": content.digest,
    }
