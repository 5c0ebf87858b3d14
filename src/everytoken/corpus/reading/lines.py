"""The rows of JSON Lines, in runs that follow each other, and what a row of any format is.

It loads neither pydantic nor pyarrow, so that a worker that reads only lines starts fast.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from everytoken.corpus.errors import BadRow
from everytoken.corpus.reading.archives import decompressed
from everytoken.corpus.reading.parsing import parse_row, parse_rows
from everytoken.corpus.reading.records import HEAD_BYTES, Oversized, blocks_of_lines, iterate_runs, text_blocks


class Row(NamedTuple):
    """A row that can be read.

    Attributes:
        number: in the file, from 0; unreadable rows have numbers too.
        offset: of its first byte in the decompressed file; None for parquet and arrow.
        key: of the record in a ``json`` object of records, else None.
        unread: columns of a table that the record lacks, because the renderer does not look at them.
    """

    number: int
    offset: int | None
    key: str | None
    record: Any
    unread: tuple[str, ...] = ()


class UnreadableRow(NamedTuple):
    """A row that cannot be read, and why.

    Attributes:
        number: as in `Row`.
        offset: as in `Row`.
        reason: one of `everytoken.corpus.errors.BAD_ROW_REASONS`, or `OTHER_MEMBER`.
        raw: the first bytes of the row, at most `records.HEAD_BYTES`; None for parquet and arrow.
    """

    number: int
    offset: int | None
    reason: str
    detail: str
    raw: bytes | None


class LineRun(NamedTuple):
    """Rows that follow each other: the number of the first, and of each its offset from ``start`` and its record."""

    number: int
    start: int
    offsets: list[int]
    records: list[dict[str, Any]]


def iterate_line_records(
    stream: io.BufferedReader,
    compression: str | None,
    *,
    max_row_bytes: int,
    zstd_window_log_max: int,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[list[dict[str, Any]] | UnreadableRow]:
    """Yield the records of JSON Lines, in runs of rows that follow each other; an unreadable row is alone.

    It is faster than `iterate_rows` where rows are small.

    Args:
        begin: first byte of a range of a file without compression; rows are numbered from the range's first.
        end: byte after the range, which has the lines that begin in it; None for the whole file.

    Raises:
        DamagedFile: the file is cut or corrupt, or no JSON text.
    """
    if end is None:
        blocks = decompressed(stream, compression, zstd_window_log_max)
    else:
        blocks = blocks_of_lines(stream, begin, end)
    start, blocks = (begin, blocks) if begin else text_blocks(blocks)
    for run in line_runs(blocks, start, max_row_bytes, 0):
        yield run if isinstance(run, UnreadableRow) else run.records


def line_runs(
    blocks: Iterator[bytes], start: int, max_row_bytes: int, first_row: int
) -> Iterator[LineRun | UnreadableRow]:
    """Yield the rows of JSON Lines from ``first_row`` on, in runs; an unreadable row is alone.

    Args:
        max_row_bytes: a row with more bytes is unreadable.
    """
    number = first_row
    for offset, run in iterate_runs(blocks, start, max_row_bytes, first_row):
        if isinstance(run, Oversized):
            yield too_large(number, offset, run, max_row_bytes)
            number += 1
            continue
        parsed = parse_rows(run)
        if parsed is not None:
            yield LineRun(number, offset, *parsed)
            number += len(parsed[1])
            continue
        for line in run.split(b"\n"):  # one of them is unreadable, or for the reference to judge
            yield _line_row(number, offset, line)
            offset += len(line) + 1
            number += 1


def _line_row(number: int, offset: int, line: bytes) -> LineRun | UnreadableRow:
    try:
        return LineRun(number, offset, [0], [parse_row(line)])
    except BadRow as error:
        return UnreadableRow(number, offset, error.reason, error.detail, line[:HEAD_BYTES])


def too_large(number: int, offset: int, row: Oversized, max_row_bytes: int) -> UnreadableRow:
    """Return a row that has more bytes than it may have."""
    detail = f"the row has {row.size:,} bytes, over max_row_bytes {max_row_bytes:,}"
    return UnreadableRow(number, offset, "row_too_large", detail, row.head)
