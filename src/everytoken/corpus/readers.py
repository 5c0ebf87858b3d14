r"""The rows of one upstream file: ``.jsonl``, ``.jsonl.gz``, ``.json``, ``.parquet``, plain or as a member of a wheel.

Rows of JSON Lines end at ``\n`` and nowhere else (U+2028 and ``\r`` belong to the text), so row numbers agree with
every other reader of the file. JSON Lines hold one row in memory, parquet 1,024; a ``.json`` file is parsed whole,
which takes about five times its size in memory: it is a format for files of some tens of megabytes.

Nothing is repaired and nothing is skipped: what cannot be read as it should be is a `RowError` with file and row.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.errors import BadRow, RowError, UpstreamError
from everytoken.corpus.renderers import CUTS, DocumentRenderer, Renderer
from everytoken.corpus.upstreams import Source, UpstreamFile, damage_named

FORMATS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_PARQUET_BATCH = 1_024
_FIX_FILE = "Repair the file at its origin, or pin another revision that does not have this row."


class Row(NamedTuple):
    """A row: its number in the file from 0, its key (only in a ``.json`` object of records), and what it holds."""

    number: int
    key: str | None
    record: Any


def format_of(file: UpstreamFile, records: str | None) -> str:
    """Return the suffix of a known format; an unknown one, or ``records`` for one without, is an `UpstreamError`."""
    for suffix in sorted(FORMATS, key=len, reverse=True):
        if file.path.endswith(suffix):
            if records is not None and suffix != ".json":
                raise UpstreamError(
                    f"source {file.source!r}: records is {records!r}, but file {file.path} is {suffix}, where every "
                    f"row is a record. Set records to null, or change upstream.pattern to .json files."
                )
            return suffix
    raise UpstreamError(
        f"source {file.source!r}: the format of file {file.path} is not known by its name. "
        f"Expected one of {', '.join(FORMATS)}: change upstream.pattern or upstream.member."
    )


def iterate_rows(
    file: UpstreamFile, records: str | None, renderer: Renderer, first_row: int = 0, rows: int | None = None
) -> Iterator[Row]:
    """Yield the rows ``[first_row, first_row + rows)`` of a file in order, all that follow when ``rows`` is None.

    Args:
        file: the file, from `find_files`.
        records: for ``.json``, the key whose value holds the records; None for the others.
        renderer: says which columns are wanted, and whether a record is cut into several rows.
        first_row: number of the first row.
        rows: how many rows.

    Raises:
        RowError: a row cannot be read, the file is missing or damaged, or it has fewer rows than asked for.
        UpstreamError: see `format_of`.
    """
    stop = None if rows is None else first_row + rows
    count, suffix = 0, format_of(file, records)
    with file.open() as stream, damage_named(file, stream):
        for row in _all_rows(file, stream, suffix, records, renderer, first_row):
            if stop is not None and row.number >= stop:
                break
            count += 1
            yield row
    if rows is not None and count != rows:
        _fail(file, None, f"it has {first_row + count} rows, expected at least {stop}", "Make the shard plan again.")


def count_rows(file: UpstreamFile, source: Source) -> int:
    """Return the number of rows of a file; lines are counted without parsing them, parquet by its footer."""
    suffix = format_of(file, source.records)
    with file.open() as stream, damage_named(file, stream):
        if suffix == ".parquet":
            return cast(int, _parquet_file(file, stream).metadata.num_rows)
        if suffix == ".json":
            return sum(1 for _ in _json_rows(file, stream, source.records, source.renderer))
        lines, last = 0, b"\n"
        with _decompressed(stream, suffix) as plain:
            while block := plain.read(1 << 20):
                lines, last = lines + block.count(b"\n"), block[-1:]
        return lines + (last != b"\n")


def _all_rows(
    file: UpstreamFile, stream: io.BufferedReader, suffix: str, records: str | None, renderer: Renderer, first_row: int
) -> Iterator[Row]:
    if suffix == ".json":
        return itertools.islice(_json_rows(file, stream, records, renderer), first_row, None)
    if suffix == ".parquet":
        return _parquet_rows(file, stream, renderer, first_row)
    return _jsonl_rows(file, stream, suffix, first_row)


def _jsonl_rows(file: UpstreamFile, stream: io.BufferedReader, suffix: str, first_row: int) -> Iterator[Row]:
    with _decompressed(stream, suffix) as plain:
        for number, line in enumerate(plain):
            if number < first_row:
                continue
            if not line.strip():
                _fail(file, number, "the line is blank, expected a JSON object", _FIX_FILE)
            record = _parse(file, number, line)
            if not isinstance(record, dict):
                _fail(file, number, f"the line holds {type(record).__name__}, expected a JSON object", _FIX_FILE)
            yield Row(number, None, record)


def _json_rows(file: UpstreamFile, stream: io.BufferedReader, records: str | None, renderer: Renderer) -> Iterator[Row]:
    value = _parse(file, None, stream.read())
    if records is not None:
        if not isinstance(value, dict) or records not in value:
            found = f"the keys {sorted(value)[:10]}" if isinstance(value, dict) else type(value).__name__
            _fail(file, None, f"there is no key {records!r} at the top, found {found}", "Check the source's `records`.")
        value = value[records]
    if isinstance(value, dict):
        pairs: Iterator[tuple[str | None, Any]] = iter(value.items())
    elif isinstance(value, list):
        pairs = ((None, record) for record in value)
    else:
        _fail(file, None, f"found {type(value).__name__}, expected records", "Check the source's `records`.")
    cut = CUTS.get(renderer.kind)
    if cut is not None:
        pairs = _cut_pairs(file, pairs, cut)
    for number, (key, record) in enumerate(pairs):
        yield Row(number, key, record)


def _cut_pairs(
    file: UpstreamFile, pairs: Iterator[tuple[str | None, Any]], cut: Any
) -> Iterator[tuple[str | None, Any]]:
    row = 0
    for key, record in pairs:
        try:
            for piece in cut(key, record):
                yield key, piece
                row += 1
        except BadRow as error:
            _fail(file, row, str(error), _FIX_FILE)


def _parquet_rows(file: UpstreamFile, stream: io.BufferedReader, renderer: Renderer, first_row: int) -> Iterator[Row]:
    parquet = _parquet_file(file, stream)
    number = 0
    groups: list[int] = []
    for group in range(parquet.num_row_groups):  # whole row groups before the first row are not read
        group_rows = parquet.metadata.row_group(group).num_rows
        if not groups and number + group_rows <= first_row:
            number += group_rows
        else:
            groups.append(group)
    if not groups:
        return
    wanted = None
    if isinstance(renderer, DocumentRenderer):
        names = parquet.schema_arrow.names
        if renderer.text_column not in names:
            reason = f"there is no column {renderer.text_column!r}, found the columns {sorted(names)}"
            _fail(file, None, reason, "Set the renderer's text_column to the one that holds the text.")
        wanted = [name for name in renderer.columns if name in names]
    for batch in parquet.iter_batches(batch_size=_PARQUET_BATCH, row_groups=groups, columns=wanted):
        for record in _records(file, number, batch):
            if number >= first_row:
                yield Row(number, None, record)
            number += 1


def _parquet_file(file: UpstreamFile, stream: io.BufferedReader) -> pq.ParquetFile:
    """Open parquet; pages with a checksum are verified, and a column name given twice would lose all but the last."""
    parquet = pq.ParquetFile(stream, page_checksum_verification=True)
    twice = sorted(name for name, count in Counter(parquet.schema_arrow.names).items() if count > 1)
    if twice:
        _fail(file, None, f"there is more than one column of the name {twice[0]!r}", _FIX_FILE)
    return parquet


def _records(file: UpstreamFile, first: int, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return cast(list[dict[str, Any]], batch.to_pylist())
    except UnicodeDecodeError:
        # parquet does not check that strings are UTF-8: find the row that is not
        for offset in range(batch.num_rows):
            try:
                batch.slice(offset, 1).to_pylist()
            except UnicodeDecodeError as error:
                _fail(file, first + offset, f"not valid UTF-8 ({error})", _FIX_FILE)
        raise


def _parse(file: UpstreamFile, number: int | None, data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        _fail(file, number, f"not valid UTF-8 ({error.reason} at byte {error.start} of the row)", _FIX_FILE)
    except RecursionError:
        _fail(file, number, "the JSON is nested too deeply", _FIX_FILE)
    except BadRow as error:
        _fail(file, number, str(error), _FIX_FILE)
    except ValueError as error:
        _fail(file, number, f"not valid JSON ({error})", _FIX_FILE)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):  # Python's parser keeps the last one and says nothing
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BadRow(f"a JSON object has the name {twice[0]!r} more than once")
    return value


def _no_constant(name: str) -> NoReturn:
    raise BadRow(f"{name} is not valid JSON")


@contextmanager
def _decompressed(stream: io.BufferedReader, suffix: str) -> Iterator[IO[bytes]]:
    if suffix.endswith(".gz"):
        if not stream.peek(1):  # Python reads no bytes at all as an empty archive
            raise gzip.BadGzipFile("the file has no bytes, and an archive of nothing has 20 or more")
        with gzip.open(stream, "rb") as plain:
            yield cast(IO[bytes], plain)
    else:
        yield cast(IO[bytes], stream)


def _fail(file: UpstreamFile, row: int | None, reason: str, remedy: str) -> NoReturn:
    raise RowError(file.source, file.path, row, reason, remedy)
