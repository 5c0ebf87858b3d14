"""Encoded documents become token streams: windows of ``seq_length + 1`` tokens in the order in which training
reads them.

Compact stream: documents, each with its EOS, are shuffled inside their part, parts follow each other in plan
order, the whole is cut into windows (the remainder is dropped and reported), and the windows are shuffled
block by block. Window i of a block is window ``permutation[i]`` of that block as cut; in the same way
document i of a shuffled part is its row ``permutation[i]``.

Annotated stream: one document a window (`everytoken.tokens.streams.one_document_per_window`).

All shuffles are exact permutations in bounded memory: documents in `everytoken.tokens.streams.documents`, windows in
`everytoken.outofcore.row_places`. Where the tokens of a part begin follows from lengths alone, so parts are read and
written in any order, by as many processes as the engine has. The bytes depend neither on them nor on the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from everytoken.address import address_fields
from everytoken.outofcore import destinations
from everytoken.seeds import numpy_generator
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, Part, RangeMap, Shards, versioned
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.documents import (
    TokenizerFacts,
    WindowCounts,
    document_sizes,
    require_encoded,
    shuffled_tokens,
    tokenizer_facts,
)
from everytoken.tokens.streams.loss_mask import LOSS_MASK_FILE
from everytoken.tokens.streams.masked_windows import MaskedWindows, MaskStatistics, mask_statistics, spans_in_order
from everytoken.tokens.streams.megatron import stored_dtype
from everytoken.tokens.streams.one_document_per_window import write_padded_stream
from everytoken.tokens.streams.placed_windows import PlacedWindows, open_placed_windows

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


class CompactStatistics(WindowCounts, MaskStatistics):
    """Statistics of a compact stream; ``tokens`` with EOS, of whole windows."""

    documents: int
    remainder_tokens: int
    blocks: int
    shuffle_block: int


@versioned("write_compact_stream", 2, unrecorded=["shuffle_memory"], in_ranges=True)
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
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write ``<name>.bin`` and ``<name>.idx``; and ``loss_mask.npy`` where documents are tombstones.

    Generators: documents of part p by ``numpy_generator(seed, p).permutation(rows)``; windows by one
    ``numpy_generator(seed)`` for all blocks in order, ``permutation(n)`` for a block of n.

    Args:
        folder: where the files go; also holds temporary files, 24 bytes a window and the parts that are read.
        tokens: encoded documents (``tokens``, ``token_length``).
        tokenizer: the tokenizer that encoded them.
        seq_length: tokens that a window predicts; a window has one more.
        shuffle_block: windows in a block; None: as many as 100 GiB hold.
        shuffle_memory: bytes for rows in memory, in all processes together; positions come on top (33 bytes a document
            of the parts that are read, 17 a window of a block), and what reading a row group takes in each process.
        tombstones: rows that are, by name of the part (`everytoken.tokens.encoding.tombstones`); None: none is.
        ranges: where parts are read and written.

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
    parts, total, spans = _sizes(tokens, seed, tombstones or {})
    masked, windows = MaskedWindows(spans, window), total // window
    ranges = ranges.unless_small(total * facts.dtype.itemsize)
    positions = _positions(windows, block, seed, masked)
    with open_placed_windows(
        folder / name, window, facts.dtype, positions, windows, memory=shuffle_memory, ranges=ranges
    ) as placed:
        for _ in ranges(_WritePart(placed, facts, seed, shuffle_memory // ranges.workers), parts):
            pass
    statistics = CompactStatistics(
        windows=windows,
        tokens=windows * window,
        documents=tokens.rows,
        remainder_tokens=total - windows * window,
        blocks=-(-windows // block),
        shuffle_block=block,
        tokenizer=facts.recorded,
    )
    if tombstones:
        said = mask_statistics(tombstones, spans, masked.write(folder / LOSS_MASK_FILE, windows))
        statistics["tombstones"], statistics["loss_tokens"] = said["tombstones"], said["loss_tokens"]
    return Built(statistics)


@dataclass(frozen=True)
class _PartOfStream:
    """A part, and the number of tokens before it."""

    part: Part
    first: int

    @property
    def name(self) -> str:
        return self.part.name


@dataclass(frozen=True)
class _WritePart:
    """Writes the windows of a part, and its pieces of those that it shares with its neighbours."""

    windows: PlacedWindows
    facts: TokenizerFacts
    seed: int
    memory: int

    def __call__(self, of: _PartOfStream) -> None:
        at, gathered = of.first, self.memory // 8  # twice that is held while pieces are put together
        shuffled = self.memory - 2 * gathered
        pieces = shuffled_tokens(of.part, self.facts, seed=self.seed, memory=shuffled, scratch=self.windows.scratch)
        for tokens in _gathered(pieces, gathered):
            self.windows.write_tokens(at, tokens)
            at += len(tokens)


def _gathered(pieces: Iterable[np.ndarray], memory: int) -> Iterator[np.ndarray]:
    """Yield arrays together, as many bytes of them as the memory holds: what is written at a time lies closer."""
    held: list[np.ndarray] = []
    for piece in pieces:
        if held and sum(array.nbytes for array in held) + piece.nbytes > memory:
            yield np.concatenate(held)
            held = []
        held.append(piece)
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held)


def _positions(windows: int, block: int, seed: int, masked: MaskedWindows) -> Iterator[np.ndarray]:
    """Yield the place in the stream of each window as cut, by block; tell ``masked`` of it."""
    generator = numpy_generator(seed)
    for start in range(0, windows, block):
        position = destinations(generator.permutation(min(block, windows - start)))
        masked.add(start, position)
        position += start
        yield position


def _sizes(
    tokens: Shards, seed: int, tombstones: Mapping[str, Sequence[int]]
) -> tuple[list[_PartOfStream], int, np.ndarray]:
    """Return the parts, the number of all tokens, and where those of tombstones are as they are cut, int64 (k, 2)."""
    parts, total, spans = [], 0, [np.empty((0, 2), np.int64)]
    for part in tokens:
        sizes = document_sizes(part)
        if rows := tombstones.get(part.name):
            permutation = numpy_generator(seed, part.index).permutation(part.rows)
            spans.append(total + spans_in_order(sizes, permutation, rows))
        parts.append(_PartOfStream(part, total))
        total += int(sizes.sum())
    return parts, total, np.concatenate(spans)


@versioned("write_annotated_stream", 2, unrecorded=["shuffle_memory"], in_ranges=True)
def write_annotated_stream(
    folder: Path,
    *,
    tokens: Shards,
    tokenizer: Artifact,
    seq_length: int,
    seed: int,
    shuffle_memory: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write ``annotated.bin``, ``annotated.idx``, ``token_lengths.npy`` and ``sidecar.parquet``.

    See `everytoken.tokens.streams.one_document_per_window.write_padded_stream`.
    """
    return write_padded_stream(
        folder,
        _ANNOTATED,
        tokens=tokens,
        facts=tokenizer_facts(tokenizer),
        sidecar=SIDECAR,
        columns={"doc_id": "id"},
        seq_length=seq_length,
        seed=seed,
        shuffle_memory=shuffle_memory,
        ranges=ranges,
    )
