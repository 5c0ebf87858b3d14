"""Encoded documents become token streams: windows of ``seq_length + 1`` tokens in the order in which training
reads them.

Compact stream: documents, each with its EOS, are shuffled inside their part, parts follow each other in plan
order, the whole is cut into windows (the remainder is dropped and reported), and the windows are shuffled
block by block. Window i of a block is window ``permutation[i]`` of that block as cut; in the same way
document i of a shuffled part is its row ``permutation[i]``.

Annotated stream: window i holds document ``permutation[i]`` of all documents in part and row order: content,
EOS, then EOS as padding. ``token_lengths.npy`` and ``sidecar.parquet`` have row i for window i.

All shuffles are exact permutations in bounded memory: rows of any size in `everytoken.tokens.shuffle`, windows in
`everytoken.tokens.scatter`. The bytes do not depend on the bound. Parts are read ahead in `_READERS` threads, because
to decode parquet takes longer than all else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Part, Rows, Shards, fsync_file, versioned, write_rows
from everytoken.tokens.documents import (
    TokenizerFacts,
    checked_batches,
    document_sizes,
    require_encoded,
    shuffled_tokens,
    tokenizer_facts,
)
from everytoken.tokens.errors import StreamError
from everytoken.tokens.megatron import WindowWriter, stored_dtype
from everytoken.tokens.padding import padded
from everytoken.tokens.readahead import read_ahead
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
_PADDED_BYTES = 4 << 20  # windows that are built at a time
_READERS = 2


@versioned(2, unrecorded=["shuffle_memory"])
def write_compact_stream(
    folder: Path,
    *,
    tokens: Shards,
    tokenizer: Artifact,
    seq_length: int,
    seed: int,
    shuffle_block: int | None,
    shuffle_memory: int,
) -> Built:
    """Write ``compact.bin`` and ``compact.idx``.

    Generators: documents of part p by ``numpy_generator(seed, p).permutation(rows)``; windows by one
    ``numpy_generator(seed)`` for all blocks in order, ``permutation(n)`` for a block of n.

    Args:
        folder: where the files go; also holds temporary files, up to the size of two parts uncompressed.
        tokens: encoded documents (``tokens``, ``token_length``).
        tokenizer: the tokenizer that encoded them.
        seq_length: tokens that a window predicts; a window has one more.
        seed: see above.
        shuffle_block: windows in a block; None: as many as 100 GiB hold.
        shuffle_memory: bytes for rows in memory; positions come on top (33 bytes a document of two parts, 17 a window
            of a block), and what reading two row groups takes.

    Returns:
        Statistics: windows, tokens (in windows), documents, remainder_tokens, blocks, shuffle_block, tokenizer (sha256,
        vocab_size, eos_token, eos_id).

    Raises:
        StreamError: the documents have no tokens, or are not what their ``token_length`` and the tokenizer say.
    """
    window, facts = seq_length + 1, tokenizer_facts(tokenizer)
    require_encoded(tokens, facts)
    block = BLOCK_BYTES // (window * stored_dtype(facts.dtype).itemsize) if shuffle_block is None else shuffle_block
    if block < 1:
        raise StreamError(f"shuffle_block is {shuffle_block}; expected at least 1 window")
    total = sum(int(document_sizes(part).sum()) for part in tokens)
    generator = numpy_generator(seed)
    half = shuffle_memory // 2  # of windows; of documents: parts that are read, and the one that is cut
    parts = (shuffled_tokens(part, facts, seed=seed, memory=half // (_READERS + 1), scratch=folder) for part in tokens)
    blocks = 0
    with (
        closing(read_ahead(parts, _READERS)) as documents,
        WindowWriter(folder / COMPACT, window, facts.dtype) as writer,
    ):
        windows = _Windows(documents, window, facts.dtype)
        for start in range(0, total // window, block):
            count = min(block, total // window - start)
            with writer.shuffled(destinations(generator.permutation(count)), half) as write:
                for cut in windows.take(count):
                    write(cut)
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
            "tokenizer": asdict(facts),
        }
    )


@versioned(2, unrecorded=["shuffle_memory"])
def write_annotated_stream(
    folder: Path, *, tokens: Shards, tokenizer: Artifact, seq_length: int, seed: int, shuffle_memory: int
) -> Built:
    """Write ``annotated.bin``, ``annotated.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    The order is ``numpy_generator(seed).permutation(documents)``.

    Args:
        folder: where the files go; also holds temporary files, up to the size of the sidecar uncompressed.
        tokens: encoded documents with the columns of the sidecar.
        tokenizer: the tokenizer that encoded them.
        seq_length: tokens that a window predicts; a window has one more.
        seed: see above.
        shuffle_memory: bytes for rows in memory; positions and lengths come on top (21 bytes a document), and what
            reading two row groups takes.

    Returns:
        Statistics: windows, tokens (content), documents, padding_tokens (after the EOS), remainder_tokens
        (0), tokenizer (sha256, vocab_size, eos_token, eos_id).

    Raises:
        StreamError: a column is missing, a document does not fit in a window, or is not what its ``token_length`` and
            the tokenizer say.
    """
    window, facts, documents = seq_length + 1, tokenizer_facts(tokenizer), tokens.rows
    require_encoded(tokens, facts, _SIDECAR_INPUT)
    position = destinations(numpy_generator(seed).permutation(documents))
    lengths = np.empty(documents, "<i4")
    half = shuffle_memory // 2  # windows and sidecar are shuffled at the same time
    parts = (_batches(part, facts, window) for part in tokens)
    with (
        WindowWriter(folder / ANNOTATED, window, facts.dtype) as writer,
        writer.shuffled(position, half) as write,
        closing(read_ahead(parts, _READERS)) as batches,
        closing(in_order(_sidecar(batches, write, window), position, memory=half, scratch=folder)) as ordered,
    ):
        write_rows(Rows(SIDECAR, _with_lengths(ordered, lengths)), folder / SIDECAR_FILE)
    np.save(folder / TOKEN_LENGTHS_FILE, lengths)
    fsync_file(folder / TOKEN_LENGTHS_FILE)
    content = int(lengths.sum(dtype=np.int64))
    return Built(
        {
            "windows": writer.windows,
            "tokens": content,
            "documents": documents,
            "padding_tokens": writer.windows * seq_length - content,
            "remainder_tokens": 0,
            "tokenizer": asdict(facts),
        }
    )


def _batches(part: Part, facts: TokenizerFacts, window: int) -> Generator[pa.RecordBatch, None, None]:
    yield from checked_batches(part, facts, _SIDECAR_INPUT, most=window)


def _sidecar(
    batches: Iterable[pa.RecordBatch], write: Callable[[np.ndarray], None], window: int
) -> Iterator[pa.RecordBatch]:
    """Yield the sidecar's columns, when the tokens are written."""
    for batch in batches:
        ids, lengths = batch.column("tokens"), batch.column("token_length").to_numpy()
        step = max(1, _PADDED_BYTES // (window * ids.values.type.bit_width // 8))
        for start in range(0, batch.num_rows, step):
            write(padded(ids.slice(start, step), lengths[start : start + step], window)[0])
        columns = [batch.column(name).cast(kind) for name, kind in zip(_SIDECAR_INPUT, SIDECAR.types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=SIDECAR)


def _with_lengths(
    ordered: Iterable[pa.RecordBatch], lengths: np.ndarray
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    """Pass the sidecar on, and keep its lengths."""
    done = 0
    for batch in ordered:
        lengths[done : done + batch.num_rows] = batch.column("token_length").to_numpy()
        done += batch.num_rows
        yield batch
    return {}


class _Windows:
    """Windows cut from flat tokens."""

    def __init__(self, tokens: Iterable[np.ndarray], window: int, dtype: np.dtype[Any]) -> None:
        self._tokens, self._window = iter(tokens), window
        self._left = np.empty(0, dtype)

    def take(self, count: int) -> Iterator[np.ndarray]:
        """Yield the next ``count`` windows in arrays of (n, window)."""
        while count:
            if (ready := min(count, len(self._left) // self._window)) == 0:
                self._left = np.concatenate([self._left, next(self._tokens)])
                continue
            cut, self._left = np.split(self._left, [ready * self._window])
            yield cut.reshape(ready, self._window)
            count -= ready

    def rest(self) -> int:
        """Return the number of tokens that are left when no more windows are wanted."""
        return len(self._left) + sum(len(tokens) for tokens in self._tokens)
