"""Tombstones: what is left of a document that was taken down, so that every other token stays where it is.

Its row stays among the encoded documents, with its address and score, without text and id, and without its tokens:

- for a padded stream it has no content: its window is EOS alone, and no prediction of it counts;
- for the compact stream its ``token_length`` stays, and all its tokens are EOS. They are no tokens to learn, so the
  stream gets a ``loss_mask.npy`` (`everytoken.tokens.streams.loss_mask`), in which no prediction counts whose target
  is one of them.

Raw shards have no mask: in them a tombstone is a run of EOS, or one EOS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa

from everytoken.address import Address, address_at
from everytoken.corpus import excluded_rows
from everytoken.shards import Shards
from everytoken.tokens.encoding.counts import EncodedCounts
from everytoken.tokens.encoding.encoder import Encoded
from everytoken.tokens.errors import TokenizerError

TOMBSTONES: Final = "tombstones"
"""Of a part of encoded documents: the rows that are tombstones, ascending; not there when none is."""


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
    batch: pa.RecordBatch, excluded: Mapping[Address, int | None], *, keep_lengths: bool, max_tokens: int | None
) -> Buried | None:
    """Return the tombstones of a batch, None when it has none.

    Args:
        excluded: addresses, and the ``token_length`` where it is known.
        keep_lengths: whether a tombstone keeps the length of its document; else it has no content.
        max_tokens: cap of a document, EOS included; None: none.

    Raises:
        TokenizerError: a length that is said is none that a document can have.
    """
    rows = excluded_rows(batch, excluded)
    if not rows.any():
        return None
    lengths = np.zeros(batch.num_rows, np.int64)
    for row in np.flatnonzero(rows).tolist() if keep_lengths else []:
        address = address_at(batch, row)
        said = excluded[address]
        if said is not None and (said < 0 or (max_tokens is not None and said >= max_tokens)):
            most = "or more" if max_tokens is None else f"to {max_tokens - 1}, what the cap of a document allows"
            raise TokenizerError(f"the excluded document {address} is said to have {said} tokens; expected 0 {most}")
        lengths[row] = -1 if said is None else said
    return Buried(rows, lengths)


class TombstoneRows(TypedDict, total=False):
    """What the statistics of encoded parts say where documents are tombstones: their rows."""

    tombstones: list[int]


class EncodedStatistics(EncodedCounts, TombstoneRows):
    """Statistics of `everytoken.tokens.encoding.encoded_parts.encode_part`."""

    by_source: dict[str, EncodedCounts]
    by_band: dict[str, EncodedCounts]
    length_histogram: list[int]
    rechecked_documents: int


def tombstones_of(tokens: Shards) -> dict[str, list[int]]:
    """Return the rows that are tombstones by name of their part, of the parts that have any (stored parts only)."""
    statistics = zip(tokens, tokens.statistics_as(TombstoneRows), strict=True)
    return {part.name: list(rows) for part, made in statistics if (rows := made.get("tombstones"))}
