"""The texts of a file, one document a row, in any format that ingestion reads (`everytoken.corpus.reading`).

The first row that is no document is an error: a stream without it would be another stream.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from everytoken.corpus import RowError
from everytoken.corpus.reading import (
    BLOCK_BYTES,
    FORMAT_NAMES,
    DamagedFile,
    Format,
    UnreadableRow,
    format_by_name,
    iterate_line_records,
    json_name,
    may_be_array,
    shown_name,
)
from everytoken.text_to_stream.errors import FileError

_BATCH_CHARACTERS = 1 << 20  # with smaller ones reading and encoding push each other out of the cache more often
_ZSTD_WINDOW_LOG_MAX = 31


class Digest(Protocol):
    """What takes the bytes of a file, as a hash does."""

    def update(self, data: Any, /) -> None:
        """Take bytes."""


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
    """Return the format that the name of a file tells.

    Raises:
        FileError: its name tells none.
    """
    return _format_of(name).kind


def is_cuttable(name: str) -> bool:
    """Return whether byte ranges of a file can be read alone."""
    return format_by_name(name) == ("jsonl", None)


def read_texts(given: TextRange, digest: Digest | None = None) -> Iterator[Texts]:
    """Yield the texts of the rows in order.

    Args:
        digest: is updated with all bytes of the file; None: no digest is taken.

    Raises:
        FileError: the file is missing or damaged, or a row is no document.
    """
    batch: list[str] = []
    size = number = 0
    for text in _texts(given, digest):
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


def _texts(given: TextRange, digest: Digest | None) -> Iterator[str]:
    number = 0
    try:
        for run in _runs(given, digest):
            if isinstance(run, UnreadableRow):
                _refuse_row(given, run)
            texts: list[Any] = [record.get(given.text_field) for record in run]
            if set(map(type, texts)) != {str} or not all(text.isascii() or _surrogate(text) is None for text in texts):
                for at, record in enumerate(run, number):
                    _require_text(given, at, record)
            number += len(run)
            yield from texts
    except RowError as error:
        remedy = error.remedy.replace("the renderer's text_column", "--text-field")
        raise FileError(given.name, None, f"{error.reason}. {remedy}") from None


def _format_of(name: str) -> Format:
    form = format_by_name(name)
    if form is None:
        raise FileError(name, None, f"its name ends in none of {FORMAT_NAMES}. Rename it, or convert it.")
    return form


def _runs(given: TextRange, digest: Digest | None) -> Iterator[list[dict[str, Any]] | UnreadableRow]:
    lines = _format_of(given.path.name).kind == "jsonl" and not may_be_array(given.path.name)
    return (_line_runs if lines else _row_runs)(given, digest)


def _line_runs(given: TextRange, digest: Digest | None) -> Iterator[list[dict[str, Any]] | UnreadableRow]:
    cut = {"begin": given.begin, "end": given.end} if is_cuttable(given.path.name) else {}
    bounds = {"max_row_bytes": given.max_line_bytes, "zstd_window_log_max": _ZSTD_WINDOW_LOG_MAX}
    try:
        with _opened(given.path, digest) as stream:
            yield from iterate_line_records(stream, _format_of(given.path.name).compression, **bounds, **cut)
            while digest is not None and stream.read(BLOCK_BYTES):
                pass
    except DamagedFile as error:
        raise FileError(given.name, None, str(error)) from None
    except OSError as error:
        raise FileError(given.name, None, f"it cannot be read ({error}). Check its rights and the disk.") from error


def _row_runs(given: TextRange, digest: Digest | None) -> Iterator[list[dict[str, Any]] | UnreadableRow]:
    # loaded here: a worker that reads only lines starts in half the time
    from everytoken.corpus.reading import Reading, ReadingLimits, iterate_rows
    from everytoken.corpus.rendering import DocumentRenderer
    from everytoken.corpus.upstreams import UpstreamFile

    renderer = DocumentRenderer(kind="document", text_column=given.text_field, id_columns=())
    reading = Reading(renderer=renderer, records=None, format=None)
    limits = ReadingLimits(max_row_bytes=given.max_line_bytes, zstd_window_log_max=_ZSTD_WINDOW_LOG_MAX)
    for row in iterate_rows(UpstreamFile("", given.path.name, given.path, None), reading, limits):
        yield row if isinstance(row, UnreadableRow) else [row.record]
    if digest is not None:  # tables are not read from begin to end
        with _opened(given.path, digest) as stream:
            while stream.read(BLOCK_BYTES):
                pass


def _opened(path: Path, digest: Digest | None) -> io.BufferedReader:
    return io.BufferedReader(_DigestedFile(path, digest), BLOCK_BYTES)


class _DigestedFile(io.FileIO):
    """A file that is read from begin to end, with the digest of what was read."""

    def __init__(self, path: Path, digest: Digest | None) -> None:
        super().__init__(path)
        self._digest = digest

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        if self._digest is not None:
            self._digest.update(memoryview(buffer)[:size])
        return size


def _surrogate(text: str) -> int | None:
    """Return where a text has half of a surrogate pair, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _refuse_row(given: TextRange, row: UnreadableRow) -> NoReturn:
    if row.reason == "row_too_large":
        detail = row.detail.replace("the row", f"the {_noun(given)}").replace("max_row_bytes ", "")
        fail(given, row.number, f"{detail}. Raise max_line_bytes; a worker needs several times that memory.")
    fail(given, row.number, f"{row.detail}. {_repair(given)}")


def _require_text(given: TextRange, row: int, record: dict[str, Any]) -> None:
    """Say why a row has no text, if it has none."""
    field = given.text_field
    if field not in record:
        keys = ", ".join(map(shown_name, list(record)[:10])) or "none"
        fail(given, row, f"there is no field {field!r}; there is {keys}. Name the field of the text.")
    text = record[field]
    if not isinstance(text, str):
        fail(given, row, f"the field {field!r} is {json_name(text)}, expected a string. {_repair(given)}")
    if (start := _surrogate(text)) is not None:
        half = f"\\u{ord(text[start]):04x} at character {start}"
        fail(given, row, f"the text has half of a surrogate pair ({half}), which has no UTF-8. {_repair(given)}")


def _noun(given: TextRange) -> str:
    return place_of(given.name, 0).split()[0]


def _repair(given: TextRange) -> str:
    return f"Repair or remove the {_noun(given)}: nothing is passed over."
