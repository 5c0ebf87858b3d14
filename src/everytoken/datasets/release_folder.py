"""The dataset that is a release: its digest is the one that the release itself, its report and ``verify`` say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everytoken.datasets.artifact import ArtifactFolder
from everytoken.shards import LEDGER_FILE, DamagedStore


class ReleaseFolder(ArtifactFolder):
    """A release, see `everytoken.provenance.releases`."""

    def ledger_summary(self) -> dict[str, Any]:
        """Return documents, bytes, and as root digest the SHA-256 of ``SHA256SUMS``: it stands for every byte.

        Raises:
            DamagedStore: the statistics of the ledger have another one than its record of the file.
        """
        ledger = self._store.load().ledger
        found, said = ledger["files"]["SHA256SUMS"]["sha256"], ledger["statistics"]["sums_sha256"]
        if found != said:
            raise DamagedStore(
                f"{self._store.shown}/{LEDGER_FILE}: SHA256SUMS has the digest {found[:16]}, its statistics say "
                f"{said[:16]}: it was edited. Run the release pipeline again"
            )
        return {**super().ledger_summary(), "root_digest": found}

    def is_made_from(self, root_digest: str, part_digests: Sequence[str]) -> bool:
        """Tell whether a dataset of this content is one of those that the release describes."""
        from everytoken.provenance.releases import RECIPE_FILE

        described = json.loads(self._store.load().path(RECIPE_FILE).read_text(encoding="utf-8"))["datasets"]
        return root_digest in {dataset["root_digest"] for dataset in described.values()}
