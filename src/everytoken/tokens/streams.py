"""Encoded documents become token streams: windows of ``seq_length + 1`` tokens in the order in which training
reads them.

Compact stream: documents, each with its EOS, are shuffled inside their part, parts follow each other in plan
order, the whole is cut into windows (the remainder is dropped and reported), and the windows are shuffled
block by block. Window i of a block is window ``permutation[i]`` of that block as cut; in the same way
document i of a shuffled part is its row ``permutation[i]``.

Annotated stream: window i holds document ``permutation[i]`` of all documents in part and row order: content,
EOS, then EOS as padding. ``token_lengths.npy`` and ``sidecar.parquet`` have row i for window i.

Both shuffles are exact permutations in bounded memory (`everytoken.tokens.shuffle`): the bytes do not depend
on the bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.seeds import numpy_generator
from everytoken.shards import Built, Part, Rows, Shards, fsync_file, versioned, write_rows
from everytoken.tokens.errors import StreamError
from everytoken.tokens.megatron import WindowWriter, stored_dtype
from everytoken.tokens.shuffle import destinations, in_order

COMPACT, ANNOTATED = "compact", "annotated"
TOKEN_LENGTHS_FILE = "token_lengths.npy"
SIDECAR_FILE = "sidecar.parquet"
BLOCK_BYTES = 100 << 30

SIDECAR = pa.schema(
    [
        ("doc_id", pa.large_string()),
        ("text", pa.large_string()),
        ("token_length", pa.int32()),
        ("safety_score", pa.int8()),
        ("is_bad", pa.bool_()),
        ("source", pa.string()),
        ("shard_index", pa.int32()),
        ("row", pa.int64()),
    ]
)
_SIDECAR_INPUT = ["id" if name == "doc_id" else name for name in SIDECAR.names]
_COPIED_WINDOWS = 8_192  # at most this many windows are built at a time


@versioned(1, unrecorded=["shuffle_memory"])
def write_compact_stream(
    folder: Path,
    *,
    tokens: Shards,
    seq_length: int,
    seed: int,
    shuffle_block: int | None,
    shuffle_memory: int,
) -> Built:
    """Write ``compact.bin`` and ``compact.idx``.

    Generators: documents of part p by ``numpy_generator(seed, p).permutation(rows)``; windows by one
    ``numpy_generator(seed)`` for all blocks in order, ``permutation(n)`` for a block of n.

    Args:
        folder: where the files go; also holds temporary files, up to the size of one block and one part.
        tokens: encoded documents (``tokens``, ``token_length``).
        seq_length: tokens that a window predicts; a window has one more.
        seed: see above.
        shuffle_block: windows in a block; None: as many as 100 GiB hold.
        shuffle_memory: bytes for rows in memory; positions come on top (17 bytes a document of a part and a
            window of a block).

    Returns:
        Statistics: windows, tokens (in windows), documents, remainder_tokens, blocks, shuffle_block.

    Raises:
        StreamError: the documents have no tokens, or are not what their ``token_length`` says.
    """
    window, dtype = seq_length + 1, _dtype(tokens)
    block = BLOCK_BYTES // (window * stored_dtype(dtype).itemsize) if shuffle_block is None else shuffle_block
    if block < 1:
        raise StreamError(f"shuffle_block is {shuffle_block}; expected at least 1 window")
    total = sum(_count_tokens(part) for part in tokens)
    generator = numpy_generator(seed)
    half = shuffle_memory // 2  # both shuffles are under way at the same time
    blocks = 0
    with (
        closing(_shuffled_documents(tokens, seed, half, folder)) as documents,
        WindowWriter(folder / COMPACT, window, dtype) as writer,
    ):
        windows = _Windows(documents, window, dtype)
        for start in range(0, total // window, block):
            count = min(block, total // window - start)
            position = destinations(generator.permutation(count))
            with closing(in_order(windows.take(count), position, memory=half, scratch=folder)) as ordered:
                for batch in ordered:
                    writer.write(_array(batch.column(0), window, dtype))
            blocks += 1
        remainder = windows.rest()
    return Built(
        {
            "windows": writer.windows,
            "tokens": writer.windows * window,
            "documents": tokens.rows,
            "remainder_tokens": remainder,
            "blocks": blocks,
            "shuffle_block": block,
        }
    )


@versioned(1, unrecorded=["shuffle_memory"])
def write_annotated_stream(folder: Path, *, tokens: Shards, seq_length: int, seed: int, shuffle_memory: int) -> Built:
    """Write ``annotated.bin``, ``annotated.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    The order is ``numpy_generator(seed).permutation(documents)``.

    Args:
        folder: where the files go; also holds temporary files, up to the size of the documents uncompressed.
        tokens: encoded documents with the columns of the sidecar.
        seq_length: tokens that a window predicts; a window has one more.
        seed: see above.
        shuffle_memory: bytes for rows in memory; positions come on top (17 bytes a document).

    Returns:
        Statistics: windows, tokens (content), documents, padding_tokens (after the EOS), remainder_tokens
            (0), eos_id.

    Raises:
        StreamError: a column is missing, a document does not fit in a window, or is not what its
            ``token_length`` says.
    """
    window, dtype = seq_length + 1, _dtype(tokens)
    for part in tokens:
        if missing := [name for name in _SIDECAR_INPUT if name not in part.schema.names]:
            raise StreamError(f"{part.name} has no column {missing}; the sidecar needs {_SIDECAR_INPUT}")
    documents = tokens.rows
    position = destinations(numpy_generator(seed).permutation(documents))
    lengths_path = folder / TOKEN_LENGTHS_FILE
    lengths_file = np.lib.format.open_memmap(lengths_path, "w+", np.dtype("<i4"), (documents,)) if documents else None

    def rows(ordered: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        written, content, eos_id = 0, 0, None
        for batch in ordered:
            lengths = batch.column("token_length").to_numpy()
            for start in range(0, batch.num_rows, _COPIED_WINDOWS):
                ids = batch.column("tokens").slice(start, _COPIED_WINDOWS)
                padded, pad = _padded(ids, lengths[start : start + _COPIED_WINDOWS], window)
                if eos_id is not None and pad != eos_id:
                    raise StreamError(f"documents end in the ids {eos_id} and {pad}; all must end in one EOS")
                eos_id = pad
                writer.write(padded)
            if lengths_file is not None:
                lengths_file[written : written + batch.num_rows] = lengths
            written += batch.num_rows
            content += int(lengths.sum(dtype=np.int64))
            columns = [batch.column(name).cast(kind) for name, kind in zip(_SIDECAR_INPUT, SIDECAR.types, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=SIDECAR)
        return {"content": content, "eos_id": eos_id}

    documents_in = _documents(tokens, window)
    with (
        closing(in_order(documents_in, position, memory=shuffle_memory, scratch=folder)) as ordered,
        WindowWriter(folder / ANNOTATED, window, dtype) as writer,
    ):
        statistics = write_rows(Rows(SIDECAR, rows(ordered)), folder / SIDECAR_FILE).statistics
    if lengths_file is None:
        np.save(lengths_path, np.empty(0, "<i4"))
    else:
        lengths_file.flush()
    fsync_file(lengths_path)
    content = statistics["content"]
    return Built(
        {
            "windows": writer.windows,
            "tokens": content,
            "documents": documents,
            "padding_tokens": writer.windows * seq_length - content,
            "remainder_tokens": 0,
            "eos_id": statistics["eos_id"],
        }
    )


def _dtype(tokens: Shards) -> np.dtype[Any]:
    """Return the type of the ids, the same in every part."""
    kinds = {}
    for part in tokens:
        if not {"tokens", "token_length"} <= set(part.schema.names):
            raise StreamError(
                f"{part.name} has the columns {part.schema.names}; expected encoded documents with tokens"
            )
        kinds[part.schema.field("tokens").type.value_type] = part.name
    if len(kinds) != 1:
        raise StreamError(f"the parts hold tokens of the types {kinds}; expected one type in at least one part")
    dtype: np.dtype[Any] = np.dtype(next(iter(kinds)).to_pandas_dtype())
    return dtype


def _count_tokens(part: Part) -> int:
    """Return content and EOS tokens of a part, from the lengths alone."""
    return sum(
        int(batch.column(0).to_numpy().sum(dtype=np.int64)) + batch.num_rows for batch in part.batches(["token_length"])
    )


def _checked(part: Part, columns: list[str], most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches of a part in which every document has ``token_length`` + 1 tokens, at most ``most``."""
    row = 0
    for batch in part.batches(columns):
        batch = batch.select(columns)
        found = pc.fill_null(pc.list_value_length(batch.column("tokens")), 0).to_numpy(zero_copy_only=False)
        expected = pc.fill_null(batch.column("token_length"), 0).to_numpy(zero_copy_only=False) + 1
        wrong = (found != expected) | (found > (most or np.inf))
        if wrong.any():
            i = int(np.argmax(wrong))
            limit = f", at most {most} that fit in a window" if most else ""
            raise StreamError(
                f"{part.name} row {row + i}: {found[i]} tokens, expected token_length + 1 = "
                f"{expected[i]}{limit}. Encode the documents again, with a cap that the windows can hold."
            )
        row += batch.num_rows
        yield batch


def _documents(tokens: Shards, window: int) -> Iterator[pa.RecordBatch]:
    for part in tokens:
        yield from _checked(part, [*_SIDECAR_INPUT, "tokens"], window)


def _shuffled_documents(tokens: Shards, seed: int, memory: int, scratch: Path) -> Generator[np.ndarray, None, None]:
    """Yield the tokens of all documents, shuffled inside each part, as flat arrays."""
    for part in tokens:
        position = destinations(numpy_generator(seed, part.index).permutation(part.rows))
        batches = (batch.select(["tokens"]) for batch in _checked(part, ["tokens", "token_length"], None))
        with closing(in_order(batches, position, memory=memory, scratch=scratch)) as ordered:
            for batch in ordered:
                yield batch.column(0).flatten().to_numpy()


class _Windows:
    """Windows cut from flat tokens, as batches of one column of fixed-size binary values."""

    def __init__(self, tokens: Iterable[np.ndarray], window: int, dtype: np.dtype[Any]) -> None:
        self._tokens, self._window, self._dtype = iter(tokens), window, dtype
        self._left = np.empty(0, dtype)

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the next ``count`` windows."""
        kind = pa.binary(self._window * self._dtype.itemsize)
        while count:
            if (ready := min(count, len(self._left) // self._window)) == 0:
                self._left = np.concatenate([self._left, next(self._tokens)])
                continue
            cut, self._left = np.split(self._left, [ready * self._window])
            column = pa.FixedSizeBinaryArray.from_buffers(kind, ready, [None, pa.py_buffer(cut)])
            yield pa.RecordBatch.from_arrays([column], ["window"])
            count -= ready

    def rest(self) -> int:
        """Return the number of tokens that are left when no more windows are wanted."""
        return len(self._left) + sum(len(tokens) for tokens in self._tokens)


def _array(windows: pa.FixedSizeBinaryArray, window: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the tokens in a column of fixed-size binary values, a view, (n, window)."""
    start = windows.offset * window * dtype.itemsize
    return np.frombuffer(windows.buffers()[1], dtype, len(windows) * window, start).reshape(-1, window)


def _padded(ids: pa.Array, lengths: np.ndarray, window: int) -> tuple[np.ndarray, int]:
    """Return documents padded with their EOS, (n, window), and the EOS id."""
    flat = ids.flatten().to_numpy()
    sizes = lengths.astype(np.int64) + 1
    ends = np.cumsum(sizes)
    last = flat[ends - 1]
    eos_id = last[0]
    if (last != eos_id).any():
        raise StreamError(f"documents end in the ids {sorted(set(last.tolist()))[:5]}; all must end in one EOS")
    windows = np.full((len(lengths), window), eos_id, flat.dtype)
    # Places of the ids in the flattened windows: where the document's window starts, plus the position in the
    # document.
    shift = np.arange(len(lengths)) * window - (ends - sizes)
    windows.reshape(-1)[np.arange(len(flat)) + np.repeat(shift, sizes)] = flat
    return windows, int(eos_id)
