"""One document a window: the annotated and the canary stream, with a sidecar row for each window.

Window i holds document ``permutation[i]`` of all documents in part and row order: content, EOS, then EOS as padding.
``token_lengths.npy`` and ``sidecar.parquet`` have row i for window i. Windows are shuffled in the file
(`everytoken.outofcore.row_places`), by part in as many processes as the engine has. Sidecar rows, which are of any
size, are shuffled at the same time by one process (`everytoken.outofcore.shuffle`): one parquet file has one
writer, and its encoder takes most of the time. Both need bounded memory, and no byte depends on the bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from everytoken.outofcore import destinations, in_order
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Part, RangeMap, Rows, Shards, Written, fsync_file, write_rows
from everytoken.tokens.streams.documents import (
    TokenizerFacts,
    WindowCounts,
    checked_batches,
    document_sizes,
    require_encoded,
)
from everytoken.tokens.streams.placed_windows import PlacedWindows, open_placed_windows

TOKEN_LENGTHS_FILE = "token_lengths.npy"
SIDECAR_FILE = "sidecar.parquet"

_PADDED_BYTES = 4 << 20  # windows that are built at a time


def longest_document(stream: Artifact) -> int:
    """Return the content tokens of the longest document of a stream; 0 where it has none."""
    lengths = np.load(stream.path(TOKEN_LENGTHS_FILE), mmap_mode="r" if stream.statistics["windows"] else None)
    return int(lengths.max(initial=0))


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
    ranges: RangeMap,
) -> Built:
    """Write ``name.bin``, ``name.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    The order is ``numpy_generator(seed).permutation(documents)``.

    Args:
        folder: where the files go; also holds temporary files, up to the size of the sidecar uncompressed, and
            24 bytes a document.
        tokens: encoded documents with the columns of the sidecar.
        facts: of the tokenizer that encoded them.
        sidecar: its columns; ``token_length`` is one.
        columns: which column of ``tokens`` each of them is, where the names differ.
        seq_length: tokens that a window predicts; a window has one more.
        shuffle_memory: bytes for rows in memory, in all processes together; positions and lengths come on top (21
            bytes a document), and what reading a row group takes in each process.
        ranges: where parts are read and written.

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
    ranges = ranges.unless_small(documents * window * facts.dtype.itemsize)
    position = destinations(numpy_generator(seed).permutation(documents))
    lengths = _lengths(tokens, position)
    half = shuffle_memory // 2  # windows and sidecar are shuffled at the same time
    with open_placed_windows(
        folder / name, window, facts.dtype, [position], documents, memory=half, ranges=ranges
    ) as placed:
        rows = _SidecarRows(tokens, sidecar, needed, placed, half, folder / SIDECAR_FILE)
        firsts = np.cumsum([0, *(part.rows for part in tokens)])[:-1].tolist()
        parts = [_PartRows(part, first, facts, placed) for part, first in zip(tokens, firsts, strict=True)]
        both: list[_SidecarRows | _PartRows] = [rows, *parts]
        written, *_ = ranges(_write, both)
    np.save(folder / TOKEN_LENGTHS_FILE, lengths)
    fsync_file(folder / TOKEN_LENGTHS_FILE)
    content = int(lengths.sum(dtype=np.int64))
    statistics: PaddedStatistics = {
        "windows": documents,
        "tokens": content,
        "documents": documents,
        "padding_tokens": documents * seq_length - content,
        "remainder_tokens": 0,
        "tokenizer": facts.recorded,
    }
    assert written is not None
    sidecar_file = written.part
    return Built(
        statistics,
        sha256={SIDECAR_FILE: sidecar_file.sha256},
        content_digests={SIDECAR_FILE: sidecar_file.content_digest},
    )


def _padded(ids: pa.Array, lengths: np.ndarray, window: int) -> np.ndarray:
    """Return documents padded with the EOS that they all end in, (n, window).

    Args:
        ids: content and EOS of each document, lists of at most ``window`` ids, none of them null.
        lengths: content tokens of each document, int32 (n,), n at least 1.
        window: tokens of a window.
    """
    flat = ids.flatten().to_numpy()
    windows, start = np.full((len(lengths), window), flat[-1]), 0
    for row, end in zip(windows, np.cumsum(lengths.astype(np.int64) + 1).tolist(), strict=True):
        row[: end - start] = flat[start:end]
        start = end
    return windows


def _lengths(tokens: Shards, position: np.ndarray) -> np.ndarray:
    """Return the content tokens of the document in each window, int32 (documents,)."""
    lengths, first = np.empty(len(position), "<i4"), 0
    for part in tokens:
        sizes = document_sizes(part)
        lengths[position[first : first + len(sizes)]] = sizes - 1
        first += len(sizes)
    return lengths


@dataclass(frozen=True)
class _PartRows:
    """Writes the windows of a part, the number of whose first document it knows."""

    part: Part
    first: int
    facts: TokenizerFacts
    windows: PlacedWindows

    @property
    def name(self) -> str:
        return self.part.name

    def write(self) -> None:
        window, at = self.windows.window, self.first
        step = max(1, _PADDED_BYTES // (window * self.facts.dtype.itemsize))
        for batch in checked_batches(self.part, self.facts, most=window):
            ids, lengths = batch.column("tokens"), batch.column("token_length").to_numpy()
            for start in range(0, batch.num_rows, step):
                rows = _padded(ids.slice(start, step), lengths[start : start + step], window)
                self.windows.write(at, rows)
                at += len(rows)


@dataclass(frozen=True)
class _SidecarRows:
    """Writes the sidecar, with rows in the order of the windows."""

    tokens: Shards
    schema: pa.Schema
    columns: list[str]
    windows: PlacedWindows
    memory: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def write(self) -> Written:
        position = self.windows.places.position(0, self.tokens.rows)
        with closing(in_order(self._batches(), position, memory=self.memory, scratch=self.windows.scratch)) as ordered:
            return write_rows(Rows(self.schema, _without_statistics(ordered)), self.path)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for part in self.tokens:
            for batch in part.batches(list(dict.fromkeys(self.columns))):
                values = [
                    batch.column(column).cast(kind)
                    for column, kind in zip(self.columns, self.schema.types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(values, schema=self.schema)


def _write(rows: _SidecarRows | _PartRows) -> Written | None:
    return rows.write()


def _without_statistics(
    batches: Iterator[pa.RecordBatch],
) -> Generator[pa.RecordBatch, None, Mapping[str, int]]:
    yield from batches
    return {}
