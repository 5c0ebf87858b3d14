"""The folder of a run and those of its ranks.

::

    run_config.json        what must not change while the run is made
    completions/00000      the marker of rank 0: its rows are on disk, and how many
    00000/results.jsonl    a line a row, in the order in which they came
    00000/failures.jsonl   a line for each document that failed, after all attempts
    00000/sessions.jsonl   a line for each start and end of a process: what made the replies
    00000/log, 00000/pid   of the last process
    00000/requests.json    questions so far, refused replies, and failed tries by kind
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.shards import write_text
from everytoken.submission import DetachedFolder

REMEDY_OF_DAMAGE = (
    "Restore it from a copy, or remove the rank's folder and its marker, and ask its rows again "
    "(everytoken reflections submit)"
)
"""What to do about a rank whose files are damaged."""


@dataclass(frozen=True)
class RankFolder(DetachedFolder):
    """A rank: rows [first, end) and its files."""

    root: Path
    number: int
    first: int
    end: int

    @property
    def name(self) -> str:
        """Its number in five digits."""
        return f"{self.number:05d}"

    @property
    def path(self) -> Path:
        """Folder of its files."""
        return self.root / self.name

    @property
    def results(self) -> Path:
        """A line for each row that is done."""
        return self.path / "results.jsonl"

    @property
    def failures(self) -> Path:
        """A line for each document that failed; rows that were done later stay in it."""
        return self.path / "failures.jsonl"

    @property
    def sessions(self) -> Path:
        """A line for each start and end of a process."""
        return self.path / "sessions.jsonl"

    @property
    def server_log(self) -> Path:
        """What a server that the rank starts said."""
        return self.path / "server_log"

    @property
    def waiting(self) -> Path:
        """There while its process waits until fewer others work."""
        return self.path / "waiting"

    @property
    def requests(self) -> Path:
        """What its last process has asked so far, and what failed."""
        return self.path / "requests.json"

    @property
    def marker(self) -> Path:
        """Says that all its rows were asked and are on disk."""
        return self.root / "completions" / self.name

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return self.end - self.first

    def begin(self) -> None:
        """Remove what the last process left; the next one waits until fewer others work."""
        super().begin()
        self.waiting.touch()

    def completion(self) -> dict[str, Any] | None:
        """Return what the marker says; None without one, and where the results have changed since."""
        try:
            said: dict[str, Any] = json.loads(self.marker.read_bytes())
            is_same = said["rows"] == [self.first, self.end] and said["bytes"] == self.results.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return said if is_same else None

    def complete(self, said: dict[str, Any]) -> None:
        """Write the marker."""
        self.marker.parent.mkdir(exist_ok=True)
        write_text(self.marker, json.dumps(said, indent=1, sort_keys=True) + "\n")


def rank_folders(root: Path, rows: tuple[int, int], rows_per_task: int) -> list[RankFolder]:
    """Return the ranks of a run, by number.

    Args:
        rows: first row, and the row behind the last one.
        rows_per_task: of a rank; the last one may have fewer.
    """
    return [RankFolder(root, number, first, end) for number, (first, end) in enumerate(_cut(rows, rows_per_task))]


def _cut(rows: tuple[int, int], size: int) -> Iterator[tuple[int, int]]:
    start, stop = rows
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
