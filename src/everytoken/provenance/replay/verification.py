"""Rebuilt streams against the release that they were rebuilt from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from everytoken.checks import Check
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import Release, open_release, why_not_rebuilt
from everytoken.provenance.replay.manifest_files import is_release
from everytoken.provenance.replay.match import FAULTS
from everytoken.provenance.replay.report import ReplayMetrics, found_line, release_name
from everytoken.provenance.verification import release_checks
from everytoken.shards import Artifact
from everytoken.tokens.streams import STREAM_KINDS

logger = logging.getLogger(__name__)


class StreamCheck(TypedDict):
    """A check of a release or a stream; ``ok`` is None of one that was not made."""

    name: str
    ok: bool | None
    text: str


_OUTCOMES = {"passed": True, "failed": False, "not made": None}
_NOT_REBUILT = "not rebuilt: "


def compare_streams(
    folder: Path, streams: Mapping[str, Artifact | None], *, full: bool, documents: int, seed: int
) -> list[StreamCheck]:
    """Check a release, and streams against it.

    ``ok`` is null for one that was not made, as for a stream that does not exist, with what makes it. A manifest in the
    published format describes no streams, and there are no checks.

    Args:
        streams: by the release's names, None: not made; those that it does not have are left out.
        full: whether every byte is read.
        documents: else how many windows and documents are looked at.
    """
    if not is_release(folder):
        logger.warning("warning: %s describes no streams: nothing is compared", folder)
        return []
    release = open_release(folder)
    known = release.streams
    made = {name: one.folder for name, one in streams.items() if name in known and one is not None and one.folder}
    checks = release_checks(folder, made, full=full, documents=documents, seed=seed)
    checks += [
        Check(name, "not made", f"{_NOT_REBUILT}{_remedy(release, name)}") for name in sorted(known.keys() - made)
    ]
    return [StreamCheck(name=check.name, ok=_OUTCOMES[check.outcome], text=check.text) for check in checks]


def _remedy(release: Release, name: str) -> str:
    """Return what makes a stream of a release, or why nothing does."""
    if (why := why_not_rebuilt(release, name)) is not None:
        return why
    kind = STREAM_KINDS.get(name)
    if kind is None or not kind.is_on_request:
        return "run the whole job"
    command = f"kedro run --env replay --pipelines {kind.pipeline},verification"
    if kind.own_documents is None:
        return command
    return f"its documents are in no release; with them at {kind.own_documents}, {command}"


def require_checks_hold(checks: Sequence[StreamCheck], replayed: ReplayMetrics, folder: Path) -> dict[str, int]:
    """Check that every check holds, unless documents are missing and a replay was allowed to go on without them.

    What came out is logged in one line, as a warning where a check fails, a stream is not rebuilt or nothing is told.

    Returns:
        ``checks``, ``failed``, ``not_rebuilt`` (streams) and ``missing_documents``, how many.

    Raises:
        ProvenanceError: one does not hold although no document is missing.
    """
    not_made = [check for check in checks if check["ok"] is None]
    absent = [check for check in not_made if check["text"].startswith(_NOT_REBUILT)]
    checks = [check for check in checks if check["ok"] is not None]
    failed = [check for check in checks if not check["ok"]]
    missing = sum(replayed[kind] for kind in FAULTS)
    faults = "; ".join(f"{check['name']}: {check['text']}" for check in failed)
    if failed and not missing:
        raise ProvenanceError(f"{len(failed)} of {len(checks)} checks of the rebuilt streams fail: {faults}")
    outcome = f"{release_name(folder)}: {found_line(replayed)}"
    if failed:
        logger.warning(
            "warning: %s; as %d are missing, which is allowed, %d of %d checks of the streams fail: %s",
            *(outcome, missing, len(failed), len(checks), faults),
        )
    elif not checks:
        logger.warning("warning: %s; nothing is told of its streams, and nothing was compared", outcome)
    else:
        compared = "the streams that were rebuilt" if absent else "all streams"
        logger.info("%s; %s are the released ones (%d checks)", outcome, compared, len(checks))
    for check in not_made:
        said = "stream %s of the release is %s" if check in absent else "%s: %s"
        logger.warning(f"warning: {said}", check["name"], check["text"])
    return {"checks": len(checks), "failed": len(failed), "not_rebuilt": len(absent), "missing_documents": missing}
