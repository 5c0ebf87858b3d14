r"""Blocks of bytes are cut into records without parsing them: lines, and the elements of a JSON array or object.

Lines end at ``\n`` and nowhere else (U+2028, U+0085, VT, FF and ``\r`` belong to the text), so row numbers agree with
every other reader of the file. A BOM of UTF-8 at the very start is passed over, and only there.

An array or object of records is followed by its structure alone: strings and brackets. What stands between two brackets
that fit is a record, also if it is no valid JSON: that is for the parser to say. What breaks the structure itself
(a missing bracket, a comma too many) leaves no place to go on from, and is `DamagedFile`.

Memory holds one record of at most ``max_row_bytes``; of a larger one only the first bytes are kept, as `Oversized`.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from everytoken.corpus.reading.archives import BLOCK_BYTES, DamagedFile, name_of_magic

HEAD_BYTES = 4_096  # of an unreadable row, kept as evidence

_SEVERAL = "If records follow each other, set format to jsonl (one a line) or objects (one on several lines)."
_REPAIR = "Repair the file at its origin, or pin another revision of it."
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NULS = {
    (0, 0, 0, 1): "utf-32-be",
    (1, 0, 0, 0): "utf-32-le",
    (0, 1, 0, 1): "utf-16-be",
    (1, 0, 1, 0): "utf-16-le",
}

_SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb'[^ \t\n\r,:"\[\]{}]*+')
# Before 3.11.5 Python matches too much with a possessive group that has alternatives (gh-106052). Without the plus the
# match is the same, in twice the time.
_OWN = b"+" if sys.version_info >= (3, 11, 5) else b""
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*' + _OWN, re.DOTALL)
_UP_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*' + _OWN + rb'")*' + _OWN, re.DOTALL)
_QUOTE, _BACKSLASH, _COMMA, _COLON, _END = *b'"\\,:', -1
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
_MAX_KEY_BYTES = 1 << 20
_MAX_NESTING = 1 << 20  # a parser takes far less


class Oversized(NamedTuple):
    """A record of more than ``max_row_bytes`` bytes: its size and its first bytes."""

    size: int
    head: bytes


def text_blocks(blocks: Iterator[bytes], expected: str = "JSON text") -> tuple[int, Iterator[bytes]]:
    """Return the offset of the first byte after a BOM, and the blocks from there on.

    Raises:
        DamagedFile: the text is UTF-16 or UTF-32, or these are the bytes of a binary format.
    """
    head = b""
    while len(head) < 16 and (block := next(blocks, b"")):
        head += block
    found = next((name for bom, name in _BOMS.items() if head.startswith(bom)), None)
    if found is None and len(head) >= 4:  # the first two characters of JSON are ASCII
        found = _NULS.get(tuple(min(byte, 1) for byte in head[:4]))  # type: ignore[arg-type]
    if found is not None:
        reason = f"the text is {found[:6].upper()} (it begins with {head[:4]!r}), expected UTF-8"
        raise DamagedFile(reason, f"Convert it to UTF-8, or set the source's encoding to {found}.")
    if (binary := name_of_magic(head)) is not None:
        remedy = "Name the file by what it is (.gz, .zst, .bz2, .xz, .parquet, .arrow), or set format."
        raise DamagedFile(f"it holds {binary} (it begins with {head[:8]!r}), expected {expected}", remedy)
    start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    return start, _chain(head[start:], blocks)


def _chain(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from blocks


def iterate_runs(
    blocks: Iterator[bytes], start: int, max_row_bytes: int, skip: int
) -> Iterator[tuple[int, bytes | Oversized]]:
    r"""Yield runs of whole lines without the ``\n`` of the last one, each with its offset.

    A run has at most ``max_row_bytes`` bytes, or is one line that has more; the last line needs no ``\n``.

    Args:
        max_row_bytes: larger lines are `Oversized`.
        skip: this many lines are passed over.
    """
    offset = start  # of the line that is held
    held: list[bytes] = []  # the pieces of a line that goes on in the next block
    size = 0  # of that line; more than the pieces have when it is too large
    for block in blocks:
        if skip:
            start, block, skip = _after_lines(start, block, skip)
            offset = start
        end = block.rfind(b"\n") + 1
        if not end:
            size += len(block)
            held.append(block)
        elif size + end - 1 <= max_row_bytes:
            begin, run = offset, b"".join([*held, block[: end - 1]])
            offset += size + end
            held, size = [block[end:]], len(block) - end  # before the run is parsed: a large one is not held twice
            yield begin, run
        else:
            first, *lines = block[: end - 1].split(b"\n")
            yield offset, _joined([*held, first], size + len(first), max_row_bytes)
            offset += size + len(first) + 1
            for line in lines:
                yield offset, _joined([line], len(line), max_row_bytes)
                offset += len(line) + 1
            held, size = [block[end:]], len(block) - end
        if size > max_row_bytes:
            held = [b"".join(held)[:HEAD_BYTES]]
    if size:
        yield offset, _joined(held, size, max_row_bytes)


def _after_lines(start: int, block: bytes, lines: int) -> tuple[int, bytes, int]:
    """Return what is left of a block after some lines, its offset, and how many more lines are to be passed over."""
    newlines = block.count(b"\n")
    if newlines < lines:
        return start + len(block), b"", lines - newlines
    at = 0
    for _ in range(lines):
        at = block.index(b"\n", at) + 1
    return start + at, block[at:], 0


def _joined(pieces: list[bytes], size: int, max_row_bytes: int) -> bytes | Oversized:
    data = b"".join(pieces)
    return data if size <= max_row_bytes else Oversized(size, data[:HEAD_BYTES])


def blocks_of_lines(stream: io.BufferedReader, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of the lines that begin in a range of a file."""
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


def count_lines(blocks: Iterator[bytes]) -> int:
    """Return how many lines the runs of `iterate_runs` have."""
    lines, last = 0, b"\n"
    for block in blocks:
        lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def iterate_elements(
    blocks: Iterator[bytes], start: int, max_row_bytes: int, records: str | None, key_of: Callable[[bytes], Any]
) -> Iterator[tuple[int, bytes | None, bytes | Oversized]]:
    """Yield the records of an array or object, each with its offset and the bytes of its key (None in an array).

    Args:
        max_row_bytes: larger records are `Oversized`.
        records: the key at the top whose value holds the records, or None when the whole file does. It may stand
            anywhere; the other values are passed over without being held.
        key_of: parses the bytes of a key at the top.

    Raises:
        DamagedFile: the structure is broken, there is no such key, or something follows the end.
    """
    cutter = _Cutter(blocks, start)
    if records is None:
        yield from _elements(cutter, max_row_bytes)
    else:
        yield from _elements_of_key(cutter, max_row_bytes, records, key_of)
    if cutter.peek() != _END:
        cutter.fail("the end of the file", _SEVERAL)


def iterate_objects(blocks: Iterator[bytes], start: int, max_row_bytes: int) -> Iterator[tuple[int, bytes | Oversized]]:
    """Yield JSON objects that follow each other with only white space between, each with its offset.

    Args:
        max_row_bytes: larger objects are `Oversized`.

    Raises:
        DamagedFile: something else is there, or brackets do not fit.
    """
    cutter = _Cutter(blocks, start)
    while (found := cutter.peek()) != _END:
        if found != ord("{"):
            cutter.fail("a JSON object", "If the objects are in an array, set format to json.")
        yield cutter.value(max_row_bytes)


def first_character(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first byte that is not white space (none in a blank text), and all the blocks.

    Args:
        blocks: white space at their begin is held, at most a few blocks of it in any real file.
    """
    head = b""
    while not head.strip() and (block := next(blocks, b"")):
        head += block
    return head.strip()[:1], _chain(head, blocks)


def _elements(cutter: _Cutter, limit: int) -> Iterator[tuple[int, bytes | None, bytes | Oversized]]:
    if cutter.peek() not in _CLOSING:
        cutter.fail("an array or object of records", "Check the source's `records` and `format`.")
    for key in cutter.entries():
        offset, record = cutter.value(limit)
        yield offset, key, record


def _elements_of_key(
    cutter: _Cutter, limit: int, records: str, key_of: Callable[[bytes], Any]
) -> Iterator[tuple[int, bytes | None, bytes | Oversized]]:
    remedy = "Check the source's `records`."
    if cutter.peek() != ord("{"):
        cutter.fail(f"an object with the key {records!r} at the top", remedy)
    found = False
    others: list[str] = []
    for key in cutter.entries():
        name = key_of(key or b"")
        if name != records:
            cutter.value(0)
            others.append(name) if len(others) < 10 else None
        elif found:
            raise DamagedFile(f"the key {records!r} is there more than once at the top", _REPAIR)
        else:
            found = True
            yield from _elements(cutter, limit)
    if not found:
        raise DamagedFile(f"there is no key {records!r} at the top, found the keys {sorted(others)}", remedy)


class _Cutter:
    """A place in JSON text. The buffer begins at or before the place; what was passed is dropped when it grows."""

    def __init__(self, blocks: Iterator[bytes], start: int) -> None:
        self._blocks = blocks
        self._buffer = bytearray()
        self._base = start  # offset of the buffer
        self._at = 0
        self._head = b""  # of a value that is too large to be held
        self._ended = False

    def fail(self, expected: str, remedy: str = _REPAIR) -> NoReturn:
        """Say what was expected at this place."""
        found = bytes(self._buffer[self._at : self._at + 20])
        where = f"at byte {self._base + self._at}"
        raise DamagedFile(
            f"not valid JSON {where}: expected {expected}, found {found or 'the end of the file'!r}", remedy
        )

    def peek(self) -> int:
        """Go to the next byte that is not white space and return it, or -1 at the end."""
        while True:
            self._at = _SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._grow():
                return _END

    def entries(self) -> Iterator[bytes | None]:
        """Go through the array or object that begins here: yield at every value, in an object with its key.

        Whoever takes the key has to pass the value, by `value` or by `entries` again, before the next one is asked for.
        """
        opening = self._buffer[self._at]
        closing = _CLOSING[opening]
        self._at += 1
        if self.peek() == closing:
            self._at += 1
            return
        while True:
            key = None
            if opening == ord("{"):
                if self.peek() != _QUOTE:
                    self.fail("a key in quotes")
                offset, cut = self.value(_MAX_KEY_BYTES)
                if isinstance(cut, Oversized):
                    reason = f"the key at byte {offset} has {cut.size:,} bytes, expected at most {_MAX_KEY_BYTES:,}"
                    raise DamagedFile(reason, _REPAIR)
                key = cut
                if self.peek() != _COLON:
                    self.fail("':'")
                self._at += 1
            self.peek()
            yield key
            if (found := self.peek()) == closing:
                self._at += 1
                return
            if found != _COMMA:
                self.fail(f"',' or '{chr(closing)}'")
            self._at += 1

    def value(self, limit: int) -> tuple[int, bytes | Oversized]:
        """Pass the value that begins here; return its offset and its bytes, if they are at most ``limit``."""
        first = self.peek()
        begin, self._head = self._base + self._at, b""
        if first == _QUOTE:
            end = self._end_of_string(self._at + 1, limit, begin)
        elif first in _CLOSING:
            end = self._end_of_brackets(self._at, limit, begin)
        else:
            end = self._end_of_scalar(self._at, limit)
        size = self._base + end - begin
        if not size:
            self.fail("a value")
        held = self._head or self._buffer[self._at : end]
        self._at = end
        return begin, bytes(held) if size <= limit else Oversized(size, bytes(held[:HEAD_BYTES]))

    def _end_of_string(self, at: int, limit: int, begin: int) -> int:
        while True:
            at = _REST_OF_STRING.match(self._buffer, at).end()  # type: ignore[union-attr]
            if at < len(self._buffer) and self._buffer[at] == _QUOTE:
                return at + 1
            at = self._more(at, limit)
            if self._ended:
                self._no_end(begin)

    def _end_of_brackets(self, at: int, limit: int, begin: int) -> int:
        inside = bytearray([_CLOSING[self._buffer[at]]])  # the brackets that are to come, from the outermost
        at += 1
        while inside:
            at = _UP_TO_BRACKET.match(self._buffer, at).end()  # type: ignore[union-attr]
            if at == len(self._buffer):
                at = self._more(at, limit)
                if self._ended:
                    self._no_end(begin)
                if len(inside) > _MAX_NESTING:
                    raise DamagedFile(f"the value that begins at byte {begin} is nested without bounds", _REPAIR)
                continue
            byte = self._buffer[at]
            if byte == _QUOTE:  # a string that does not end in the buffer
                at = self._end_of_string(at + 1, limit, begin)
                continue
            if byte in _CLOSING:
                inside.append(_CLOSING[byte])
            elif byte != inside.pop():
                self._at = at
                self.fail("the bracket that fits the one that was opened last")
            at += 1
        return at

    def _end_of_scalar(self, at: int, limit: int) -> int:
        while True:
            at = _SCALAR.match(self._buffer, at).end()  # type: ignore[union-attr]
            if at < len(self._buffer):
                return at
            at = self._more(at, limit)
            if self._ended:
                return at

    def _more(self, at: int, limit: int) -> int:
        """Add a block to the value that is passed; return the new ``at``.

        Of a value beyond ``limit`` only the first `HEAD_BYTES` are held, and only once there are as many.
        """
        if at - self._at > max(limit, HEAD_BYTES):
            self._head = self._head or bytes(self._buffer[self._at : self._at + HEAD_BYTES])
            self._at = at
        at -= self._at
        self._ended = not self._grow()
        return at

    def _grow(self) -> bool:
        """Drop what was passed and add a block; False at the end of the text."""
        del self._buffer[: self._at]
        self._base += self._at
        self._at = 0
        block = next(self._blocks, b"")
        self._buffer += block
        return bool(block)

    def _no_end(self, begin: int) -> NoReturn:
        reason = f"not valid JSON: the value that begins at byte {begin} has no end when the text ends at byte "
        raise DamagedFile(f"{reason}{self._base + len(self._buffer)}", _REPAIR)
