"""A release under check, with what its checks have opened so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from everytoken.checks import Hashing, made_by
from everytoken.provenance.releases import Release
from everytoken.provenance.verification.documents import WindowDocuments
from everytoken.provenance.verification.upstream_texts import UpstreamTexts


@dataclass
class CheckedRelease:
    """A release under check.

    Attributes:
        full: whether every byte is read.
        count: else how many documents and windows are looked at; also how many are read again from upstream.
        scratch: removes what was written when the checks end.
        missing: files that do not exist, by the check that names them.
        read: parts of the manifest that could be read, by split.
        texts: documents read again from upstream.
    """

    folder: Path
    full: bool
    count: int
    seed: int
    hashing: Hashing
    scratch: ExitStack
    missing: dict[Path, str] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    opened: Release | None = None
    read: Counter[str] = field(default_factory=Counter)
    texts: UpstreamTexts | None = None

    @property
    def release(self) -> Release:
        """The opened release; `NotMadeError` where it cannot be opened."""
        return made_by("release", self.opened)

    @cached_property
    def documents(self) -> WindowDocuments:
        """Which documents the windows of its streams hold."""
        return WindowDocuments(self.release, self.scratch)

    @property
    def sampled(self) -> int | None:
        """How many documents and windows are looked at; None: all."""
        return None if self.full else self.count
