"""Any permutation of rows in bounded memory: rows go to buckets by destination, buckets are put in order.

Row r of the input comes out as row ``position[r]``. While rows fit, they stay in memory and one ``take``
orders them. When they do not, each is appended to the file of the bucket that its destination falls in
(bucket b holds destinations ``[b * size, (b + 1) * size)``), and then the buckets are read back one after the
other. A bucket that turns out larger than memory is treated in the same way again, so the bound holds for any
sizes of rows. What comes out depends on rows and positions alone, never on the bound or on the batches in
which rows came.

Cost. Memory: ``memory`` bytes for rows (half of it is gathered, then needed once more while it is combined; a single
row, or a batch of the caller, that is larger is held whole) and about 17 bytes a row for positions. Disk: in
``scratch`` as much as the rows take uncompressed, when they do not fit in memory; each row is written once and read
once for each level, and one level orders up to about ``memory * 30`` bytes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from everytoken.outofcore.errors import ShuffleError

_MOST_BUCKETS = 128  # open files at a time
_OUTPUT_BYTES = 4 << 20
_OUTPUT_ROWS = 65_536


def destinations(permutation: np.ndarray) -> np.ndarray:
    """Return the ``position`` for "output row i is input row permutation[i]": the inverse, int64 (n,)."""
    position = np.empty(len(permutation), np.int64)
    position[permutation] = np.arange(len(permutation))
    return position


def require_permutation(position: np.ndarray) -> None:
    """Check that ``position`` has each of 0..n-1 once.

    Raises:
        ShuffleError: it has not.
    """
    seen = np.zeros(len(position), bool)
    if len(position) and position.min() >= 0 and position.max() < len(position):
        seen[position] = True
    if not seen.all():
        raise ShuffleError(
            f"position has {len(position)} entries but is no permutation of 0..{len(position) - 1}; "
            "every output row must come from exactly one input row"
        )


def in_order(
    batches: Iterable[pa.RecordBatch], position: np.ndarray, *, memory: int, scratch: Path
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of ``batches`` such that input row r is output row ``position[r]``, in batches of
    bounded size.

    Args:
        batches: rows, all with one schema.
        position: a permutation of 0..n-1, int64 (n,), n the number of input rows.
        memory: bytes that rows may take in memory.
        scratch: an existing folder for temporary files; they are gone when the iterator ends, is closed or
            fails.

    Raises:
        ShuffleError: ``position`` is not a permutation, or has another length than the input.
    """
    position = np.asarray(position, np.int64)
    require_permutation(position)
    folder = Path(tempfile.mkdtemp(prefix="shuffle-", dir=scratch))
    try:
        yield from _in_order(batches, position, max(1, memory // 2), folder)
    finally:
        shutil.rmtree(folder)


def _in_order(
    batches: Iterable[pa.RecordBatch], position: np.ndarray, limit: int, folder: Path
) -> Iterator[pa.RecordBatch]:
    source = _Source(batches)
    groups = source.groups(limit)
    first = next(groups, None)
    if first is None:
        if len(position):
            raise _wrong_count(len(position), 0)
        return
    if first.num_rows >= len(position):
        if (rest := next(groups, None)) is not None or first.num_rows > len(position):
            raise _wrong_count(len(position), first.num_rows + (0 if rest is None else rest.num_rows), at_least=True)
        yield from _taken(first, position, limit, source.schema)
        return
    # Aim at buckets of half the limit, judged by the rows seen so far.
    total = first.nbytes / first.num_rows * len(position)
    buckets = int(min(max(2, np.ceil(2 * total / limit)), _MOST_BUCKETS, len(position)))
    size = -(-len(position) // buckets)
    files = [folder / f"bucket_{b:03d}" for b in range(-(-len(position) // size))]
    seen = [first]
    del first  # the list hands it over, so that it is not held while the next group is read
    _spill(seen, groups, position, size, files)
    for b, file in enumerate(files):
        places = np.fromfile(file.with_suffix(".position"), np.int64) - b * size
        inner = file.with_suffix(".buckets")
        inner.mkdir()
        with pa.OSFile(str(file)) as handle:
            for batch in _in_order(pa.ipc.open_stream(handle), places, limit, inner):
                yield _cast(batch, source.schema)
        shutil.rmtree(inner)
        file.unlink()
        file.with_suffix(".position").unlink()


def _spill(seen: list[pa.Table], rest: Iterator[pa.Table], position: np.ndarray, size: int, files: list[Path]) -> None:
    """Append each row of the one group seen and of the rest to its bucket, and its destination to the file
    beside.
    """
    with ExitStack() as stack:
        sinks = [stack.enter_context(pa.OSFile(str(file), "wb")) for file in files]
        writers = [stack.enter_context(pa.ipc.new_stream(sink, seen[0].schema)) for sink in sinks]
        places = [stack.enter_context(file.with_suffix(".position").open("wb")) for file in files]
        done, group = 0, seen.pop()
        while group is not None:
            there = position[done : done + group.num_rows]
            if len(there) < group.num_rows:
                raise _wrong_count(len(position), done + group.num_rows, at_least=True)
            done += group.num_rows
            order = np.argsort(there // size, kind="stable")
            there = there[order]
            ends = np.searchsorted(there // size, np.arange(len(files)), side="right")
            start = 0
            for b, end in enumerate(ends.tolist()):
                if end > start:
                    writers[b].write_table(group.take(pa.array(order[start:end])))
                    places[b].write(there[start:end].tobytes())
                start = end
            group = None
            group = next(rest, None)
        if done != len(position):
            raise _wrong_count(len(position), done)


def _taken(table: pa.Table, position: np.ndarray, limit: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    order = pa.array(destinations(position))
    share = min(limit, _OUTPUT_BYTES) * table.num_rows // max(1, table.nbytes)
    rows = max(1, min(_OUTPUT_ROWS, share))
    for start in range(0, table.num_rows, rows):
        for batch in table.take(order.slice(start, rows)).to_batches():
            yield _cast(batch, schema)


class _Source:
    """The input as tables of at most ``limit`` bytes, with 64-bit offsets: 32-bit ones overflow when a group
    is combined.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.schema = pa.schema([])

    def groups(self, limit: int) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in self._batches:
            if not len(self.schema):
                self.schema = batch.schema
            for piece in _pieces(_cast(batch, _wide(batch.schema)), limit):
                if held and held_bytes + piece.nbytes > limit:
                    yield _combined(held)
                    held_bytes = 0
                held.append(piece)
                held_bytes += piece.nbytes
        if held:
            yield _combined(held)


def _combined(held: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(held)
    held.clear()
    return table.combine_chunks()


def _pieces(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in slices of at most ``limit`` bytes, or of one row."""
    if batch.num_rows > 1 and batch.nbytes > limit:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), limit)
        yield from _pieces(batch.slice(half), limit)
    elif batch.num_rows:
        yield batch


def _wide(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_wide_type(field.type)) for field in schema], schema.metadata)


def _wide_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field)
    return kind


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)


def _wrong_count(expected: int, found: int, at_least: bool = False) -> ShuffleError:
    more = "at least " if at_least else ""
    return ShuffleError(
        f"position has {expected} entries, the input has {more}{found} rows; give the position of every row"
    )
