"""A release under check, with what its checks have opened so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from everytoken.checks import Hashing, made_by
from everytoken.provenance.releases import Release
from everytoken.provenance.verification.documents import WindowDocuments
from everytoken.provenance.verification.upstream_texts import UpstreamTexts


@dataclass(frozen=True)
class PartFacts:
    """What one part of the manifest holds; ``lengths``, int32 (rows,), of documents that have a window each."""

    rows: int
    tokens: int
    at_cap: int
    excluded: int
    lengths: np.ndarray


@dataclass
class CheckedRelease:
    """A release under check.

    Attributes:
        folder: of the release.
        full: whether every byte is read.
        count: else how many documents and windows are looked at; also how many are read again from upstream.
        seed: of which these are.
        hashing: hashes files.
        missing: files that do not exist, by the check that names them.
        sums: SHA-256 of each file.
        opened: the release.
        facts: of the parts of the manifest that were read, by split.
        texts: documents read again from upstream.
    """

    folder: Path
    full: bool
    count: int
    seed: int
    hashing: Hashing
    missing: dict[Path, str] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    opened: Release | None = None
    facts: dict[str, list[PartFacts]] = field(default_factory=dict)
    texts: UpstreamTexts | None = None

    @property
    def release(self) -> Release:
        """The opened release; `NotMadeError` where it cannot be opened."""
        return made_by("release", self.opened)

    @cached_property
    def documents(self) -> WindowDocuments:
        """Which documents the windows of its streams hold; to be closed."""
        return WindowDocuments(self.release)

    @property
    def sampled(self) -> int | None:
        """How many documents and windows are looked at; None: all."""
        return None if self.full else self.count
