"""Verification: the streams that were made, compared with what a release says of them."""

from pathlib import Path

from everytoken.parameters import ReplayParameters
from everytoken.provenance.replay import ReplayMetrics, StreamCheck, compare_streams, require_checks_hold
from everytoken.shards import Artifact
from everytoken.tokens.streams import StreamKind, kinds_by_name


def compared_kinds() -> list[StreamKind]:
    """Return the kinds of streams that are compared, in the order in which the node takes them."""
    return [kind for kind in kinds_by_name() if kind.is_released]


def compare_with_release(replay: ReplayParameters, *made: Artifact | None) -> list[StreamCheck]:
    """Compare the streams with the release; the first difference of each is named by window and document."""
    streams = {kind.name: stream for kind, stream in zip(compared_kinds(), made, strict=True)}
    how = replay.verification
    return compare_streams(Path(replay.release), streams, full=how.full, documents=how.documents, seed=how.seed)


def require_equal_streams(
    checks: list[StreamCheck], replayed: ReplayMetrics, replay: ReplayParameters
) -> dict[str, int]:
    """Stop at a difference, unless documents are missing and the replay was allowed to go on without them."""
    return require_checks_hold(checks, replayed, Path(replay.release))
