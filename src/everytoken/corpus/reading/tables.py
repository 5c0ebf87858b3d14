"""The rows of parquet and arrow files, as the columns that the renderer wants, in batches of bounded size.

Parquet is read by a few rows at a time, not by row groups: a text that is stored once and named by every row is spelled
out as often as rows are read together, and nothing in the file tells so beforehand. What is held beyond them is what
the file itself holds in one piece: a page, or of an arrow file a record batch, which are as large as their writer made
them (datasets: 1,000 rows). Rows are measured before Python's values are made of them.

Both store strings as bytes and do not check them: a row with a string that is not UTF-8 is set aside alone. All offsets
and indices are checked, because corrupt ones point into other memory. Arrow has no checksums, so a flipped bit in a
text can be found by nobody. Parquet has them where its writer asked for them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.corpus.errors import RowError
from everytoken.corpus.reading.lines import Row, UnreadableRow
from everytoken.corpus.reading.rows import Reading, ReadingLimits
from everytoken.corpus.rendering import (
    ConversationRenderer,
    DocumentRenderer,
    JoinedRenderer,
    NamedRenderer,
    top_column,
)
from everytoken.corpus.upstreams import UpstreamFile

_BATCH_ROWS = 1_024
_BATCH_BYTES = 8 << 20
_MEASURED_ROWS = 1 << 20
_VALUE_BYTES = 8  # that every value within a list or struct counts beside its strings: Python has a pointer to it
_FIX_FILE = "Repair the file at its origin, or pin another revision of it."
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_NOT_UTF8 = "a string is not valid UTF-8"
# what making Python's values raises: strings that are not UTF-8, times and decimals that Python has not, unknown zones
_NO_PYTHON_VALUE = (ValueError, ArithmeticError, KeyError, NotImplementedError)


def parquet_rows(
    file: UpstreamFile, stream: io.BufferedReader, reading: Reading, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows from ``first_row`` on; row groups before it are not read."""
    parquet = _parquet_file(file, stream)
    _require_row_count(file, parquet.metadata)
    wanted = _wanted(file, parquet.schema_arrow.names, reading)
    unread = _unread(parquet.schema_arrow.names, wanted, reading)
    number = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if number + rows > first_row:
            seen = number
            for batch in _parquet_batches(file, parquet, group, wanted, limits):
                chosen = batch.select(wanted)
                _require_valid(file, seen, chosen)
                yield from _rows(chosen, seen, first_row, limits, unread)
                seen += batch.num_rows
            if seen != number + rows:
                _fail(file, f"row group {group} has {seen - number} rows, and {rows} by the footer", _REFETCH)
        number += rows


def count_parquet_rows(file: UpstreamFile, stream: io.BufferedReader) -> int:
    """Return the number of rows that the footer tells."""
    return _require_row_count(file, _parquet_file(file, stream).metadata)


def arrow_rows(
    file: UpstreamFile, stream: io.BufferedReader, reading: Reading, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows from ``first_row`` on; batches before it are read and passed over."""
    number, wanted = 0, None
    for batch in _arrow_batches(file, stream):
        wanted = wanted or _wanted(file, batch.schema.names, reading)
        if number + batch.num_rows > first_row:
            chosen, unread = batch.select(wanted), _unread(batch.schema.names, wanted, reading)
            _require_valid(file, number, chosen)
            for at in range(0, batch.num_rows, _MEASURED_ROWS):
                if number + at + _MEASURED_ROWS > first_row:
                    yield from _rows(chosen.slice(at, _MEASURED_ROWS), number + at, first_row, limits, unread)
        number += batch.num_rows


def count_arrow_rows(file: UpstreamFile, stream: io.BufferedReader) -> int:
    """Return the number of rows of all batches."""
    return sum(batch.num_rows for batch in _arrow_batches(file, stream))


def _rows(
    batch: pa.RecordBatch, first: int, first_row: int, limits: ReadingLimits, unread: tuple[str, ...]
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows of a valid batch, whose first row is ``first``, from ``first_row`` on."""
    if first < first_row:
        batch, first = batch.slice(first_row - first), first_row
    columns = [np.broadcast_to(_sizes(column), batch.num_rows) for column in batch.columns]
    sizes = sum(columns, np.zeros(batch.num_rows)).tolist()
    at, most = 0, limits.max_row_bytes
    while at < batch.num_rows:
        if sizes[at] > most:
            largest = max(range(len(columns)), key=lambda index: columns[index][at])
            detail = (
                f"the row has {sizes[at]:,.0f} bytes, over max_row_bytes {most:,}; {columns[largest][at]:,.0f} of them "
                f"are of column {batch.schema.names[largest]!r}"
            )
            yield UnreadableRow(first + at, None, "row_too_large", detail, None)
            at += 1
            continue
        end, held = at + 1, sizes[at]
        while end < min(batch.num_rows, at + _BATCH_ROWS) and sizes[end] <= most and held + sizes[end] <= _BATCH_BYTES:
            held += sizes[end]
            end += 1
        yield from _made(batch.slice(at, end - at), first + at, unread)
        at = end


def _made(batch: pa.RecordBatch, first: int, unread: tuple[str, ...]) -> Iterator[Row | UnreadableRow]:
    """Make Python's values of all rows, or of each alone when one of them has none."""
    try:
        records = batch.to_pylist()
    except _NO_PYTHON_VALUE:
        for at in range(batch.num_rows):
            yield _made_alone(batch.slice(at, 1), first + at, unread)
        return
    for number, record in enumerate(records, first):
        yield Row(number, None, None, record, unread)


def _made_alone(row: pa.RecordBatch, number: int, unread: tuple[str, ...]) -> Row | UnreadableRow:
    record = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            record[name] = column.to_pylist()[0]
        except UnicodeDecodeError as error:
            detail = f"column {name!r}: {_NOT_UTF8} ({error.reason} at byte {error.start} of the string)"
            return UnreadableRow(number, None, "not_utf8", detail, None)
        except _NO_PYTHON_VALUE as error:
            detail = f"column {name!r}: a value has no form in Python ({type(error).__name__}: {error})"
            return UnreadableRow(number, None, "cannot_render", detail, None)
    return Row(number, None, None, record, unread)


def _sizes(array: pa.Array) -> Any:
    """Return what each value takes: the bytes of its strings, and `_VALUE_BYTES` for each value within it.

    One number stands for all values when they take the same, because an array of nulls may be of any length and takes
    no memory. Numbers are floats, which do not wrap.
    """
    kind = array.type
    if len(array) == 0:
        return 0.0
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if isinstance(array, pa.DictionaryArray):
        each = _sizes(array.dictionary)
        sizes = each if np.isscalar(each) else each[array.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    elif isinstance(array, pa.StructArray):
        fields = [_sizes(array.field(index)) for index in range(kind.num_fields)]
        sizes = sum(fields, float(_VALUE_BYTES * len(fields)))
    elif isinstance(array, pa.FixedSizeListArray):
        count = kind.list_size
        each = _sizes(array.values.slice(array.offset * count, len(array) * count))
        inside = each * count if np.isscalar(each) else each.reshape(len(array), count).sum(axis=1)
        sizes = inside + float(_VALUE_BYTES * count)
    elif isinstance(array, _LISTS):
        begins = array.offsets.to_numpy()[: len(array)].astype(np.int64)
        ends = begins + array.sizes.to_numpy() if isinstance(array, _VIEWS) else array.offsets.to_numpy()[1:]
        low = int(begins.min())
        each = _sizes(array.values.slice(low, int(ends.max()) - low))
        before = None if np.isscalar(each) else np.concatenate([[0.0], np.cumsum(each)])
        inside = (ends - begins) * each if before is None else before[ends - low] - before[begins - low]
        sizes = inside + (ends - begins) * float(_VALUE_BYTES)
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        end = 4 * (array.offset + len(array))  # four numbers for each string, the first of them its length
        sizes = np.frombuffer(array.buffers()[1], np.int32, end)[4 * array.offset :: 4].astype(float)
    elif any(is_kind(kind) for is_kind in _STRINGS):
        sizes = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(float)
    elif pa.types.is_fixed_size_binary(kind):
        return float(kind.byte_width)
    else:
        return 0.0
    if array.null_count and not np.isscalar(sizes):
        sizes = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0.0)
    return sizes


_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_VIEWS = (pa.ListViewArray, pa.LargeListViewArray)
_LISTS = (pa.ListArray, pa.LargeListArray, *_VIEWS)  # a map is a list too


def _wanted(file: UpstreamFile, names: Sequence[str], reading: Reading) -> list[str]:
    """Return the columns to read: those that the renderer looks at, so that no other one decides over a row."""
    renderer = reading.renderer
    texts: tuple[str, ...] = ()
    if isinstance(renderer, NamedRenderer):
        return list(names)
    if isinstance(renderer, DocumentRenderer):
        texts, remedy = (renderer.text_column,), "Set the renderer's text_column to the one that holds the text."
    elif isinstance(renderer, JoinedRenderer):
        texts, remedy = renderer.text_columns, "Set the renderer's text_columns to those that hold the text."
    else:
        remedy = "Set the renderer's shape to that of the chats, or name their columns in column_names."
    missing = [name for name in texts if top_column(name, names) is None]
    held = (top_column(name, names) for name in renderer.columns)
    wanted = list(dict.fromkeys(name for name in held if name is not None))
    if wanted and isinstance(renderer, ConversationRenderer):
        wanted += [name for name in renderer.carriers if name in names]
    if missing or not wanted:
        expected = f"no column {missing[0]!r}" if missing else f"none of the columns {renderer.columns}"
        _fail(file, f"there is {expected}, found the columns {sorted(names)}", remedy)
    return wanted


def _unread(names: Sequence[str], wanted: Sequence[str], reading: Reading) -> tuple[str, ...]:
    """Return the columns that no record of chats has; of other documents it is their parameters that choose."""
    if not isinstance(reading.renderer, ConversationRenderer):
        return ()
    return tuple(name for name in names if name not in wanted)


def _parquet_file(file: UpstreamFile, stream: io.BufferedReader) -> pq.ParquetFile:
    """Open parquet; pages with a checksum are verified, and read as they are needed."""
    parquet = pq.ParquetFile(stream, page_checksum_verification=True, buffer_size=1 << 20, pre_buffer=False)
    _require_distinct(file, parquet.schema_arrow.names)
    return parquet


def _require_row_count(file: UpstreamFile, metadata: pq.FileMetaData) -> int:
    """Return the number of rows of a file, which its footer tells twice: of the whole, and of each row group.

    Nothing else of a row group is asked for: pyarrow ends the process when the metadata of a column are corrupt.
    """
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    total: int = metadata.num_rows
    if sum(groups) != total or min(groups, default=0) < 0:
        reason = f"the footer tells {total} rows, and {sum(groups)} in its {len(groups)} row groups"
        _fail(file, f"truncated or corrupt: {reason}", _REFETCH)
    return total


def _parquet_batches(
    file: UpstreamFile, parquet: pq.ParquetFile, group: int, wanted: list[str], limits: ReadingLimits
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most about `_BATCH_BYTES`, gathered from batches of so few rows that each may be the largest.

    What was a dictionary in arrow is one again, whole for every batch: then nothing is gathered.
    """
    kinds = [parquet.schema_arrow.field(name).type for name in wanted]
    bounded = all(_is_bounded(kind) for kind in kinds)
    count = _BATCH_ROWS if bounded else max(2, min(_BATCH_ROWS, _BATCH_BYTES // limits.max_row_bytes))
    room = 0 if bounded or any(_has_dictionary(kind) for kind in kinds) else _BATCH_BYTES
    held: list[pa.RecordBatch] = []
    rows = taken = 0
    try:
        for batch in parquet.iter_batches(count, row_groups=[group], columns=wanted, use_threads=False):
            size = batch.nbytes
            if held and (rows + batch.num_rows > _BATCH_ROWS or taken + size > room):
                whole, held, rows, taken = _joined(held), [], 0, 0
                yield whole
                del whole  # before more is read
            held.append(batch)
            rows, taken = rows + batch.num_rows, taken + size
    except MemoryError as error:
        reason = f"corrupt, or larger than this machine: row group {group} asks for too much memory ({error})"
        _fail(file, reason, _REFETCH)
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def _is_bounded(kind: pa.DataType) -> bool:
    """Return whether values take no more memory in arrow than in parquet."""
    return any(is_kind(kind) for is_kind in (pa.types.is_dictionary, pa.types.is_primitive, pa.types.is_null))


def _has_dictionary(kind: pa.DataType) -> bool:
    below = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(_has_dictionary(inner) for inner in below)


def _require_distinct(file: UpstreamFile, names: Sequence[str]) -> None:
    """Refuse a name given twice: a row would lose all columns of it but the last."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        _fail(file, f"there is more than one column of the name {twice[0]!r}", _FIX_FILE)


def _arrow_batches(file: UpstreamFile, stream: io.BufferedReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an IPC file or stream, whichever the bytes are; a stream must say where it ends.

    A stream that was cut between two batches looks like one that ends there, but for its end-of-stream marker. Every
    writer of today leaves it (when it is closed), so a stream without it is damaged.
    """
    try:
        yield from (
            _batches_of_file(file, stream) if stream.peek(6)[:6] == b"ARROW1" else _batches_of_stream(file, stream)
        )
    except MemoryError as error:
        _fail(file, f"corrupt, or larger than this machine: a batch asks for too much memory ({error})", _REFETCH)


def _batches_of_file(file: UpstreamFile, stream: io.BufferedReader) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(stream)
    _require_distinct(file, reader.schema.names)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _batches_of_stream(file: UpstreamFile, stream: io.BufferedReader) -> Iterator[pa.RecordBatch]:
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, end - len(_END_OF_STREAM)))
    if stream.read() != _END_OF_STREAM:
        reason = f"truncated or corrupt: no arrow file, and no arrow stream that ends at byte {end} with its marker"
        _fail(file, reason, _REFETCH)
    stream.seek(0)
    reader = pa.ipc.open_stream(stream)
    _require_distinct(file, reader.schema.names)
    yield from reader
    if (place := stream.tell()) != end:
        _fail(file, f"truncated or corrupt: the arrow stream ends at byte {place}, and the file at {end}", _REFETCH)


def _require_valid(file: UpstreamFile, number: int, batch: pa.RecordBatch) -> None:
    """Check everything about a batch but whether strings are UTF-8."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            if len(column) != batch.num_rows:
                raise ValueError(f"it has {len(column)} values, and the batch {batch.num_rows} rows")
            column.validate(full=False)
            for level in _levels(column):
                level.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowIndexError, ValueError) as error:
            reason = f"truncated or corrupt: column {name!r} of the batch that begins with row {number} ({error})"
            _fail(file, reason, _REFETCH)
        except NotImplementedError as error:
            _fail(file, f"column {name!r} {error}", "Write the column as a plain type, or leave it out.")


def _levels(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays that an array is made of, each without those below it: strings as bytes, lists as of nulls.

    An array is to be valid but for its contents, and what is yielded is to be validated in full before the next is
    asked for.

    Raises:
        ValueError: an index of a dictionary is not in it.
        NotImplementedError: a type is not read.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from _levels(array.storage)
    elif pa.types.is_string(kind):
        yield array.view(pa.binary())
    elif pa.types.is_large_string(kind):
        yield array.view(pa.large_binary())
    elif pa.types.is_string_view(kind):
        yield array.view(pa.binary_view())
    elif isinstance(array, pa.StructArray):
        for index in range(kind.num_fields):
            yield from _levels(array.field(index))
    elif isinstance(array, pa.DictionaryArray):
        yield from _levels(array.dictionary)
        bounds = pc.min_max(array.indices).as_py()
        if bounds["max"] is not None and not 0 <= bounds["min"] <= bounds["max"] < len(array.dictionary):
            raise ValueError("an index is not in the dictionary")
    elif isinstance(array, _LISTS):
        of_nulls = next(like for form, like in _OF_NULLS.items() if isinstance(array, form))
        buffers = array.buffers()[: 3 if isinstance(array, _VIEWS) else 2]
        below = [pa.nulls(len(array.values))]
        yield pa.Array.from_buffers(of_nulls, len(array), buffers, array.null_count, array.offset, below)
        yield from _levels(array.values)
    elif isinstance(array, pa.FixedSizeListArray):
        yield from _levels(array.values)
    elif kind.num_fields:
        raise NotImplementedError(f"is of type {kind}, which is not read")
    else:
        yield array


_OF_NULLS = {
    pa.ListArray: pa.list_(pa.null()),
    pa.LargeListArray: pa.large_list(pa.null()),
    pa.ListViewArray: pa.list_view(pa.null()),
    pa.LargeListViewArray: pa.large_list_view(pa.null()),
}


def _fail(file: UpstreamFile, reason: str, remedy: str) -> NoReturn:
    raise RowError(file.source, file.path, None, reason, remedy)
