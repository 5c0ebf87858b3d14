"""Texts of which none is there already: exact duplicates by SHA-256, near ones by MinHash as in the corpus.

The rule is that of `everytoken.corpus.dedup`: a text is a near duplicate when an earlier text, kept or not, is in one
of its buckets.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

from everytoken.corpus.dedup import NearRules, buckets_of


class RepeatedText(NamedTuple):
    """Why a text is dropped, and the name of the earlier text."""

    reason: Literal["exact", "near"]
    of: str


class UniqueTexts:
    """Texts so far, about 1 kB of memory each.

    Args:
        near: what counts as a near duplicate; None: only equal texts are duplicates.
    """

    def __init__(self, near: NearRules | None) -> None:
        self._near = near
        self._exact: dict[bytes, str] = {}
        self._buckets: dict[bytes, str] = {}

    def add(self, name: str, text: str) -> RepeatedText | None:
        """Add a text; return why it is none that is new, or None."""
        digest = hashlib.sha256(text.encode()).digest()
        if (first := self._exact.setdefault(digest, name)) != name:
            return RepeatedText("exact", first)
        buckets = [] if self._near is None else buckets_of(text, self._near) or []
        earlier = [self._buckets[bucket] for bucket in buckets if bucket in self._buckets]
        for bucket in buckets:
            self._buckets.setdefault(bucket, name)
        return RepeatedText("near", earlier[0]) if earlier else None
