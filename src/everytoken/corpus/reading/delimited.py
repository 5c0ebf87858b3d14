r"""The rows of CSV and TSV, each as a record by the names of the header; all values are strings.

A field may be quoted and then has delimiters, ``\n`` and doubled quotes within it (RFC 4180). The header is the first
line that is not blank, and has no number. A row with another number of fields is set aside. A quote that does not fit
leaves no place to continue from, so that it is `DamagedFile`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Literal

from everytoken.corpus.reading.archives import DamagedFile
from everytoken.corpus.reading.lines import Row, UnreadableRow
from everytoken.corpus.reading.records import HEAD_BYTES, Oversized, iterate_runs

_REPAIR = "Repair the file at its origin, or pin another revision of it."
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what Python's surrogateescape makes of bytes that are not UTF-8


def delimited_rows(
    blocks: Iterator[bytes], start: int, kind: Literal["csv", "tsv"], max_row_bytes: int
) -> Iterator[Row | UnreadableRow]:
    """Yield all rows in order; a blank line is one too.

    Args:
        blocks: of the text, in UTF-8.
        start: offset of their first byte.
        max_row_bytes: bound of a row, with all its lines.

    Raises:
        DamagedFile: a quote does not fit, a row is larger, or the header is no header.
    """
    if csv.field_size_limit() < max_row_bytes:  # of the whole process; `_Lines` bounds a row
        csv.field_size_limit(max_row_bytes)
    lines = _Lines(blocks, start, max_row_bytes)
    reader = csv.reader(lines, delimiter=_DELIMITERS[kind], strict=True)
    header: list[str] | None = None
    number = 0
    while True:
        lines.begin()
        try:
            fields = next(reader, None)
        except csv.Error as error:
            where = "the header" if header is None else f"row {number}"
            reason = f"truncated or corrupt: {where}, which begins at byte {lines.offset}, is no {kind} ({error})"
            raise DamagedFile(reason, _REPAIR) from None
        if fields is None:
            return
        if header is None:
            header = _header(fields) if fields else None
            continue
        yield _row(number, lines, header, fields)
        number += 1


def _header(names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DamagedFile(f"the header has more than one column of the name {twice[0]!r}", _REPAIR)
    if any(map(_NOT_UTF8.search, names)):
        raise DamagedFile("the header is not UTF-8", "Set the source's encoding to the file's own.")
    return names


def _row(number: int, lines: _Lines, header: list[str], fields: list[str]) -> Row | UnreadableRow:
    offset = lines.offset
    if not fields:
        return UnreadableRow(number, offset, "blank_line", "the line is blank, expected fields", lines.head)
    if len(fields) != len(header):
        detail = f"it has {len(fields)} columns, the header {len(header)}"
        return UnreadableRow(number, offset, "wrong_columns", detail, lines.head)
    if not lines.ascii:
        for name, field in zip(header, fields, strict=True):
            if found := _NOT_UTF8.search(field):
                detail = f"column {name!r} is not valid UTF-8 at character {found.start()}"
                return UnreadableRow(number, offset, "not_utf8", detail, lines.head)
    return Row(number, offset, None, dict(zip(header, fields, strict=True)))


class _Lines(Iterator[str]):
    """The lines of a text for ``csv.reader``, and the place of the row that it reads.

    Attributes:
        offset: of the row's first byte.
        head: its first bytes, at most `HEAD_BYTES`.
        ascii: whether all its lines are ASCII.
    """

    def __init__(self, blocks: Iterator[bytes], start: int, max_row_bytes: int) -> None:
        self._limit = max_row_bytes
        self._lines = _split(blocks, start, max_row_bytes)
        self._position = start
        self.begin()

    def begin(self) -> None:
        """Begin a row."""
        self.offset, self.head, self.ascii, self._size = self._position, b"", True, 0

    def __next__(self) -> str:
        size, line = next(self._lines)
        self._position += size
        self._size += size
        if self._size - 1 > self._limit:
            reason = f"the row that begins at byte {self.offset} has over max_row_bytes {self._limit:,}"
            raise DamagedFile(reason, "Close the quote that is open there, or raise reading.max_row_bytes.")
        if len(self.head) < HEAD_BYTES:
            self.head = (self.head + line)[:HEAD_BYTES]
        self.ascii = self.ascii and line.isascii()
        return line.decode("utf-8", "surrogateescape")


def _split(blocks: Iterator[bytes], start: int, max_row_bytes: int) -> Iterator[tuple[int, bytes]]:
    for _, run in iterate_runs(blocks, start, max_row_bytes, 0):
        if isinstance(run, Oversized):
            yield run.size + 1, run.head
            continue
        for line in run.split(b"\n"):
            yield len(line) + 1, line + b"\n"
