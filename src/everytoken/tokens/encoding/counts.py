"""What is counted of each document that is encoded.

Content tokens are those without EOS; *full* ones are before the cut. ``special_documents`` spell a special token;
``special_ids`` are ids of content, after the cut, that are special tokens therefore. Lost bytes: see
`everytoken.tokens.encoding.encoder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, cast

import numpy as np

from everytoken.corpus import add_statistics
from everytoken.tokens.encoding.encoder import Encoded


class EncodedCounts(TypedDict):
    """See the module; the sums over documents."""

    documents: int
    tokens: int
    full_tokens: int
    eos: int  # one a document, and all tokens of a tombstone
    at_cap_documents: int  # as long as the cap allows, cut or not
    truncated_documents: int
    cut_tokens: int
    empty_documents: int  # without a content token
    lossy_documents: int
    lossy_bytes: int
    normalized_documents: int
    special_documents: int
    special_ids: int
    characters: int
    utf8_bytes: int


COUNTED = tuple(EncodedCounts.__annotations__)


def counts_in(statistics: Mapping[str, object]) -> EncodedCounts:
    """Return the counts among statistics that have them."""
    return cast(EncodedCounts, {name: statistics[name] for name in COUNTED})


def sum_counts(counts: Iterable[EncodedCounts]) -> EncodedCounts:
    """Return the sums of counts; of none they are 0."""
    return add_statistics([counts_in(dict.fromkeys(COUNTED, 0)), *counts])


def document_counts(
    encoded: Encoded, max_tokens: int | None, tombstones: np.ndarray | None = None
) -> Mapping[str, np.ndarray]:
    """Return what each document adds to the counts, integers or booleans (n,), by the names `COUNTED`.

    Args:
        max_tokens: their cap, EOS included; None: none.
        tombstones: which of them are (`everytoken.tokens.encoding.tombstones`), bool (n,); None: none is.
    """
    cut = encoded.full_lengths - encoded.lengths
    one = np.ones(len(cut), np.int64)
    counts = {
        "documents": one,
        "tokens": encoded.lengths,
        "full_tokens": encoded.full_lengths,
        "eos": one,
        "at_cap_documents": np.zeros(len(cut), bool) if max_tokens is None else encoded.lengths == max_tokens - 1,
        "truncated_documents": cut > 0,
        "cut_tokens": cut,
        "empty_documents": encoded.lengths == 0,
        "lossy_documents": encoded.lost_bytes != 0,
        "lossy_bytes": np.abs(encoded.lost_bytes),
        "normalized_documents": encoded.normalized,
        "special_documents": encoded.spells_special,
        "special_ids": encoded.special_ids,
        "characters": encoded.characters,
        "utf8_bytes": encoded.text_bytes,
    }
    if tombstones is None:
        return counts
    left = {"documents": one, "eos": encoded.lengths.astype(np.int64) + 1}
    return {name: np.where(tombstones, left.get(name, 0), column) for name, column in counts.items()}
