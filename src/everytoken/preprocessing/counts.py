"""What is counted of documents; the names are those of `everytoken.tokens.encode.encode_part`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from everytoken.tokens.encoding import Encoded

COUNTED = (
    *("documents", "tokens", "eos", "truncated_documents", "cut_tokens", "empty_documents"),
    *("lossy_documents", "lossy_bytes", "normalized_documents", "special_documents", "special_ids"),
    *("characters", "utf8_bytes"),
)


def count(encoded: Encoded) -> dict[str, int]:
    """Return the counts of some documents: of content tokens after the cut, and of the whole text before it."""
    cut = encoded.full_lengths - encoded.lengths
    documents = len(cut)
    counts = (
        *(documents, encoded.lengths.sum(dtype=np.int64), documents, np.count_nonzero(cut), cut.sum()),
        np.count_nonzero(encoded.lengths == 0),
        *(np.count_nonzero(encoded.lost_bytes), np.abs(encoded.lost_bytes).sum()),
        np.count_nonzero(encoded.normalized),
        *(np.count_nonzero(encoded.spells_special), encoded.special_ids.sum()),
        *(encoded.characters.sum(), encoded.text_bytes.sum()),
    )
    return {name: int(value) for name, value in zip(COUNTED, counts, strict=True)}


def total(all_counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts."""
    sums = dict.fromkeys(COUNTED, 0)
    for counts in all_counts:
        for name in COUNTED:
            sums[name] += counts[name]
    return sums
