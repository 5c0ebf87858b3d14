"""One document a window: the annotated and the canary stream, with a sidecar row for each window.

Window i holds document ``permutation[i]`` of all documents in part and row order: content, EOS, then EOS as padding.
``token_lengths.npy`` and ``sidecar.parquet`` have row i for window i. Windows are shuffled in the file
(`everytoken.outofcore.row_scatter`), sidecar rows, which are of any size, beside it (`everytoken.outofcore.shuffle`):
in bounded memory, and the bytes do not depend on the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from everytoken.outofcore import destinations, in_order
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, Rows, Shards, fsync_file, write_rows
from everytoken.tokens.streams.documents import TokenizerFacts, WindowCounts, checked_batches, require_encoded
from everytoken.tokens.streams.megatron import WindowWriter
from everytoken.tokens.streams.padding import padded
from everytoken.tokens.streams.readahead import read_ahead

TOKEN_LENGTHS_FILE = "token_lengths.npy"
SIDECAR_FILE = "sidecar.parquet"

_PADDED_BYTES = 4 << 20  # windows that are built at a time
_READERS = 2


class PaddedStatistics(WindowCounts):
    """Statistics of a stream with one document in each window; ``tokens`` of content."""

    documents: int
    padding_tokens: int
    remainder_tokens: int


def write_padded_stream(
    folder: Path,
    name: str,
    *,
    tokens: Shards,
    facts: TokenizerFacts,
    sidecar: pa.Schema,
    columns: Mapping[str, str],
    seq_length: int,
    seed: int,
    shuffle_memory: int,
) -> PaddedStatistics:
    """Write ``name.bin``, ``name.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    The order is ``numpy_generator(seed).permutation(documents)``.

    Args:
        folder: where the files go; also holds temporary files, up to the size of the sidecar uncompressed.
        tokens: encoded documents with the columns of the sidecar.
        facts: of the tokenizer that encoded them.
        sidecar: its columns; ``token_length`` is one.
        columns: which column of ``tokens`` each of them is, where the names differ.
        seq_length: tokens that a window predicts; a window has one more.
        shuffle_memory: bytes for rows in memory; positions and lengths come on top (21 bytes a document), and what
            reading two row groups takes.

    Returns:
        Statistics: windows, tokens (content), documents, padding_tokens (after the EOS), remainder_tokens
        (0), tokenizer (sha256, vocab_size, eos_token, eos_id).

    Raises:
        StreamError: a column is missing, a document does not fit in a window, or is not what its ``token_length`` and
            the tokenizer say.
    """
    window, documents = seq_length + 1, tokens.rows
    needed = [columns.get(column, column) for column in sidecar.names]
    require_encoded(tokens, facts, needed)
    position = destinations(numpy_generator(seed).permutation(documents))
    lengths = np.empty(documents, "<i4")
    half = shuffle_memory // 2  # windows and sidecar are shuffled at the same time
    parts = (_batches(part, facts, needed, window) for part in tokens)
    with (
        WindowWriter(folder / name, window, facts.dtype) as writer,
        writer.shuffled(position, half) as write,
        closing(read_ahead(parts, _READERS)) as batches,
        closing(
            in_order(_rows(batches, write, window, sidecar, needed), position, memory=half, scratch=folder)
        ) as ordered,
    ):
        write_rows(Rows(sidecar, _with_lengths(ordered, lengths)), folder / SIDECAR_FILE)
    np.save(folder / TOKEN_LENGTHS_FILE, lengths)
    fsync_file(folder / TOKEN_LENGTHS_FILE)
    content = int(lengths.sum(dtype=np.int64))
    return {
        "windows": writer.windows,
        "tokens": content,
        "documents": documents,
        "padding_tokens": writer.windows * seq_length - content,
        "remainder_tokens": 0,
        "tokenizer": facts.recorded,
    }


def _batches(
    part: Part, facts: TokenizerFacts, columns: list[str], window: int
) -> Generator[pa.RecordBatch, None, None]:
    yield from checked_batches(part, facts, columns, most=window)


def _rows(
    batches: Iterable[pa.RecordBatch],
    write: Callable[[np.ndarray], None],
    window: int,
    sidecar: pa.Schema,
    columns: list[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the sidecar, when their tokens are written."""
    for batch in batches:
        ids, lengths = batch.column("tokens"), batch.column("token_length").to_numpy()
        step = max(1, _PADDED_BYTES // (window * ids.values.type.bit_width // 8))
        for start in range(0, batch.num_rows, step):
            write(padded(ids.slice(start, step), lengths[start : start + step], window)[0])
        values = [batch.column(column).cast(kind) for column, kind in zip(columns, sidecar.types, strict=True)]
        yield pa.RecordBatch.from_arrays(values, schema=sidecar)


def _with_lengths(
    ordered: Iterable[pa.RecordBatch], lengths: np.ndarray
) -> Generator[pa.RecordBatch, None, Mapping[str, int]]:
    """Pass the sidecar on, and keep its lengths."""
    done = 0
    for batch in ordered:
        lengths[done : done + batch.num_rows] = batch.column("token_length").to_numpy()
        done += batch.num_rows
        yield batch
    return {}
