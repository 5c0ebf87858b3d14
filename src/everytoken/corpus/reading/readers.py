r"""The rows of one upstream file of any format in `formats.FORMAT_NAMES`.

A row is read exactly as it is, or set aside as an `UnreadableRow` with its number, its offset and the reason; nothing
is repaired, and nothing is passed over. A file that is damaged as a whole (cut, corrupt, no such format) is a
`RowError`. Memory holds blocks of 128 KiB and one row, whatever the size of the file: see `ReadingLimits`.

`archives` decompresses, `encodings` makes UTF-8, `records` cuts bytes into records, `parsing` reads one;
`delimited` reads CSV and TSV, `tables` parquet and arrow, `members` what `tars` finds in tar archives.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from everytoken.corpus.errors import BadRow, RowError, UpstreamError
from everytoken.corpus.reading.archives import DamagedFile, Readable, decompressed
from everytoken.corpus.reading.delimited import delimited_rows
from everytoken.corpus.reading.encodings import as_utf8
from everytoken.corpus.reading.formats import (
    FORMAT_NAMES,
    TABLES,
    TARS,
    Format,
    may_be_array,
    named_format,
    what_to_run_first,
)
from everytoken.corpus.reading.lines import Row, UnreadableRow, line_runs, too_large
from everytoken.corpus.reading.members import SampleColumns, file_rows, sample_rows
from everytoken.corpus.reading.parsing import (
    json_name,
    parse_record,
    parse_reference,
    shown_name,
)
from everytoken.corpus.reading.records import (
    HEAD_BYTES,
    Oversized,
    count_lines,
    first_character,
    iterate_elements,
    iterate_objects,
    text_blocks,
)
from everytoken.corpus.reading.rows import Reading, ReadingLimits
from everytoken.corpus.reading.tars import TarMember, tar_members
from everytoken.corpus.rendering import CUTS, GATHERED, DocumentRenderer, JoinedRenderer
from everytoken.corpus.upstreams import UpstreamFile, damage_named

MAX_GATHERED = 10_000  # records of one document
_ONE_RECORD = "; for a file that is one record set format to objects"


def format_of(file: UpstreamFile, reading: Reading) -> Format:
    """Return the format of a file, by ``reading.format`` or its name; nothing is read.

    Raises:
        UpstreamError: the name tells no format, or ``records`` is given for a format without them.
    """
    place = f"source {file.source!r}, file {file.path}"
    named, compression = named_format(file.path)
    kind = reading.format or named
    if kind is None and (first := what_to_run_first(file.path)) is not None:
        raise UpstreamError(f"{place}: {first}. Or leave the file out by upstream.pattern.")
    if kind is None:
        raise UpstreamError(
            f"{place}: the format is not known by its name. Expected one of {FORMAT_NAMES}: set the source's format, "
            f"or change upstream.pattern or upstream.member."
        )
    if compression is not None and kind in TABLES:
        raise UpstreamError(
            f"{place}: {kind} is compressed inside and is not read from a .{compression} file. "
            f"Decompress it, or change the source's format."
        )
    if reading.encoding is not None and kind in TABLES:
        raise UpstreamError(
            f"{place}: encoding is {reading.encoding!r}, but strings of {kind} are UTF-8. Set encoding to null."
        )
    if reading.records is not None and kind != "json":
        raise UpstreamError(
            f"{place}: records is {reading.records!r}, but the file is read as {kind}, where every row is a record. "
            f"Set records to null, or change upstream.pattern to .json files, or set format to json."
        )
    if kind == "webdataset" and not isinstance(reading.renderer, DocumentRenderer | JoinedRenderer):
        raise UpstreamError(
            f"{place}: format is 'webdataset', which is for the renderers document and joined. Set format to tar: "
            f"every .json member is then a record."
        )
    return Format(kind, compression)


def iterate_rows(
    file: UpstreamFile, reading: Reading, limits: ReadingLimits, first_row: int = 0, rows: int | None = None
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows ``[first_row, first_row + rows)`` of a file in order, all that follow when ``rows`` is None.

    The reader of the last rows reads on to the end of the file, so that what stands at its end (the checksum of an
    archive, a bracket) is checked by somebody.

    Raises:
        RowError: the file is missing or damaged, or it has fewer rows than asked for.
        UpstreamError: see `format_of`.
    """
    form = format_of(file, reading)
    stop = None if rows is None else first_row + rows
    count = 0
    with file.open() as stream, _damage_named(file, stream):
        found = _rows(file, stream, form, reading, limits, first_row)
        if stop is None:
            yield from found
            return
        for row in found:
            if row.number >= stop:
                break
            count += 1
            yield row
    if count != rows:
        reason = f"it has {first_row + count} rows, expected at least {stop}"
        raise RowError(file.source, file.path, None, reason, "Make the shard plan again.")


def count_rows(file: UpstreamFile, reading: Reading, limits: ReadingLimits) -> int:
    """Return how many rows `iterate_rows` yields; lines and records are counted without parsing them.

    Raises:
        RowError: the file is missing or damaged.
        UpstreamError: see `format_of`.
    """
    form = format_of(file, reading)
    with file.open() as stream, _damage_named(file, stream):
        if reading.renderer.kind in CUTS or reading.renderer.kind in GATHERED:
            return sum(1 for _ in _rows(file, stream, form, reading, limits, 0))
        if form.kind in TABLES:
            from everytoken.corpus.reading.tables import count_arrow_rows, count_parquet_rows  # as in `_records`

            return (count_parquet_rows if form.kind == "parquet" else count_arrow_rows)(file, stream)
        if form.kind == "txt" or form.kind in TARS:
            return sum(1 for _ in _rows(file, stream, form, reading, limits, 0))
        start, form, blocks = _text(stream, form, reading.format is None and may_be_array(file.path), reading, limits)
        if form.kind in ("csv", "tsv"):
            return sum(1 for _ in delimited_rows(blocks, start, form.kind, limits.max_row_bytes))
        if form.kind == "jsonl":
            return count_lines(blocks)
        if form.kind == "objects":
            return sum(1 for _ in iterate_objects(blocks, start, limits.max_row_bytes))
        return sum(1 for _ in iterate_elements(blocks, start, limits.max_row_bytes, reading.records, _parse_top_key))


def _rows(
    file: UpstreamFile,
    stream: io.BufferedReader,
    form: Format,
    reading: Reading,
    limits: ReadingLimits,
    first_row: int,
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows from ``first_row`` on: the records, or what the renderer has them cut into or gathered to."""
    cut, gathered = CUTS.get(reading.renderer.kind), GATHERED.get(reading.renderer.kind)
    if gathered is not None:
        records = _records(file, stream, form, reading, limits, 0)
        return itertools.islice(_gathered_rows(records, gathered), first_row, None)
    if cut is None:
        return _records(file, stream, form, reading, limits, first_row)
    return itertools.islice(_cut_rows(_records(file, stream, form, reading, limits, 0), cut), first_row, None)


def _gathered_rows(records: Iterator[Row | UnreadableRow], name: str) -> Iterator[Row | UnreadableRow]:
    """Gather records that follow each other and have one value of ``name`` into rows ``{name, messages}``.

    A record that cannot be read is a row of its own; one without the name is gathered with no other.
    """
    number, count, held = 0, 0, list[Row]()
    for record in itertools.chain(records, [None]):
        if held and not (isinstance(record, Row) and _belongs(held[0], record, name)):
            yield _gathered(number, held, count, name)
            number, count, held = number + 1, 0, []
        if isinstance(record, UnreadableRow):
            yield record._replace(number=number)
            number += 1
        elif record is not None:
            count += 1
            held += [record] if count <= MAX_GATHERED else []


def _belongs(first: Row, record: Row, name: str) -> bool:
    value = first.record.get(name)
    return value is not None and bool(record.record.get(name) == value)


def _gathered(number: int, held: list[Row], count: int, name: str) -> Row | UnreadableRow:
    first = held[0]
    if count > MAX_GATHERED:
        detail = f"{count:,} records have one {name!r}, and at most {MAX_GATHERED:,} are gathered"
        return UnreadableRow(number, first.offset, "row_too_large", detail, None)
    unread = tuple(column for row in held for column in row.unread)
    record = {name: first.record.get(name), "messages": [row.record for row in held]}
    return Row(number, first.offset, None, record, unread)


def _cut_rows(
    records: Iterator[Row | UnreadableRow], cut: Callable[[str | None, Any], Iterator[Any]]
) -> Iterator[Row | UnreadableRow]:
    """Cut each record into rows; one that cannot be cut to its end is one unreadable row."""
    number = 0
    for record in records:
        if isinstance(record, UnreadableRow):
            yield record._replace(number=number)
            number += 1
            continue
        try:
            for _ in cut(record.key, record.record):  # to its end first: the paths of a tree are too many to hold
                pass
        except BadRow as error:
            yield UnreadableRow(number, record.offset, error.reason, error.detail, None)
            number += 1
            continue
        for piece in cut(record.key, record.record):
            yield Row(number, record.offset, record.key, piece, record.unread)
            number += 1


def _records(
    file: UpstreamFile,
    stream: io.BufferedReader,
    form: Format,
    reading: Reading,
    limits: ReadingLimits,
    first_row: int,
) -> Iterator[Row | UnreadableRow]:
    if form.kind in TABLES:
        # loaded here: pyarrow costs a start more than a small file of text
        from everytoken.corpus.reading.tables import arrow_rows, parquet_rows

        return (parquet_rows if form.kind == "parquet" else arrow_rows)(file, stream, reading, limits, first_row)
    if form.kind in TARS:
        return itertools.islice(_tar_rows(stream, form, reading, limits), first_row, None)
    may_be = reading.format is None and may_be_array(file.path)
    return _text_rows(file.path, stream, form, may_be, reading, limits, first_row)


def _tar_rows(
    stream: io.BufferedReader, form: Format, reading: Reading, limits: ReadingLimits
) -> Iterator[Row | UnreadableRow]:
    members = tar_members(decompressed(stream, form.compression, limits.zstd_window_log_max))
    if form.kind == "webdataset":
        renderer = reading.renderer
        assert isinstance(renderer, DocumentRenderer | JoinedRenderer)  # see `format_of`
        texts = (renderer.text_column,) if isinstance(renderer, DocumentRenderer) else renderer.text_columns
        return sample_rows(members, SampleColumns(renderer.columns, texts, reading.encoding), limits)

    def rows_of(member: TarMember, of_member: Format) -> Iterator[Row | UnreadableRow]:
        may_be = of_member.kind == "objects" or may_be_array(member.name)
        return _text_rows(member.name, member, of_member, may_be, reading, limits, 0)

    return file_rows(members, rows_of)


def _text_rows(
    path: str,
    stream: Readable,
    form: Format,
    may_be: bool,
    reading: Reading,
    limits: ReadingLimits,
    first_row: int,
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows of a file of text, or of a member that is one; ``may_be``: see `_text`."""
    if form.kind == "txt":
        data = as_utf8(decompressed(stream, form.compression, limits.zstd_window_log_max), reading.encoding)
        return itertools.islice(_whole_text(path, data, limits), first_row, None)
    start, form, blocks = _text(stream, form, may_be, reading, limits)
    if form.kind in ("csv", "tsv"):
        return itertools.islice(delimited_rows(blocks, start, form.kind, limits.max_row_bytes), first_row, None)
    if form.kind == "jsonl":
        return _line_rows(blocks, start, limits, first_row)
    if form.kind == "objects":
        return itertools.islice(_object_rows(blocks, start, limits), first_row, None)
    return _json_rows(blocks, start, reading, limits, first_row)


def _text(
    stream: Readable, form: Format, may_be: bool, reading: Reading, limits: ReadingLimits
) -> tuple[int, Format, Iterator[bytes]]:
    """Return the offset of the text after a BOM, its format, and its blocks.

    Args:
        may_be: whether it is an array when it begins as one.
    """
    data = as_utf8(decompressed(stream, form.compression, limits.zstd_window_log_max), reading.encoding)
    start, blocks = text_blocks(data, f"{form.kind.upper()} text" if form.kind in ("csv", "tsv") else "JSON text")
    if may_be:
        first, blocks = first_character(blocks)
        form = form._replace(kind="json" if first == b"[" else form.kind)
    return start, form, blocks


def _line_rows(
    blocks: Iterator[bytes], start: int, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    for run in line_runs(blocks, start, limits.max_row_bytes, first_row):
        if isinstance(run, UnreadableRow):
            yield run
            continue
        number, begin, offsets, records = run
        for offset, record in zip(offsets, records, strict=True):
            yield Row(number, begin + offset, None, record)
            number += 1


def _whole_text(path: str, data: Iterator[bytes], limits: ReadingLimits) -> Iterator[Row | UnreadableRow]:
    """Yield the one row of a file of text: its path as ``id``, all that it holds as ``text``."""
    start, blocks = text_blocks(data, "text")
    held, size = bytearray(), 0
    for block in blocks:  # to its end: an archive's checksum comes last
        size += len(block)
        held += block if size <= limits.max_row_bytes else block[:HEAD_BYTES]
        if size > limits.max_row_bytes:
            del held[HEAD_BYTES:]
    if size > limits.max_row_bytes:
        yield too_large(0, start, Oversized(size, bytes(held)), limits.max_row_bytes)
        return
    try:
        yield Row(0, start, None, {"id": path, "text": held.decode("utf-8")})
    except UnicodeDecodeError as error:
        detail = f"not valid UTF-8 ({error.reason} at byte {error.start} of the row)"
        yield UnreadableRow(0, start, "not_utf8", detail, bytes(held[:HEAD_BYTES]))


def _json_rows(
    blocks: Iterator[bytes], start: int, reading: Reading, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    """Yield the records of an array or object from ``first_row`` on.

    The keys of an object are held in memory: a key given twice is set aside the second time.
    """
    objects = reading.renderer.kind not in CUTS  # what is cut may be a text
    keys: set[str] = set()
    elements = iterate_elements(blocks, start, limits.max_row_bytes, reading.records, _parse_top_key)
    for number, (offset, raw_key, record) in enumerate(elements):
        row: Row | UnreadableRow
        try:
            key = None if raw_key is None else _parse_key(raw_key, keys)
            if isinstance(record, Oversized):
                row = too_large(number, offset, record, limits.max_row_bytes)
            else:
                row = Row(number, offset, key, _value(record, objects) if number >= first_row else None)
        except BadRow as error:
            head = record.head if isinstance(record, Oversized) else record[:HEAD_BYTES]
            row = UnreadableRow(number, offset, error.reason, error.detail, head)
        if number >= first_row:
            yield row


def _object_rows(blocks: Iterator[bytes], start: int, limits: ReadingLimits) -> Iterator[Row | UnreadableRow]:
    for number, (offset, record) in enumerate(iterate_objects(blocks, start, limits.max_row_bytes)):
        if isinstance(record, Oversized):
            yield too_large(number, offset, record, limits.max_row_bytes)
            continue
        try:
            yield Row(number, offset, None, parse_record(record))
        except BadRow as error:
            yield UnreadableRow(number, offset, error.reason, error.detail, record[:HEAD_BYTES])


def _value(record: bytes, objects: bool) -> Any:
    value = parse_record(record)
    if objects and type(value) is not dict:
        raise BadRow("not_an_object", f"the record is {json_name(value)}, expected a JSON object{_ONE_RECORD}")
    return value


def _parse_key(data: bytes, seen: set[str]) -> str:
    key: str = parse_reference(data)
    if key in seen:
        raise BadRow("duplicate_key", f"the object of records has the key {shown_name(key)} more than once")
    seen.add(key)
    return key


def _parse_top_key(data: bytes) -> Any:
    try:
        return parse_reference(data)
    except BadRow as error:
        reason = f"a key at the top cannot be read ({error.detail})"
        raise DamagedFile(reason, "Repair the file at its origin, or pin another revision of it.") from None


@contextmanager
def _damage_named(file: UpstreamFile, stream: io.BufferedReader) -> Iterator[None]:
    with damage_named(file, stream):
        try:
            yield
        except DamagedFile as error:
            raise RowError(file.source, file.path, None, error.reason, error.remedy) from None
