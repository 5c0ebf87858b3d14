"""The rows of a tar archive: of each member that is a file of text, or of members that make a record together.

Format ``tar``: a member is read as a file of its name is, with rows numbered through the archive.

Format ``webdataset``: members of one name up to the first dot of its last part are one record, when they follow each
other. The rest of the name is the column, as in `webdataset`: ``a/7.json`` and ``a/7.txt`` are
``{"__key__": "a/7", "json": ..., "txt": "..."}``. A column that the renderer looks at is read, as JSON when its name
ends in ``json`` and else as text; the others are passed over, as those of a table are.

Names, or keys, are held to find one that is there twice, so an archive has at most `MAX_MEMBERS` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from everytoken.corpus.errors import OTHER_MEMBER, BadRow
from everytoken.corpus.reading.archives import DamagedFile, decompressed
from everytoken.corpus.reading.encodings import as_utf8
from everytoken.corpus.reading.formats import (
    FORMAT_NAMES,
    TABLES,
    TARS,
    Format,
    is_of_macos,
    may_be_array,
    member_format,
    named_format,
    what_to_run_first,
)
from everytoken.corpus.reading.lines import Row, UnreadableRow, too_large
from everytoken.corpus.reading.parsing import parse_record, shown_name
from everytoken.corpus.reading.records import HEAD_BYTES, Oversized, text_blocks
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.reading.tars import DamagedArchive, TarMember

KEY = "__key__"
MAX_MEMBERS = 1_000_000  # about 150 MB of names
_ONCE = "the archive has a member of this name before"
_SORT = "members of one record follow each other, and this key was there before: sort them by name"


def file_rows(
    members: Iterator[TarMember], rows_of: Callable[[TarMember, Format], Iterator[Row | UnreadableRow]]
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows of every member; one that is no file of text, or has the name of another, is set aside as a row.

    Args:
        rows_of: reads the rows of a member, numbered from 0.

    Raises:
        DamagedFile: the archive is damaged or a member is, or one is a table or an archive.
    """
    number = 0
    names: set[str] = set()
    for member in members:
        form = member_format(member.name)
        if member.name in names:
            yield _aside(number, member, "duplicate_key", _ONCE)
            number += 1
            continue
        _hold(names, member.name)
        if form is None:
            yield _aside(number, member, OTHER_MEMBER, _why_not(member))
            number += 1
            continue
        try:
            for row in rows_of(member, form):
                offset = member.offset + (0 if form.compression else row.offset or 0)
                placed = row._replace(number=number, offset=offset)
                if isinstance(placed, UnreadableRow):
                    placed = placed._replace(detail=_of_member(member, placed.detail))
                yield placed
                number += 1
        except DamagedFile as error:
            raise _named(member, error) from None


def _hold(names: set[str], name: str) -> None:
    names.add(name)
    if len(names) > MAX_MEMBERS:
        reason = f"it has over {MAX_MEMBERS:,} names of members, which are held to find one that is there twice"
        raise DamagedArchive(reason, "Divide the archive, or unpack it and read the folder.")


def _why_not(member: TarMember) -> str:
    """Return why a member is not read.

    Raises:
        DamagedFile: it has rows, which would be missing.
    """
    if is_of_macos(member.name):
        return "it holds attributes of macOS"
    kind, _ = named_format(member.name)
    if kind in (*TABLES, *TARS):
        reason = f"member {shown_name(member.name)} is {kind}, which is not read inside a tar archive"
        raise DamagedFile(reason, "Unpack the archive (tar --extract --file FILE), and read the folder.")
    return what_to_run_first(member.name) or f"its name ends in none of {FORMAT_NAMES}"


class SampleColumns(NamedTuple):
    """The columns of records of webdataset.

    Attributes:
        read: all that the renderer looks at, by name or path.
        texts: those of them that hold text, without which there is no document.
        encoding: see `everytoken.corpus.reading.rows.Reading`.
    """

    read: Collection[str]
    texts: Collection[str]
    encoding: str | None


def sample_rows(
    members: Iterator[TarMember], columns: SampleColumns, limits: ReadingLimits
) -> Iterator[Row | UnreadableRow]:
    """Yield the records that members make; a record of which one cannot be read is set aside.

    Raises:
        DamagedFile: the archive is damaged or a member is.
    """
    number = 0
    keys: set[str] = set()
    sample: _Sample | None = None
    for member in members:
        key, name = split_name(member.name)
        if not name:
            yield _aside(number, member, OTHER_MEMBER, "its name has no column, which is what follows the first dot")
            number += 1
            continue
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample.row(number)
                number += 1
            sample = _Sample(key, member.offset, columns, limits)
            if key in keys:
                sample.fail("duplicate_key", _of_member(member, _SORT))
            _hold(keys, key)
        sample.add(name, member)
    if sample is not None:
        yield sample.row(number)


def split_name(name: str) -> tuple[str, str]:
    """Return key and column of a member of webdataset.

    >>> split_name("a.b/7.en.TXT"), split_name("a/.hidden"), split_name("a/README")
    (('a.b/7', 'en.txt'), ('a/.hidden', ''), ('a/README', ''))
    """
    folder, slash, last = name.rpartition("/")
    stem, _, column = last.partition(".")
    return (f"{folder}{slash}{stem}", column.lower()) if stem and column else (name, "")


class _Sample:
    """A record whose members are read."""

    def __init__(self, key: str, offset: int, columns: SampleColumns, limits: ReadingLimits) -> None:
        self.key, self._offset, self._columns, self._limits = key, offset, columns, limits
        self._record: dict[str, Any] = {KEY: key}
        self._names: set[str] = set()
        self._size = 0
        self._fault: UnreadableRow | None = None

    def fail(self, reason: str, detail: str, raw: bytes | None = None) -> None:
        """Set the record aside; the first reason stays."""
        self._fault = self._fault or UnreadableRow(0, self._offset, reason, detail, raw)
        self._record = {}

    def add(self, name: str, member: TarMember) -> None:
        """Read a member, when it is one of the columns that are wanted."""
        if name in self._names:
            self.fail("duplicate_key", _of_member(member, _ONCE))
        self._names.add(name)
        wanted = any(column == name or column.partition(".")[0] == name for column in self._columns.read)
        if self._fault is not None or not wanted:
            return
        try:
            data = self._bytes(name, member)
            if data is not None:
                self._record[name] = _value(name, data)
        except BadRow as error:
            self.fail(error.reason, _of_member(member, error.detail), data[:HEAD_BYTES] if data else None)
        except DamagedFile as error:
            raise _named(member, error) from None

    def _bytes(self, name: str, member: TarMember) -> bytes | None:
        """Return a member's text in UTF-8; None when the record is larger than it may be."""
        form = member_format(f"x.{name}")
        compression = None if form is None else form.compression
        blocks = decompressed(member, compression, self._limits.zstd_window_log_max)
        _, blocks = text_blocks(as_utf8(blocks, self._columns.encoding), "text")
        held, bound = bytearray(), self._limits.max_row_bytes
        for block in blocks:
            self._size += len(block)
            if self._size <= bound:
                held += block
            elif len(held) < HEAD_BYTES:
                held += block[:HEAD_BYTES]
        if self._size <= bound:
            return bytes(held)
        row = too_large(0, self._offset, Oversized(self._size, bytes(held[:HEAD_BYTES])), bound)
        self.fail(row.reason, _of_member(member, row.detail), row.raw)
        return None

    def row(self, number: int) -> Row | UnreadableRow:
        """Return the record, or why there is none."""
        missing = [
            column
            for column in self._columns.texts
            if column not in self._names and column.partition(".")[0] not in self._names
        ]
        if missing and self._fault is None:
            found = ", ".join(sorted(self._names)[:10])
            self.fail("no_text", f"{shown_name(self.key)} has no column {missing[0]!r}, found the columns {found}")
        if self._fault is not None:
            return self._fault._replace(number=number)
        return Row(number, self._offset, None, self._record)


def _value(name: str, data: bytes) -> Any:
    form = member_format(f"x.{name}")
    if (form is not None and form.kind == "objects") or may_be_array(f"x.{name}"):
        return parse_record(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"not valid UTF-8 ({error.reason} at byte {error.start})") from None


def _aside(number: int, member: TarMember, reason: str, detail: str) -> UnreadableRow:
    return UnreadableRow(number, member.offset, reason, _of_member(member, detail), None)


def _of_member(member: TarMember, detail: str) -> str:
    return f"member {shown_name(member.name)}: {detail}"


def _named(member: TarMember, error: DamagedFile) -> DamagedFile:
    if isinstance(error, DamagedArchive):
        return error
    remedy = f"Unpack the archive and read the folder. For that file: {error.remedy}"
    return DamagedFile(_of_member(member, error.reason), remedy)
