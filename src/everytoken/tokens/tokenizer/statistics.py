"""What is recorded of a tokenizer."""

from __future__ import annotations

from typing import TypedDict

from everytoken.tokens.tokenizer.probe import ProbeRecord


class TokenizerIds(TypedDict):
    """What raw shards say of the tokenizer that encoded them."""

    sha256: str
    vocab_size: int
    eos_id: int


class TokenizerIdentity(TokenizerIds):
    """What streams of windows say of it."""

    eos_token: str


class TokenizerStatistics(TokenizerIdentity):
    """Statistics of a tokenizer; of one that was trained also the ``documents`` and ``characters`` that it saw."""

    dtype: str
    missing_bytes: list[int]
    probe: ProbeRecord
