"""Verification: the streams that were made, compared with what a release says of them."""

from pathlib import Path
from typing import Any

from everytoken.parameters import ReplayParameters
from everytoken.provenance.replay import compare_streams, require_checks_hold
from everytoken.shards import Artifact


def compare_with_release(
    annotated_stream: Artifact,
    compact_stream: Artifact,
    canary_stream: Artifact | None,
    raw_shards: Artifact | None,
    replay: ReplayParameters,
) -> list[dict[str, Any]]:
    """Compare the streams with the release; the first difference of each is named by window and document."""
    streams = {
        "annotated": annotated_stream,
        "compact": compact_stream,
        "canary": canary_stream,
        "raw_shards": raw_shards,
    }
    how = replay.verification
    return compare_streams(Path(replay.release), streams, full=how.full, documents=how.documents, seed=how.seed)


def require_equal_streams(
    checks: list[dict[str, Any]], replayed: dict[str, Any], replay: ReplayParameters
) -> dict[str, Any]:
    """Stop at a difference, unless documents are missing and the replay was allowed to go on without them."""
    return require_checks_hold(checks, replayed, Path(replay.release))
