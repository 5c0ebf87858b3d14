"""Encoded documents become token streams: windows of ``seq_length + 1`` tokens in the order in which training
reads them.

Compact stream: documents, each with its EOS, are shuffled inside their part, parts follow each other in plan
order, the whole is cut into windows (the remainder is dropped and reported), and the windows are shuffled
block by block. Window i of a block is window ``permutation[i]`` of that block as cut; in the same way
document i of a shuffled part is its row ``permutation[i]``.

Annotated stream: one document a window (`everytoken.tokens.streams.one_document_per_window`).

All shuffles are exact permutations in bounded memory: documents in `everytoken.tokens.streams.documents`, windows in
`everytoken.outofcore.row_scatter`. The bytes do not depend on the bound. Parts are read ahead in `_READERS` threads,
because to decode parquet takes longer than all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.address import address_fields
from everytoken.outofcore import destinations
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.documents import (
    WindowCounts,
    document_sizes,
    require_encoded,
    shuffled_tokens,
    tokenizer_facts,
)
from everytoken.tokens.streams.loss_mask import LOSS_MASK_FILE
from everytoken.tokens.streams.masked_windows import MaskedWindows, MaskStatistics, mask_statistics, spans_in_order
from everytoken.tokens.streams.megatron import WindowWriter, stored_dtype
from everytoken.tokens.streams.one_document_per_window import write_padded_stream
from everytoken.tokens.streams.readahead import read_ahead

_COMPACT, _ANNOTATED = "compact", "annotated"
_BLOCK_BYTES = 100 << 30

SIDECAR = pa.schema(
    [
        ("doc_id", pa.large_string()),
        ("text", pa.large_string()),
        ("token_length", pa.int32()),
        ("safety_score", pa.int8()),
        ("is_bad", pa.bool_()),
        *address_fields(nullable=True),
    ]
)
_READERS = 2


class CompactStatistics(WindowCounts, MaskStatistics):
    """Statistics of a compact stream; ``tokens`` with EOS, of whole windows."""

    documents: int
    remainder_tokens: int
    blocks: int
    shuffle_block: int


@versioned("write_compact_stream", 2, unrecorded=["shuffle_memory"])
def write_compact_stream(
    folder: Path,
    *,
    tokens: Shards,
    tokenizer: Artifact,
    seq_length: int,
    seed: int,
    shuffle_block: int | None,
    shuffle_memory: int,
    tombstones: Mapping[str, Sequence[int]] | None = None,
    name: str = _COMPACT,
) -> Built:
    """Write ``<name>.bin`` and ``<name>.idx``; and ``loss_mask.npy`` where documents are tombstones.

    Generators: documents of part p by ``numpy_generator(seed, p).permutation(rows)``; windows by one
    ``numpy_generator(seed)`` for all blocks in order, ``permutation(n)`` for a block of n.

    Args:
        folder: where the files go; also holds temporary files, up to the size of two parts uncompressed.
        tokens: encoded documents (``tokens``, ``token_length``).
        tokenizer: the tokenizer that encoded them.
        seq_length: tokens that a window predicts; a window has one more.
        shuffle_block: windows in a block; None: as many as 100 GiB hold.
        shuffle_memory: bytes for rows in memory; positions come on top (33 bytes a document of two parts, 17 a window
            of a block), and what reading two row groups takes.
        tombstones: rows that are, by name of the part (`everytoken.tokens.encoding.tombstones`); None: none is.

    Returns:
        Statistics: windows, tokens (in windows), documents, remainder_tokens, blocks, shuffle_block, tokenizer (sha256,
        vocab_size, eos_token, eos_id); with tombstones also tombstones (documents, tokens with EOS) and loss_tokens
        (predictions that count).

    Raises:
        StreamError: the documents have no tokens, or are not what their ``token_length`` and the tokenizer say.
    """
    window, facts = seq_length + 1, tokenizer_facts(tokenizer)
    require_encoded(tokens, facts)
    block = _BLOCK_BYTES // (window * stored_dtype(facts.dtype).itemsize) if shuffle_block is None else shuffle_block
    if block < 1:
        raise StreamError(f"shuffle_block is {shuffle_block}; expected at least 1 window")
    total, spans = _sizes(tokens, seed, tombstones or {})
    masked = MaskedWindows(spans, window)
    generator = numpy_generator(seed)
    half = shuffle_memory // 2  # of windows; of documents: parts that are read, and the one that is cut
    parts = (shuffled_tokens(part, facts, seed=seed, memory=half // (_READERS + 1), scratch=folder) for part in tokens)
    blocks = 0
    with (
        closing(read_ahead(parts, _READERS)) as documents,
        WindowWriter(folder / name, window, facts.dtype) as writer,
    ):
        windows = _Windows(documents, window, facts.dtype)
        for start in range(0, total // window, block):
            count = min(block, total // window - start)
            position = destinations(generator.permutation(count))
            masked.add(start, position)
            with writer.shuffled(position, half) as write:
                for cut in windows.take(count):
                    write(cut)
            blocks += 1
        remainder = windows.rest()
    statistics = CompactStatistics(
        windows=writer.windows,
        tokens=writer.windows * window,
        documents=tokens.rows,
        remainder_tokens=remainder,
        blocks=blocks,
        shuffle_block=block,
        tokenizer=facts.recorded,
    )
    if tombstones:
        said = mask_statistics(tombstones, spans, masked.write(folder / LOSS_MASK_FILE, writer.windows))
        statistics["tombstones"], statistics["loss_tokens"] = said["tombstones"], said["loss_tokens"]
    return Built(statistics)


def _sizes(tokens: Shards, seed: int, tombstones: Mapping[str, Sequence[int]]) -> tuple[int, np.ndarray]:
    """Return the number of all tokens, and where those of tombstones are among them as they are cut, int64 (k, 2)."""
    total, spans = 0, [np.empty((0, 2), np.int64)]
    for part in tokens:
        sizes = document_sizes(part)
        if rows := tombstones.get(part.name):
            permutation = numpy_generator(seed, part.index).permutation(part.rows)
            spans.append(total + spans_in_order(sizes, permutation, rows))
        total += int(sizes.sum())
    return total, np.concatenate(spans)


@versioned("write_annotated_stream", 2, unrecorded=["shuffle_memory"])
def write_annotated_stream(
    folder: Path, *, tokens: Shards, tokenizer: Artifact, seq_length: int, seed: int, shuffle_memory: int
) -> Built:
    """Write ``annotated.bin``, ``annotated.idx``, ``token_lengths.npy`` and ``sidecar.parquet``.

    See `everytoken.tokens.streams.one_document_per_window.write_padded_stream`.
    """
    return Built(
        write_padded_stream(
            folder,
            _ANNOTATED,
            tokens=tokens,
            facts=tokenizer_facts(tokenizer),
            sidecar=SIDECAR,
            columns={"doc_id": "id"},
            seq_length=seq_length,
            seed=seed,
            shuffle_memory=shuffle_memory,
        )
    )


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
