"""Keys that windows and published rows share: document id, and the text that was trained on.

The key is SHA-256 over the SHA-256 of the text and the id, where there is one. Its first 128 bits are compared: among
10^9 keys two are alike with a probability under 10^-20.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW_SIDE, PUBLISHED_SIDE = 0, 1
"""The sides of a match."""

KEYED = np.dtype([("key", np.uint64), ("rest", np.uint64), ("place", np.uint64), ("id", np.uint64)])
"""A row: its key, its side in the highest bit of ``place`` and its number in the others, hash of its id or 0."""


def keyed(side: int, first: int, ids: Sequence[str | None], texts: Sequence[str]) -> npt.NDArray[Any]:
    """Return the records of the rows ``first``, ``first + 1``, ... of a side, `KEYED` (n,)."""
    records = np.empty(len(texts), KEYED)
    for number, (doc_id, text) in enumerate(zip(ids, texts, strict=True)):
        of_id = b"" if doc_id is None else b"\0" + doc_id.encode()
        digest = hashlib.sha256(hashlib.sha256(text.encode()).digest() + of_id).digest()
        of_id = b"" if doc_id is None else hashlib.sha256(of_id).digest()[:8]
        records[number] = (
            int.from_bytes(digest[:8], "little"),
            int.from_bytes(digest[8:16], "little"),
            (side << 63) + first + number,
            int.from_bytes(of_id, "little"),
        )
    return records


def sides(places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the side of each place, uint64 (n,)."""
    return places >> np.uint64(63)


def row_numbers(places: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the row number of each place, int64 (n,)."""
    return (places & np.uint64((1 << 63) - 1)).astype(np.int64)
