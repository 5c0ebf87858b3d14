"""What the ledger of an evaluation says."""

from __future__ import annotations

from typing import TypedDict


class HeldOutFigures(TypedDict):
    """Of some held-out documents; ``tokens`` are predictions: content and EOS."""

    documents: int
    bytes: int
    tokens: int
    lossy_documents: int
    bits_per_byte: float
    unigram_bits_per_byte: float


class BitsPerByte(TypedDict):
    """Statistics of an evaluation."""

    total: HeldOutFigures
    by_source: dict[str, HeldOutFigures]
