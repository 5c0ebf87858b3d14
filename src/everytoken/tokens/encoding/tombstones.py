"""Tombstones: what is left of a document that was taken down, so that every other token stays where it is.

Its row stays among the encoded documents, with its address and score, without text and id, and without its tokens:

- for a padded stream it has no content: its window is EOS alone, and no prediction of it counts;
- for the compact stream its ``token_length`` stays, and all its tokens are EOS. They are no tokens to learn, so the
  stream gets a ``loss_mask.npy`` (`everytoken.tokens.streams.loss_mask`), in which no prediction counts whose target
  is one of them.

Raw shards have no mask: in them a tombstone is a run of EOS, or one EOS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.corpus.exclusion import Address, excluded_rows
from everytoken.shards import Shards
from everytoken.tokens.encoding.encoder import Encoded
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.streams.loss_mask import mask_bytes, pack_mask

STATISTIC = "tombstones"
"""Of a part of encoded documents: the rows that are tombstones, ascending; not there when none is."""

_COPIED_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class Buried:
    """The tombstones among the documents of a batch.

    Attributes:
        rows: which documents are, bool (n,).
        lengths: tokens of content that each of them keeps, int64 (n,); -1: as many as its text has.
    """

    rows: np.ndarray
    lengths: np.ndarray

    def readable(self, texts: Sequence[str]) -> list[str]:
        """Return the texts, and nothing in the place of those that need not be read."""
        return [
            "" if buried and length >= 0 else text
            for text, buried, length in zip(texts, self.rows.tolist(), self.lengths.tolist(), strict=True)
        ]

    def entombed(self, encoded: Encoded, eos_id: int) -> Encoded:
        """Return the documents with EOS in the place of every token of a tombstone, of whose text nothing is known."""
        buried = self.rows
        lengths = np.where(buried & (self.lengths >= 0), self.lengths, encoded.lengths)
        sizes, old = lengths + 1, encoded.offsets
        starts = np.concatenate([[0], np.cumsum(sizes)])
        values = np.full(int(starts[-1]), eos_id, encoded.values.dtype)
        for row in np.flatnonzero(~buried).tolist():
            values[starts[row] : starts[row + 1]] = encoded.values[old[row] : old[row + 1]]
        facts = {
            name: np.where(buried, 0, column).astype(column.dtype)
            for name, column in vars(encoded).items()
            if name not in ("values", "lengths")
        }
        return replace(encoded, values=values, lengths=lengths.astype(np.int32), **facts)

    def unnamed(self, column: pa.Array, name: str) -> pa.Array:
        """Return a column without what would tell of the text: no text, no id."""
        if name not in ("text", "id"):
            return column
        values = column.to_pylist()
        for row in np.flatnonzero(self.rows).tolist():
            values[row] = "" if name == "text" else None
        return pa.array(values, column.type)


def buried_of(
    batch: pa.RecordBatch, excluded: Mapping[Address, int | None], *, keep_lengths: bool, max_tokens: int
) -> Buried | None:
    """Return the tombstones of a batch, None when it has none.

    Args:
        batch: documents with their addresses.
        excluded: addresses, and the ``token_length`` where it is known.
        keep_lengths: whether a tombstone keeps the length of its document; else it has no content.
        max_tokens: cap of a document, EOS included.

    Raises:
        TokenizerError: a length that is said is none that a document can have.
    """
    rows = excluded_rows(batch, excluded)
    if not rows.any():
        return None
    lengths = np.zeros(batch.num_rows, np.int64)
    for row in np.flatnonzero(rows).tolist() if keep_lengths else []:
        address = tuple(batch.column(name)[row].as_py() for name in ("source", "shard_index", "row"))
        said = excluded[address]
        if said is not None and not 0 <= said < max_tokens:
            raise TokenizerError(
                f"the excluded document {address} is said to have {said} tokens; expected 0 to {max_tokens - 1}, what "
                "the cap of a document allows"
            )
        lengths[row] = -1 if said is None else said
    return Buried(rows, lengths)


def tombstones_of(tokens: Shards) -> dict[str, list[int]]:
    """Return the rows that are tombstones by name of their part, of the parts that have any (stored parts only)."""
    statistics = zip(tokens, tokens.statistics, strict=True)
    return {part.name: list(made[STATISTIC]) for part, made in statistics if made.get(STATISTIC)}


def spans_in_order(sizes: np.ndarray, permutation: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Return where documents of a part lie among its shuffled tokens: start and end, ascending, int64 (k, 2).

    Args:
        sizes: tokens of each document, EOS included, int64 (n,).
        permutation: document i of the shuffled part is row ``permutation[i]``.
        rows: of the documents.
    """
    ends = np.empty(len(sizes), np.int64)
    ends[permutation] = np.cumsum(sizes[permutation])
    chosen = np.asarray(rows, np.int64)
    spans = np.stack([ends[chosen] - sizes[chosen], ends[chosen]], axis=1)
    return spans[np.argsort(spans[:, 0])]


class MaskedWindows:
    """Gathers which tokens of which windows are tombstones, block by block of the shuffle; then writes the mask."""

    def __init__(self, spans: np.ndarray, window: int) -> None:
        """Begin with spans of tokens in the order in which windows are cut, ascending, int64 (k, 2)."""
        self._spans, self._window = spans, window
        self._found: list[tuple[int, int, int]] = []  # window, first and end of its tokens

    def add(self, start: int, position: np.ndarray) -> None:
        """Take a block: window ``start + i`` as cut is window ``start + position[i]`` of the stream."""
        end = (start + len(position)) * self._window
        first = int(np.searchsorted(self._spans[:, 1], start * self._window, side="right"))
        last = int(np.searchsorted(self._spans[:, 0], end, side="left"))
        for a, b in self._spans[first:last].tolist():
            a, b = max(a, start * self._window), min(b, end)
            while a < b:
                cut, at = divmod(a, self._window)
                stop = min(b, (cut + 1) * self._window)
                self._found.append((start + int(position[cut - start]), at, at + stop - a))
                a = stop

    def write(self, path: Path, windows: int) -> int:
        """Write ``loss_mask.npy`` of a stream of so many windows; return how many predictions count."""
        seq_length, size = self._window - 1, mask_bytes(self._window - 1)
        full = pack_mask(np.ones((1, seq_length), bool))
        found, done, counted = sorted(self._found), 0, windows * seq_length
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (windows, size)}
            )
            step = max(1, _COPIED_BYTES // size)
            for start in range(0, windows, step):
                rows = np.repeat(full, min(step, windows - start), axis=0)
                while done < len(found) and found[done][0] < start + len(rows):
                    number, first, end = found[done]
                    cleared = np.zeros(seq_length, bool)
                    cleared[max(first - 1, 0) : end - 1] = True  # prediction t is of token t + 1
                    rows[number - start] &= ~pack_mask(cleared[None])[0]
                    counted -= int(np.count_nonzero(cleared))
                    done += 1
                file.write(rows.data)
            file.flush()
            os.fsync(file.fileno())
        return counted


def mask_statistics(tombstones: Mapping[str, Sequence[int]], spans: np.ndarray, counted: int) -> dict[str, Any]:
    """Return what the ledger of a compact stream says of its tombstones."""
    documents = sum(map(len, tombstones.values()))
    tokens = int((spans[:, 1] - spans[:, 0]).sum())
    return {STATISTIC: {"documents": documents, "tokens": tokens}, "loss_tokens": counted}
