"""The rows of an annotated split that a run is about."""

from __future__ import annotations

from everytoken.reflections.errors import ReflectionError
from everytoken.shards import Artifact


def rows_of(rows: tuple[int, int] | None, stream: Artifact) -> tuple[int, int]:
    """Return first row and the row behind the last one; all where none are given.

    Args:
        rows: ``reflection.rows``.
        stream: the annotated stream, a row a window.

    Raises:
        ReflectionError: the split has fewer rows.
    """
    there = int(stream.statistics["windows"])
    first, end = rows or (0, there)
    if end > there:
        raise ReflectionError(
            f"reflection.rows is [{first:,}, {end:,}), and the annotated stream {stream.folder} has {there:,} rows. "
            "Correct reflection.rows; null for all"
        )
    return first, end
