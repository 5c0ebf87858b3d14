"""Is the upstream still the one that was released? Pins and digests of the planned files are compared with it.

The released plan decides which files are read, and in which order they become parts. A file that is gone or has other
bytes, and a source at another pin, have *moved*: where that is allowed, a file that is gone may be one of the same
digest at another path. The rows are compared one by one only when that is allowed. Of a moved
file all rows are read, as many as it has now: those of then may be anywhere in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TypedDict

from everytoken.corpus.ingestion import PlannedShard, ShardPlan, Source, Upstream
from everytoken.corpus.reading import ReadingLimits, count_rows
from everytoken.corpus.upstreams import UpstreamFile, algorithm_of
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import Release

RENAMED = "renamed"

_PINS = ("revision", "version", "sha256")


class UpstreamChange(TypedDict):
    """A file or pin (``path`` is None) of the upstream that is another one; ``renamed`` ones have paths in both."""

    source: str
    path: str | None
    what: str
    expected: str | None
    found: str | None


def released_plan(
    release: Release,
    upstreams: Mapping[str, Upstream],
    files: Mapping[str, Sequence[UpstreamFile]],
    *,
    follow_renamed: bool,
) -> tuple[ShardPlan, list[UpstreamChange]]:
    """Return the released plan with the digests of the files as they are now, and what has moved.

    A shard whose file is gone is not in the plan that is returned. One whose file has another path now has that path.

    Args:
        follow_renamed: whether a file that is gone may be another one of the same digest, which the plan does not have.
            Digests of such files are taken where they are on this machine; none is fetched for it.

    Raises:
        ProvenanceError: the plan has a source that is not among the upstreams.
    """
    plan: ShardPlan = release.upstream["plan"]
    moved = [change for name in sorted(upstreams) for change in _pins(release, name, upstreams[name])]
    by_path = {(file.source, file.path): file for of_source in files.values() for file in of_source}
    digests: dict[tuple[str, str], str | None] = {}
    paths: dict[tuple[str, str], str] = {}
    others = _Unplanned(files, {(shard["source"], shard["path"]) for shard in plan["shards"]})
    for shard in plan["shards"]:
        if shard["source"] not in files:
            raise ProvenanceError(
                f"the released plan reads source {shard['source']!r}, which ingestion.sources does not have, only "
                f"{sorted(files)}. Run with --env replay: it takes the sources of the release"
            )
        place = (shard["source"], shard["path"])
        if place in digests:
            continue
        if follow_renamed and place not in by_path and (path := others.path_of(shard["source"], shard["digest"])):
            digests[place], paths[place] = shard["digest"], path
            moved.append(_change(*place, RENAMED, shard["path"], path))
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
            shards=[_as_it_is(plan["shards"][number], digests, paths) for number in kept],
        ),
        moved,
    )


def cover_moved_files(
    plan: ShardPlan,
    moved: Sequence[UpstreamChange],
    sources: Mapping[str, Source],
    files: Mapping[str, Sequence[UpstreamFile]],
    limits: ReadingLimits,
) -> ShardPlan:
    """Let the planned ranges of each moved file cover all rows that it has now; other files stay as they are.

    Ranges keep their place in the plan and where they begin, but that the first begins at row 0. Each ends where the
    next planned one begins, the last at the end of the file; those behind its end are left out.

    Args:
        files: of each source; the rows of the moved ones that are cut into ranges are counted.

    Raises:
        RowError: a file cannot be read.
    """
    places = {(change["source"], change["path"]) for change in moved if change["path"] is not None}
    by_path = {(file.source, file.path): file for of_source in files.values() for file in of_source}
    starts: dict[tuple[str, str], list[int]] = {}
    for shard in plan["shards"]:
        if (place := (shard["source"], shard["path"])) in places and shard["rows"] is not None:
            starts.setdefault(place, []).append(shard["first_row"])
    ranges: dict[tuple[str, str, int], tuple[int, int]] = {}
    for (source, path), firsts in starts.items():
        rows = count_rows(by_path[source, path], sources[source].reading, limits)
        within = [first for first in sorted(firsts)[1:] if first < rows]
        for first, (begin, end) in zip([min(firsts), *within], pairwise([0, *within, rows]), strict=True):
            ranges[source, path, first] = (begin, end - begin)
    order, shards = [], []
    for number, shard in zip(plan["order"], plan["shards"], strict=True):
        place = (shard["source"], shard["path"])
        if place in starts:
            if (*place, shard["first_row"]) not in ranges:
                continue
            first, rows = ranges[*place, shard["first_row"]]
            shard = PlannedShard(**{**shard, "first_row": first, "rows": rows})
        order.append(number)
        shards.append(shard)
    return ShardPlan(parameters=plan["parameters"], n_total=plan["n_total"], order=order, shards=shards)


class _Unplanned:
    """Files that the plan does not have, by digest: taken when the first of a source is asked for."""

    def __init__(self, files: Mapping[str, Sequence[UpstreamFile]], planned: Collection[tuple[str, str]]) -> None:
        self._files, self._planned = files, planned
        self._paths: dict[tuple[str, str], dict[str, str]] = {}

    def path_of(self, source: str, digest: str) -> str | None:
        """Return the path of the first file of a digest; None: there is none that is known without fetching."""
        key = (source, algorithm_of(digest))
        if key not in self._paths:
            self._paths[key] = {}
            for file in self._files[source]:
                is_told = file.pinned is not None and algorithm_of(file.pinned) == key[1]
                if (source, file.path) not in self._planned and (file.remote is None or is_told):
                    self._paths[key].setdefault(_digest(file, digest), file.path)
        return self._paths[key].get(digest)


def _as_it_is(
    shard: PlannedShard, digests: Mapping[tuple[str, str], str | None], paths: Mapping[tuple[str, str], str]
) -> PlannedShard:
    place = (shard["source"], shard["path"])
    digest = digests[place]
    assert digest is not None, "shards without a file are left out"
    return PlannedShard(**{**shard, "digest": digest, "path": paths.get(place, shard["path"])})


def _digest(file: UpstreamFile, expected: str) -> str:
    """Return the digest of a file as it is now, of the kind of the expected one (a mirror may tell another)."""
    told = file.planned_digest()
    algorithm = algorithm_of(expected)
    return told if algorithm_of(told) == algorithm else file.digest(algorithm)


def _pins(release: Release, name: str, upstream: Upstream) -> list[UpstreamChange]:
    """Return in what the pin of a source differs; another kind of upstream is a mirror, whose files are compared."""
    then = release.upstream["sources"].get(name, {}).get("upstream", {})
    now = upstream.model_dump(mode="json")
    if not then or then["kind"] != now["kind"]:
        return []
    return [_change(name, None, pin, then.get(pin), now.get(pin)) for pin in _PINS if then.get(pin) != now.get(pin)]


def _change(source: str, path: str | None, what: str, expected: str | None, found: str | None) -> UpstreamChange:
    return UpstreamChange(source=source, path=path, what=what, expected=expected, found=found)
