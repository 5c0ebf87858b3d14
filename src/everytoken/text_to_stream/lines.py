r"""The texts of a ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` file: one JSON object a line, one document an object.

Lines are read as the corpus reads them (`everytoken.corpus.reading`): strict UTF-8, no key twice, no line passed over.
The first line that is no document is an error: a stream without it would be another stream. A byte range of a file
without compression has the lines that begin in it, so ranges that cover the file have every line once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from everytoken.corpus import BadRow
from everytoken.corpus.reading import (
    BLOCK_BYTES,
    DamagedFile,
    Oversized,
    decompressed,
    iterate_runs,
    json_name,
    parse_row,
    parse_rows,
    shown_name,
    text_blocks,
)
from everytoken.text_to_stream.errors import FileError

_BATCH_CHARACTERS = 1 << 18  # larger ones are slower
_COMPRESSIONS = {".jsonl": None, ".jsonl.gz": "gz", ".jsonl.zst": "zst"}
_ZSTD_WINDOW_LOG_MAX = 31
_REPAIR = "Repair or remove the line: nothing is passed over."


class Lines(NamedTuple):
    """Lines of a file to read.

    Attributes:
        path: of the file.
        name: of the file in messages.
        begin: first byte of the range whose lines are read.
        end: byte after that range.
        text_field: key of the text in each line's object.
        max_line_bytes: a longer line is an error.
    """

    path: Path
    name: str
    begin: int
    end: int
    text_field: str
    max_line_bytes: int


class Texts(NamedTuple):
    """Texts of consecutive lines, at most `_BATCH_CHARACTERS` code points or one text.

    Attributes:
        texts: one a line.
        line: number of the first line, from 0 at the begin of the range.
    """

    texts: list[str]
    line: int


def compression_of(name: str) -> str | None:
    """Return how a file is compressed: ``gz``, ``zst`` or None.

    Raises:
        FileError: its name has another suffix.
    """
    for suffix, compression in _COMPRESSIONS.items():
        if name.endswith(suffix):
            return compression
    raise FileError(name, None, f"its name ends in none of {', '.join(_COMPRESSIONS)}. Rename it, or convert it.")


def read_texts(lines: Lines) -> Iterator[Texts]:
    """Yield the texts of the lines in order.

    Raises:
        FileError: the file is missing or damaged, or a line is no document.
    """
    batch: list[str] = []
    size = number = 0
    for text in _texts(lines):
        if batch and size + len(text) > _BATCH_CHARACTERS:
            yield Texts(batch, number)
            number += len(batch)
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield Texts(batch, number)


def fail(lines: Lines, line: int, message: str, kind: type[FileError] = FileError) -> NoReturn:
    """Raise an error that names a line by its number in the file, from 1."""
    raise kind(lines.name, line + 1 + _lines_before(lines), message) from None


def _lines_before(lines: Lines) -> int:
    """Count the lines that begin before the first of the range; only an error asks for it."""
    count, left, block = 0, lines.begin, b"\n"
    with lines.path.open("rb") as stream:
        while left and (block := stream.read(min(left, BLOCK_BYTES))):
            count, left = count + block.count(b"\n"), left - len(block)
    return count + (not block.endswith(b"\n"))


def _texts(lines: Lines) -> Iterator[str]:
    number = 0
    try:
        with lines.path.open("rb") as stream:
            for _, run in iterate_runs(*_blocks(lines, stream), lines.max_line_bytes, 0):
                if isinstance(run, Oversized):
                    over = f"the line has {run.size:,} bytes, over {lines.max_line_bytes:,}"
                    fail(lines, number, f"{over}. Raise max_line_bytes; a worker needs several times that memory.")
                texts = _texts_of_run(lines, number, run)
                number += len(texts)
                yield from texts
    except DamagedFile as error:
        raise FileError(lines.name, None, str(error)) from None
    except OSError as error:
        raise FileError(lines.name, None, f"it cannot be read ({error}). Check the path and its rights.") from None


def _blocks(lines: Lines, stream: io.BufferedReader) -> tuple[Iterator[bytes], int]:
    compression = compression_of(lines.path.name)
    if compression is None and lines.begin:
        return _range(stream, lines.begin, lines.end), lines.begin
    if compression is None:
        found = _range(stream, 0, lines.end)
    else:
        found = decompressed(stream, compression, _ZSTD_WINDOW_LOG_MAX)
    start, blocks = text_blocks(found)
    return blocks, start


def _range(stream: io.BufferedReader, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of the lines that begin in a range."""
    if begin:
        stream.seek(begin - 1)
        while (rest := stream.readline(BLOCK_BYTES)) and not rest.endswith(b"\n"):
            pass
    position, block = stream.tell(), b"\n"
    while position < end and (block := stream.read(min(BLOCK_BYTES, end - position))):
        position += len(block)
        yield block
    while not block.endswith(b"\n") and (block := stream.readline(BLOCK_BYTES)):
        yield block


def _texts_of_run(lines: Lines, number: int, run: bytes) -> list[str]:
    field = lines.text_field
    if (parsed := parse_rows(run)) is not None:
        try:
            texts = [value[field] for value in parsed[1]]
        except KeyError:
            texts = []
        if texts and set(map(type, texts)) == {str}:
            return texts  # the parser of whole runs refuses what has no UTF-8
    return [_text(lines, at, line) for at, line in enumerate(run.split(b"\n"), number)]


def _text(lines: Lines, number: int, line: bytes) -> str:
    """Return the text of one line, or say why it has none."""
    try:
        row = parse_row(line)
    except BadRow as error:
        fail(lines, number, f"{error.detail}. {_REPAIR}")
    if lines.text_field not in row:
        keys = ", ".join(map(shown_name, list(row)[:10])) or "none"
        fail(lines, number, f"there is no field {lines.text_field!r}; there is {keys}. Name the field of the text.")
    text = row[lines.text_field]
    if not isinstance(text, str):
        fail(lines, number, f"the field {lines.text_field!r} is {json_name(text)}, expected a string. {_REPAIR}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x} at character {error.start}"
        fail(lines, number, f"the text has half of a surrogate pair ({half}), which has no UTF-8. {_REPAIR}")
    return text
