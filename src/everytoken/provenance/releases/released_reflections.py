"""Which reflections of its streams a release does not have, so that nobody can rebuild these streams from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everytoken.provenance.releases.release import Release
from everytoken.reflections import PUBLISHED_RUN
from everytoken.reflections.published import QUOTED_CHARACTERS, ReleasedReflectionCounts
from everytoken.reflections.splicing import ReflectedStatistics
from everytoken.shards import Artifact
from everytoken.tokens.streams import STREAM_KINDS

_WITHHELD = "withheld"


def withheld_of_stream(
    name: str, stream: Artifact, counts: ReleasedReflectionCounts | None
) -> dict[str, dict[str, int]]:
    """Return what ``streams.json`` says besides of a reflected stream; nothing of others.

    ``withheld``: reflections of the run by the reason why the release does not have them. ``other_run``: it has those
    of the run `PUBLISHED_RUN` alone. ``no_text``: its licence keeps the text back. ``quotes``: it repeats its document.

    Args:
        counts: of the reflections in the release; None: it has none.
    """
    if name not in STREAM_KINDS or STREAM_KINDS[name].base is None:
        return {}
    said = stream.statistics_as(ReflectedStatistics)
    if said["run"] != PUBLISHED_RUN:
        return {_WITHHELD: {"other_run": said["reflected_windows"]}}
    if counts is None:
        return {_WITHHELD: {"no_text": said["reflected_windows"]}}
    return {_WITHHELD: {"no_text": counts["no_text"], "quotes": counts["quotes"]}}


_REASONS: Mapping[str, str] = {
    "other_run": f"a release has reflections of the run {PUBLISHED_RUN} alone",
    "no_text": "the licence of their document keeps its text back",
    "quotes": f"they repeat {QUOTED_CHARACTERS} characters of their document",
}


def why_not_rebuilt(release: Release, name: str) -> str | None:
    """Return why a reflected stream cannot be rebuilt from a release; None where it can, and of other streams."""
    described: Mapping[str, Any] = release.streams.get(name, {})
    withheld = described.get(_WITHHELD)
    if not isinstance(withheld, Mapping):
        return None
    counts = {reason: withheld.get(reason) for reason in _REASONS}
    told = [f"{count:,} ({_REASONS[reason]})" for reason, count in counts.items() if type(count) is int and count > 0]
    return f"the release withholds reflections of it: {', '.join(told)}" if told else None
