"""Rows become parquet files: the part, what was set aside, and a link to the part that it extends.

Rows are written in row groups that end where the accumulated size of the rows reaches a limit. The cut depends on
the rows alone, never on the batches in which they came, so the same rows give the same file; and memory is bounded
however large the part is (by the limit, or by a single row that is larger).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.arrays import Integers
from everytoken.shards.atomic import atomic_file, link_file
from everytoken.shards.digests import HashedFile, plain_json
from everytoken.shards.errors import ShardsError
from everytoken.shards.ledger import FileRecord
from everytoken.shards.part_progress import rows_done
from everytoken.shards.parts import (
    EXTENDED_ROW,
    Part,
    Rows,
    SetAside,
    Statistics,
    StoredPart,
    Unchanged,
    extended_path,
)
from everytoken.shards.table_digests import TableDigest

ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 65_536


_VARIABLE = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _row_bytes(array: pa.Array) -> np.ndarray:
    """Return the size of each value in bytes, int64 (rows,): a function of the value alone."""
    import pyarrow.compute as pc  # it costs 0.07 s, and `everytoken trace` needs none of it

    kind = array.type
    if pa.types.is_dictionary(kind):
        return _row_bytes(array.dictionary_decode())
    if any(test(kind) for test in _VARIABLE):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(lengths)
        children = np.concatenate([[0], np.cumsum(_row_bytes(array.flatten()))])
        return np.asarray(children[ends] - children[ends - lengths])
    if pa.types.is_struct(kind):
        fields = [_row_bytes(field) for field in array.flatten()]
        return np.asarray(np.sum([np.full(len(array), 8), *fields], axis=0, dtype=np.int64))
    return np.full(len(array), 8, dtype=np.int64)


@dataclass(frozen=True)
class Written:
    """What was written: the rows of the part, those set aside (None: none), statistics, and what the part extends.

    Of a part that extends another, the content digest is of all its columns, rows and columns of both; bytes and
    SHA-256 are of its own file.
    """

    part: FileRecord
    set_aside: FileRecord | None
    statistics: Statistics
    extended: FileRecord | None = None


def set_aside_path(path: Path) -> Path:
    """Return where the rows are kept that were set aside while the part at ``path`` was made."""
    return path.with_suffix(".set_aside.parquet")


def _check_schema(schema: pa.Schema, name: str) -> None:
    if len(schema) == 0 or len(set(schema.names)) < len(schema) or EXTENDED_ROW in schema.names:
        raise ShardsError(
            f"{name}: the columns are {schema.names}; give at least one, each its own name, none {EXTENDED_ROW}"
        )
    for field in schema:
        if "fixed_size_list" in str(field.type):
            raise ShardsError(f"{name}: column {field.name} is a {field.type}; parquet loses its nulls: use pa.list_()")


_NUMBER = pa.field(EXTENDED_ROW, pa.int64(), nullable=False)


def _encodings(schema: pa.Schema) -> dict[str, str] | None:
    """Return the encoding of lists of integers: bytes of one place together are half the work for zstd (of ids).

    Numbers of rows ascend, so their differences are small.
    """
    lists = [
        field.name for field in schema if pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type)
    ]
    numbers = {EXTENDED_ROW: "DELTA_BINARY_PACKED"} if EXTENDED_ROW in schema.names else {}
    return {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in lists} | numbers or None


class _PartFile:
    """A parquet file (zstd, page checksums) that is written batch by batch.

    Args:
        left_out: how many of the first columns are digested with the others, and not written: another file has them.
        chosen: numbers of the rows in that file, written in place of them; None: all.
    """

    def __init__(self, path: Path, schema: pa.Schema, left_out: int = 0, chosen: Integers | None = None) -> None:
        self._name, self._whole, self._left_out, self._chosen = path.name, schema, left_out, chosen
        self._schema = pa.schema([*([] if chosen is None else [_NUMBER]), *list(schema)[left_out:]])
        self._digest, self._rows = TableDigest(schema), 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        self._sink = HashedFile(path)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=False,
            column_encoding=_encodings(self._schema),
            write_page_checksum=True,
            version="2.6",
        )

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._whole):
            raise ShardsError(f"{self._name}: a batch has columns {batch.schema}, declared are {self._whole}")
        self._digest.update(batch)
        numbers = [] if self._chosen is None else [pa.array(self._chosen[self._rows : self._rows + batch.num_rows])]
        self._rows += batch.num_rows
        batch = pa.RecordBatch.from_arrays([*numbers, *batch.columns[self._left_out :]], schema=self._schema)
        sizes = np.sum([_row_bytes(column) for column in batch.columns], axis=0, dtype=np.int64)
        ends = np.cumsum(sizes) if batch.num_rows else np.empty(0, np.int64)
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + ROW_GROUP_BYTES - self._pending_bytes)) + 1
            stop = min(full, start + ROW_GROUP_ROWS - self._pending_rows, batch.num_rows)
            self._pending.append(batch.slice(start, stop - start))
            self._pending_bytes += int(ends[stop - 1]) - before
            self._pending_rows += stop - start
            start = stop
            if self._pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema).combine_chunks()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._pending.clear()
        self._pending_bytes = self._pending_rows = 0

    def finish(self) -> FileRecord:
        if self._pending:
            self._flush()
        self.close()
        return FileRecord(
            rows=self._rows,
            bytes=self._sink.bytes,
            sha256=self._sink.sha256.hexdigest(),
            content_digest=self._digest.hexdigest(),
        )

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._sink.close()


def write_rows(rows: Rows, path: Path) -> Written:
    """Write ``rows`` to ``path``, and those set aside to `set_aside_path`, each atomically, in bounded memory.

    The file of the part that it extends is linked at `extended_path`.

    Raises:
        ShardsError: a schema that parquet would not give back, a batch of another schema, statistics that are no
            JSON, or rows that are neither in the part nor set aside.
    """
    name, aside_path = path.stem, set_aside_path(path)
    _check_schema(rows.schema, name)
    base = _file_of(rows.extends)
    left_out, chosen = (0, None) if base is None else (len(base.schema), rows.chosen)
    with ExitStack() as stack:
        part = _PartFile(stack.enter_context(atomic_file(path)), rows.schema, left_out, chosen)
        stack.callback(part.close)
        aside: _PartFile | None = None
        done = 0
        while True:
            try:
                batch = next(rows.batches)
            except StopIteration as stop:
                statistics = plain_json(dict(stop.value or {}), f"{name}: statistics")
                break
            done += (batch.batch if isinstance(batch, SetAside) else batch).num_rows
            rows_done(done if rows.chosen is None or not done else int(rows.chosen[done - 1]) + 1)
            if not isinstance(batch, SetAside):
                part.write(batch)
                continue
            if rows.set_aside is None:
                raise ShardsError(f"{name}: rows are set aside, but Rows gives no schema for them")
            if batch.batch.num_rows == 0:  # whether there is a file depends on the rows, not on how they came
                continue
            if aside is None:
                aside = _PartFile(stack.enter_context(atomic_file(aside_path)), rows.set_aside)
                stack.callback(aside.close)
            aside.write(batch.batch)
        extended = None if base is None else _of_stored(base)
        written = Written(part.finish(), None if aside is None else aside.finish(), statistics, extended)
        if rows.set_aside is not None:
            _check_conservation(name, written)
        link_stored(base, extended_path(path))
    if aside is None:
        aside_path.unlink(missing_ok=True)
    return written


def _file_of(part: Part | None) -> StoredPart | None:
    """Return the part whose file has the first columns of ``part``, row for row; None: no file has them."""
    if not isinstance(part, StoredPart) or part.selects:
        return None
    return part.extended or part


def _of_stored(part: StoredPart) -> FileRecord:
    return FileRecord(rows=part.rows, bytes=part.size, sha256=part.sha256, content_digest=part.digest)


def link_stored(part: StoredPart | None, path: Path) -> None:
    """Let ``path`` be the file of ``part`` too; without a part, remove it."""
    if part is None:
        path.unlink(missing_ok=True)
        return
    with part.at_hand() as file, atomic_file(path) as temporary:
        temporary.unlink()  # a link can only be made where nothing is; the folder has one writer
        link_file(file, temporary)


def _check_conservation(name: str, written: Written) -> None:
    aside = 0 if written.set_aside is None else written.set_aside.rows
    rows_in = written.statistics.get("rows_in")
    if rows_in != written.part.rows + aside:
        raise ShardsError(
            f"{name}: {rows_in} rows came in, {written.part.rows} are in the part and {aside} were set aside. "
            "A row was lost or made up: the function that makes this part is wrong."
        )


def link_part(unchanged: Unchanged, path: Path) -> Written:
    """Let ``path`` be the file of the given part too: a hard link, or a copy where there can be none.

    Raises:
        ShardsError: the part is not a stored one.
    """
    part = unchanged.part
    if not isinstance(part, StoredPart):
        raise ShardsError(f"{path.stem}: Unchanged holds a {type(part).__name__}; only a stored part can stay as it is")
    link_stored(part, path)
    link_stored(part.extended, extended_path(path))
    set_aside_path(path).unlink(missing_ok=True)
    statistics = plain_json(dict(unchanged.statistics), f"{path.stem}: statistics")
    return Written(_of_stored(part), None, statistics, None if part.extended is None else _of_stored(part.extended))
