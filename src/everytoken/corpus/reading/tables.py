"""The rows of parquet and arrow files, as the columns that the renderer wants, in batches of bounded size.

Parquet is read by pages, not by row groups; an arrow file by its record batches, which are as large as their writer
made them (datasets: 1,000 rows). Both store strings as bytes and do not check them: a row with a string that is not
UTF-8 is set aside alone. Of arrow all offsets are checked too, because corrupt ones point into other memory; it has no
checksums, so a flipped bit in a text can be found by nobody. Parquet has them where its writer asked for them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.corpus.errors import RowError
from everytoken.corpus.reading.rows import Reading, ReadingLimits, Row, UnreadableRow
from everytoken.corpus.rendering.renderers import DocumentRenderer
from everytoken.corpus.upstreams.file import UpstreamFile

_BATCH_ROWS = 1_024
_BATCH_BYTES = 16 << 20
_FIX_FILE = "Repair the file at its origin, or pin another revision of it."
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_NOT_UTF8 = "a string is not valid UTF-8"


def parquet_rows(
    file: UpstreamFile, stream: io.BufferedReader, reading: Reading, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows from ``first_row`` on; row groups before it are not read."""
    parquet = _parquet_file(file, stream)
    wanted = _wanted(file, parquet.schema_arrow.names, reading)
    number = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if number + rows > first_row:
            size = _batch_rows(parquet.metadata.row_group(group))
            seen = number
            for batch in parquet.iter_batches(size, row_groups=[group], columns=wanted, use_threads=False):
                yield from _rows(batch.select(wanted), seen, first_row, limits)
                seen += batch.num_rows
            if seen != number + rows:
                _fail(file, f"row group {group} has {seen - number} rows, and {rows} by the footer", _REFETCH)
        number += rows


def count_parquet_rows(file: UpstreamFile, stream: io.BufferedReader) -> int:
    """Return the number of rows that the footer tells."""
    return cast(int, _parquet_file(file, stream).metadata.num_rows)


def arrow_rows(
    file: UpstreamFile, stream: io.BufferedReader, reading: Reading, limits: ReadingLimits, first_row: int
) -> Iterator[Row | UnreadableRow]:
    """Yield the rows from ``first_row`` on; batches before it are read and passed over."""
    number, wanted = 0, None
    for batch in _arrow_batches(file, stream):
        wanted = wanted or _wanted(file, batch.schema.names, reading)
        if number + batch.num_rows > first_row:
            chosen = batch.select(wanted)
            _require_valid(file, number, chosen)
            size = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(chosen.nbytes, 1)))
            for at in range(0, batch.num_rows, size):
                yield from _rows(chosen.slice(at, size), number + at, first_row, limits)
        number += batch.num_rows


def count_arrow_rows(file: UpstreamFile, stream: io.BufferedReader) -> int:
    """Return the number of rows of all batches."""
    return sum(batch.num_rows for batch in _arrow_batches(file, stream))


def _rows(batch: pa.RecordBatch, first: int, first_row: int, limits: ReadingLimits) -> Iterator[Row | UnreadableRow]:
    if first < first_row:
        batch, first = batch.slice(first_row - first), first_row
    large = _oversized(batch, limits.max_row_bytes)
    try:
        records = batch.to_pylist() if not large else None
    except (ValueError, OverflowError):  # strings that are not UTF-8, times that Python has not
        records = None
    if records is not None:
        for number, record in enumerate(records, first):
            yield Row(number, None, None, record)
        return
    for at in range(batch.num_rows):
        if at in large:
            detail = f"a string has {large[at]:,} bytes, over max_row_bytes {limits.max_row_bytes:,}"
            yield UnreadableRow(first + at, None, "row_too_large", detail, None)
            continue
        try:
            yield Row(first + at, None, None, batch.slice(at, 1).to_pylist()[0])
        except UnicodeDecodeError as error:
            detail = f"{_NOT_UTF8} ({error.reason} at byte {error.start} of the string)"
            yield UnreadableRow(first + at, None, "not_utf8", detail, None)
        except (ValueError, OverflowError) as error:
            yield UnreadableRow(first + at, None, "cannot_render", f"a value has no form in Python ({error})", None)


def _oversized(batch: pa.RecordBatch, max_row_bytes: int) -> dict[int, int]:
    """Return the rows that have a string of over ``max_row_bytes`` bytes, with its size."""
    found = {}
    for column in batch.columns:
        if column.nbytes > max_row_bytes and (lengths := _lengths(column)) is not None:
            for at, size in enumerate(lengths.to_pylist()):
                if size is not None and size > max_row_bytes:
                    found[at] = size
    return found


def _lengths(column: pa.Array) -> pa.Array | None:
    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
    elif not any(is_kind(kind) for is_kind in _STRINGS):
        return None
    return pc.binary_length(column)


_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _wanted(file: UpstreamFile, names: Sequence[str], reading: Reading) -> list[str]:
    """Return the columns to read."""
    if not isinstance(reading.renderer, DocumentRenderer):
        return list(names)
    if reading.renderer.text_column not in names:
        reason = f"there is no column {reading.renderer.text_column!r}, found the columns {sorted(names)}"
        _fail(file, reason, "Set the renderer's text_column to the one that holds the text.")
    return [name for name in reading.renderer.columns if name in names]


def _parquet_file(file: UpstreamFile, stream: io.BufferedReader) -> pq.ParquetFile:
    """Open parquet; pages with a checksum are verified, and read as they are needed."""
    parquet = pq.ParquetFile(stream, page_checksum_verification=True, buffer_size=1 << 20, pre_buffer=False)
    _require_distinct(file, parquet.schema_arrow.names)
    return parquet


def _require_distinct(file: UpstreamFile, names: Sequence[str]) -> None:
    """Refuse a name given twice: a row would lose all columns of it but the last."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        _fail(file, f"there is more than one column of the name {twice[0]!r}", _FIX_FILE)


def _batch_rows(group: Any) -> int:
    """Return how many rows of a row group have at most about `_BATCH_BYTES`.

    By the size of all columns: pyarrow ends the process when it is asked for one column whose metadata are corrupt.
    """
    rows: int = max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)))
    return rows


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
            column.validate(full=False)
            for leaf in _leaves(column):
                leaf.validate(full=True)
        except (pa.ArrowInvalid, ValueError) as error:
            reason = f"truncated or corrupt: column {name!r} of the batch that begins with row {number} ({error})"
            _fail(file, reason, _REFETCH)


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays that an array is made of, strings as bytes."""
    kind = array.type
    if pa.types.is_string(kind):
        yield array.view(pa.binary())
    elif pa.types.is_large_string(kind):
        yield array.view(pa.large_binary())
    elif pa.types.is_string_view(kind):
        yield array.view(pa.binary_view())
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(array.field(index))
    elif pa.types.is_dictionary(kind):
        bounds = pc.min_max(array.indices).as_py()
        if bounds["max"] is not None and not 0 <= bounds["min"] <= bounds["max"] < len(array.dictionary):
            raise ValueError("an index is not in the dictionary")
        yield from _leaves(array.dictionary)
    elif isinstance(array, pa.ListArray | pa.LargeListArray):
        if np.any(np.diff(array.offsets.to_numpy()) < 0):
            raise ValueError("offsets of a list go back")
        yield from _leaves(array.values)
    elif isinstance(array, pa.FixedSizeListArray):
        yield from _leaves(array.values)
    else:
        yield array


def _fail(file: UpstreamFile, reason: str, remedy: str) -> NoReturn:
    raise RowError(file.source, file.path, None, reason, remedy)
