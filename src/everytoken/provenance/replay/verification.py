"""Rebuilt streams against the release that they were rebuilt from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import open_release
from everytoken.provenance.replay.manifest_files import is_release
from everytoken.provenance.replay.match import FAULTS
from everytoken.provenance.verification.release_checks import release_checks
from everytoken.shards.artifacts import Artifact

logger = logging.getLogger(__name__)


def compare_streams(
    folder: Path, streams: Mapping[str, Artifact], *, full: bool, documents: int, seed: int
) -> list[dict[str, Any]]:
    """Check a release, and streams against it: ``{"name", "ok", "text"}`` of each check.

    A manifest in the published format describes no streams, and there are no checks.

    Args:
        folder: of the release.
        streams: by the release's names; those that it does not have are left out.
        full: whether every byte is read.
        documents: else how many windows and documents are looked at.
        seed: of these.
    """
    if not is_release(folder):
        logger.warning("warning: %s describes no streams: nothing is compared", folder)
        return []
    release = open_release(folder)
    folders = {name: stream.folder for name, stream in streams.items() if name in release.streams and stream.folder}
    checks = release_checks(release, folders, full=full, documents=documents, seed=seed)
    return [{"name": check.name, "ok": check.ok, "text": check.text} for check in checks]


def require_same(checks: Sequence[Mapping[str, Any]], replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Check that every check holds, unless documents are missing and a replay was allowed to go on without them.

    Args:
        checks: of `compare_streams`.
        replayed: metrics of the replay.

    Returns:
        ``checks``, ``failed`` and ``missing_documents``, how many.

    Raises:
        ProvenanceError: one does not hold although no document is missing.
    """
    failed = [check for check in checks if not check["ok"]]
    missing = sum(replayed[kind] for kind in FAULTS)
    faults = "; ".join(f"{check['name']}: {check['text']}" for check in failed)
    if failed and not missing:
        raise ProvenanceError(f"{len(failed)} of {len(checks)} checks of the rebuilt streams fail: {faults}")
    if failed:
        logger.warning("warning: %d documents are missing, as allowed, and the streams differ: %s", missing, faults)
    return {"checks": len(checks), "failed": len(failed), "missing_documents": missing}
