"""The texts of a file, one document a row, in any format that ingestion reads (`everytoken.corpus.reading`).

The first row that is no document is an error: a stream without it would be another stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from everytoken.corpus import RowError
from everytoken.corpus.reading import (
    BLOCK_BYTES,
    FORMAT_NAMES,
    Reading,
    ReadingLimits,
    Row,
    UnreadableRow,
    format_by_name,
    iterate_range,
    iterate_rows,
    json_name,
    shown_name,
)
from everytoken.corpus.rendering import DocumentRenderer
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.text_to_stream.errors import FileError

_BATCH_CHARACTERS = 1 << 18  # larger ones are slower
_ZSTD_WINDOW_LOG_MAX = 31


class TextRange(NamedTuple):
    """Texts of a file to read.

    Attributes:
        path: of the file.
        name: of the file in messages.
        begin: first byte of the range whose rows are read; 0 unless `is_cuttable`.
        end: byte after that range.
        text_field: key or column of the text in each row.
        max_line_bytes: a larger row is an error.
    """

    path: Path
    name: str
    begin: int
    end: int
    text_field: str
    max_line_bytes: int


class Texts(NamedTuple):
    """Texts of consecutive rows, at most `_BATCH_CHARACTERS` code points or one text.

    Attributes:
        texts: one a row.
        row: number of the first, from 0 at the begin of the range.
    """

    texts: list[str]
    row: int


def kind_of(name: str) -> str:
    """Return the format of a file; what is no JSON Lines would read as other texts under another name.

    Raises:
        FileError: its name tells none.
    """
    form = format_by_name(name)
    if form is None:
        raise FileError(name, None, f"its name ends in none of {FORMAT_NAMES}. Rename it, or convert it.")
    return form.kind


def is_cuttable(name: str) -> bool:
    """Return whether byte ranges of a file can be read alone."""
    return format_by_name(name) == ("jsonl", None)


def read_texts(given: TextRange) -> Iterator[Texts]:
    """Yield the texts of the rows in order.

    Raises:
        FileError: the file is missing or damaged, or a row is no document.
    """
    batch: list[str] = []
    size = number = 0
    for text in _texts(given):
        if batch and size + len(text) > _BATCH_CHARACTERS:
            yield Texts(batch, number)
            number += len(batch)
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield Texts(batch, number)


def fail(given: TextRange, row: int, message: str, kind: type[FileError] = FileError) -> NoReturn:
    """Raise an error that names a row by its number in the file."""
    raise kind(given.name, place_of(given.name, row + _lines_before(given)), message) from None


def place_of(name: str, row: int) -> str:
    """Return how messages name a row of a file: lines are counted from 1, rows of other formats from 0."""
    return f"line {row + 1:,}" if kind_of(name) == "jsonl" else f"row {row:,}"


def _lines_before(given: TextRange) -> int:
    """Count the lines that begin before the first of the range; only an error asks for it."""
    if not given.begin:
        return 0
    count, left, block = 0, given.begin, b"\n"
    with given.path.open("rb") as stream:
        while left and (block := stream.read(min(left, BLOCK_BYTES))):
            count, left = count + block.count(b"\n"), left - len(block)
    return count + (not block.endswith(b"\n"))


def _texts(given: TextRange) -> Iterator[str]:
    field = given.text_field
    try:
        for row in _rows(given):
            text = row.record.get(field) if isinstance(row, Row) else None
            yield text if type(text) is str and text.isascii() else _checked(given, row)
    except RowError as error:
        raise FileError(given.name, None, f"{error.reason}. {error.remedy}") from None


def _rows(given: TextRange) -> Iterator[Row | UnreadableRow]:
    file = UpstreamFile("", given.path.name, given.path, None)
    limits = ReadingLimits(max_row_bytes=given.max_line_bytes, zstd_window_log_max=_ZSTD_WINDOW_LOG_MAX)
    if is_cuttable(given.path.name):
        return iterate_range(file, limits, given.begin, given.end)
    renderer = DocumentRenderer(kind="document", text_column=given.text_field, id_columns=())
    return iterate_rows(file, Reading(renderer=renderer, records=None, format=None), limits)


def _checked(given: TextRange, row: Row | UnreadableRow) -> str:
    """Return the text of a row, or say why it has none."""
    noun, field = place_of(given.name, 0).split()[0], given.text_field
    repair = f"Repair or remove the {noun}: nothing is passed over."
    if isinstance(row, UnreadableRow):
        detail = row.detail
        if row.reason == "row_too_large":
            detail = detail.replace("the row", f"the {noun}").replace("max_row_bytes ", "")
            repair = "Raise max_line_bytes; a worker needs several times that memory."
        fail(given, row.number, f"{detail}. {repair}")
    if field not in row.record:
        keys = ", ".join(map(shown_name, list(row.record)[:10])) or "none"
        fail(given, row.number, f"there is no field {field!r}; there is {keys}. Name the field of the text.")
    text = row.record[field]
    if not isinstance(text, str):
        fail(given, row.number, f"the field {field!r} is {json_name(text)}, expected a string. {repair}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x} at character {error.start}"
        fail(given, row.number, f"the text has half of a surrogate pair ({half}), which has no UTF-8. {repair}")
    return text
