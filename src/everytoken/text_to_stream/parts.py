"""The parts of a run: one input file or range each, encoded by a worker into an artifact named by its fingerprint.

The parent gets of each what it needs and no more: a run may have 10^5 of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from everytoken.shards import Artifact, ArtifactStore, DamagedStore
from everytoken.text_to_stream.encode_file import FileStatistics
from everytoken.tokens.encoding import EncodedCounts, counts_in
from everytoken.tokens.tokenizer import TokenizerStatistics

_COPIED = 1 << 20  # bytes at a time


@dataclass(frozen=True)
class MadePart:
    """A part that is made.

    Attributes:
        folder: where it lies.
        sha256: of its files, by name.
        counts: of its documents.
        first_lossy: see `FileStatistics`.
        tokenizer: facts of the tokenizer.
        rechecked: documents that the reference encoded again.
    """

    folder: Path
    sha256: Mapping[str, str]
    counts: EncodedCounts
    first_lossy: int | None
    tokenizer: TokenizerStatistics
    rechecked: int

    def copy(self, name: str, target: BinaryIO) -> None:
        """Append one of its files to ``target``.

        Raises:
            DamagedStore: it is not the file that was written.
        """
        digest = hashlib.sha256()
        with (self.folder / name).open("rb", buffering=0) as file:
            while block := file.read(_COPIED):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != self.sha256[name]:
            raise DamagedStore(
                f"{self.folder / name} is not the file that was written (its SHA-256 differs). Run the command again: "
                "damaged parts are made anew."
            )


@dataclass(frozen=True)
class MakePart:
    """Makes one planned part unless it is there: what a worker runs.

    Attributes:
        working: folder of the parts.
    """

    working: Path

    def __call__(self, task: tuple[str, Artifact]) -> MadePart:
        """Make a part, given with its fingerprint."""
        fingerprint, planned = task
        made = ArtifactStore(self.working / fingerprint).save(planned)
        statistics = made.statistics_as(FileStatistics)
        return MadePart(
            folder=self.working / fingerprint,
            sha256={name: entry["sha256"] for name, entry in made.ledger["files"].items()},
            counts=counts_in(statistics),
            first_lossy=statistics["first_lossy"],
            tokenizer=statistics["tokenizer"],
            rechecked=made.measured["rechecked_documents"],
        )


@dataclass(frozen=True)
class MadeParts:
    """The parts of a run by fingerprint.

    Not the artifacts themselves: a store would lock and read them all before it joins them.
    """

    by_fingerprint: Mapping[str, MadePart]
