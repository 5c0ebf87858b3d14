"""Is the upstream still the one that was released? Pins and digests of the planned files are compared with it.

The released plan decides which files are read, and in which order they become parts. A file that is gone or has other
bytes, and a source at another pin, have *moved*: the rows are compared one by one only when that is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everytoken.corpus.plan import PlannedShard, ShardPlan
from everytoken.corpus.upstreams.checksums import algorithm_of
from everytoken.corpus.upstreams.source import Upstream, UpstreamFile
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import Release

_PINS = ("revision", "version", "sha256")


def released_plan(
    release: Release, upstreams: Mapping[str, Upstream], files: Mapping[str, Sequence[UpstreamFile]]
) -> tuple[ShardPlan, list[dict[str, Any]]]:
    """Return the released plan with the digests of the files as they are now, and what has moved.

    A shard whose file is gone is not in the plan that is returned.

    Args:
        release: has the plan.
        upstreams: where each source is read now.
        files: of each source.

    Returns:
        The plan, and ``{"source", "path", "what", "expected", "found"}`` of each pin (path null) or file that differs.

    Raises:
        ProvenanceError: the plan has a source that is not among the upstreams.
    """
    plan: ShardPlan = release.upstream["plan"]
    moved = [change for name in sorted(upstreams) for change in _pins(release, name, upstreams[name])]
    by_path = {(file.source, file.path): file for of_source in files.values() for file in of_source}
    digests: dict[tuple[str, str], str | None] = {}
    for shard in plan["shards"]:
        if shard["source"] not in files:
            raise ProvenanceError(
                f"the released plan reads source {shard['source']!r}, which ingestion.sources does not have, only "
                f"{sorted(files)}. Run with --env replay: it takes the sources of the release"
            )
        place = (shard["source"], shard["path"])
        if place in digests:
            continue
        digests[place] = None if place not in by_path else _digest(by_path[place], shard["digest"])
        if digests[place] != shard["digest"]:
            moved.append(_change(*place, "file", shard["digest"], digests[place]))
    kept = [
        number for number, shard in enumerate(plan["shards"]) if digests[shard["source"], shard["path"]] is not None
    ]
    return (
        ShardPlan(
            parameters=plan["parameters"],
            n_total=plan["n_total"],
            order=[plan["order"][number] for number in kept],
            shards=[_as_it_is(plan["shards"][number], digests) for number in kept],
        ),
        moved,
    )


def _as_it_is(shard: PlannedShard, digests: Mapping[tuple[str, str], str | None]) -> PlannedShard:
    digest = digests[shard["source"], shard["path"]]
    assert digest is not None, "shards without a file are left out"
    return PlannedShard(**{**shard, "digest": digest})


def _digest(file: UpstreamFile, expected: str) -> str:
    """Return the digest of a file as it is now, of the kind of the expected one (a mirror may tell another)."""
    told = file.planned_digest()
    algorithm = algorithm_of(expected)
    return told if algorithm_of(told) == algorithm else file.digest(algorithm)


def _pins(release: Release, name: str, upstream: Upstream) -> list[dict[str, Any]]:
    """Return in what the pin of a source differs; another kind of upstream is a mirror, whose files are compared."""
    then = release.upstream["sources"].get(name, {}).get("upstream", {})
    now = upstream.model_dump(mode="json")
    if not then or then["kind"] != now["kind"]:
        return []
    return [_change(name, None, pin, then.get(pin), now.get(pin)) for pin in _PINS if then.get(pin) != now.get(pin)]


def _change(source: str, path: str | None, what: str, expected: Any, found: Any) -> dict[str, Any]:
    return {"source": source, "path": path, "what": what, "expected": expected, "found": found}
