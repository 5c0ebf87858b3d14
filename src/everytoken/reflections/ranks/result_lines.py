"""The result lines of a rank, by the number of their row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from everytoken.reflections.items import parsed

ROW_KEY = "global_row_idx"


class Line(NamedTuple):
    """A line with a row number: the row, where it begins in the file, and its bytes without the line break."""

    row: int
    offset: int
    content: bytes


def numbered_lines(path: Path) -> Iterator[Line]:
    """Yield the lines that are objects with a row number, in file order; torn and foreign ones are passed over."""
    offset = 0
    if not path.is_file():
        return
    with path.open("rb") as file:
        for content in file:
            row = _row_of(content) if content.endswith(b"\n") else None
            if row is not None:
                yield Line(row, offset, content[:-1])
            offset += len(content)


def _row_of(content: bytes) -> int | None:
    try:
        found = parsed(content)
    except ValueError:
        return None
    row = found.get(ROW_KEY) if isinstance(found, dict) else None
    return row if type(row) is int else None


def done_rows(path: Path) -> set[int]:
    """Return the rows that a file has lines of."""
    return {line.row for line in numbered_lines(path)}
