"""What a replay found, and a refusal of what is missing unless it is allowed.

Kinds that ``replay.allow`` can name: ``moved`` (a file or pin of the upstream is another one), ``gone``, ``changed``
and ``ambiguous`` (see `everytoken.provenance.replay.match`), ``contradictory`` (see
`everytoken.provenance.replay.contradictions`). The report is written before anything is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import pyarrow.parquet as pq

from everytoken.address import Address
from everytoken.corpus import add_statistics
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import open_release
from everytoken.provenance.replay.contradictions import ContradictionsReport, contradictions_report
from everytoken.provenance.replay.locate import LocatedCounts
from everytoken.provenance.replay.manifest_files import is_release
from everytoken.provenance.replay.match import FAULTS, FAULTS_FILE, OUTCOMES, MatchStatistics, RowOutcome
from everytoken.provenance.replay.upstream_drift import RENAMED, UpstreamChange
from everytoken.shards import Artifact, Shards

logger = logging.getLogger(__name__)

MOVED = "moved"
_SHOWN = 20

_REMEDIES = {
    "gone": "give the source another place that still has them (replay.upstreams, a mirror)",
    "changed": "give the source another place that has the text of then (replay.upstreams, a mirror)",
    "ambiguous": "give replay.release a manifest with addresses or hashes",
}
_CONSEQUENCES = {
    "gone": "a tombstone takes their place in the streams",
    "changed": "a tombstone takes their place in the streams",
    "ambiguous": "the first text of such an id is taken",
}


_FOUND: tuple[Literal["at_address", RowOutcome], ...] = ("at_address", *OUTCOMES)
_COUNTED: tuple[Literal["rows", "excluded", "at_address", RowOutcome], ...] = ("rows", "excluded", *_FOUND)


class FoundRows(TypedDict):
    """Rows of a manifest by where their documents were found, or why not."""

    rows: int
    excluded: int
    at_address: int
    by_id: int
    by_text: int
    rescued: int
    gone: int
    changed: int
    ambiguous: int


class SplitRows(FoundRows):
    """Those of one split."""

    other_text_at_address: int


class ReplayMetrics(FoundRows):
    """`FoundRows` of all splits and of each; ``moved`` files and pins, and ``contradictory`` rows."""

    moved: int
    contradictory: int
    by_split: dict[str, SplitRows]


class ReplayedFolder(TypedDict):
    """The release or manifest; ``digest`` is None where it is no release."""

    path: str
    digest: str | None


FaultsReport = TypedDict("FaultsReport", {"in": str, "first": list[dict[str, Any]]})
"""The file that lists all rows that are missing, and the first of them."""


class ReplayReport(TypedDict):
    """What `replay_report` tells."""

    release: ReplayedFolder
    rows: ReplayMetrics
    moved: list[UpstreamChange]
    contradictions: ContradictionsReport
    faults: FaultsReport


def require_unmoved(moved: Sequence[UpstreamChange], allowed: Collection[str], where: str) -> None:
    """Check that no file or pin of the upstream is another one, unless that is allowed.

    Args:
        where: the file that lists all, for the message.

    Raises:
        ProvenanceError: some are, and that is not allowed.
    """
    if not moved or MOVED in allowed:
        return
    lines = "; ".join(_moved_line(change) for change in moved[:_SHOWN])
    raise ProvenanceError(
        f"{MOVED}: {len(moved):,} files or pins of the upstream are not the released ones: {lines}"
        f"{'; ...' if len(moved) > _SHOWN else ''}. All are in {where}. Pin the released revision, give the source "
        f"another place (replay.upstreams, a mirror), or let every row be compared by its hash: "
        f"{allowing([MOVED], allowed)}"
    )


def allowing(kinds: Sequence[str], allowed: Collection[str]) -> str:
    """Return how more kinds are allowed beside those that are."""
    both = [*dict.fromkeys([*allowed, *kinds])]
    return f"--params replay.allow={'+'.join(both)}, or in parameters_replay.yml replay.allow: [{', '.join(both)}]"


def _moved_line(change: UpstreamChange) -> str:
    what = change["what"] if change["path"] is None else change["path"]
    if change["what"] == RENAMED:
        return f"source {change['source']!r}, {what} is {change['found']} now, of the same digest"
    found = "which is gone" if change["found"] is None else f"found {change['found']}"
    return f"source {change['source']!r}, {what}: expected {change['expected']}, {found}"


def replay_report(
    located: Shards,
    matches: Artifact,
    moved: Sequence[UpstreamChange],
    contradictions: Artifact,
    folder: Path,
) -> tuple[ReplayMetrics, ReplayReport]:
    """Check that every row of the manifest has an outcome; return counts, and the report with the first faults.

    Raises:
        ProvenanceError: rows are neither found, excluded nor missing: the datasets are not of one replay.
    """
    counts: Mapping[str, LocatedCounts] = add_statistics(located.statistics)
    outcomes = matches.statistics_as(MatchStatistics)["outcomes"]
    by_split: dict[str, SplitRows] = {}
    for split, counted in counts.items():
        found = outcomes.get(split, {})
        _require_conserved(split, counted, sum(found.values()))
        by_split[split] = cast(SplitRows, {**counted, **dict.fromkeys(OUTCOMES, 0), **found})
    total = {name: sum(rows[name] for rows in by_split.values()) for name in _COUNTED}
    contradictory = contradictions_report(contradictions)
    metrics = ReplayMetrics(
        **cast(FoundRows, total), moved=len(moved), contradictory=contradictory["rows"], by_split=by_split
    )
    logger.info("%s: %s", release_name(folder), found_line(metrics))
    return metrics, {
        "release": {"path": str(folder), "digest": open_release(folder).digest if is_release(folder) else None},
        "rows": metrics,
        "moved": list(moved),
        "contradictions": contradictory,
        "faults": {"in": f"{matches.folder}/{FAULTS_FILE}", "first": _first_faults(matches)},
    }


def found_line(metrics: ReplayMetrics) -> str:
    """Return how many documents were found how, of the metrics of `replay_report`."""
    counts = [
        f"{metrics[name]:,} {'at their address' if name == 'at_address' else name.replace('_', ' ')}"
        for name in _FOUND
        if metrics[name]
    ]
    down = f" ({metrics['excluded']:,} were taken down before the release)" if metrics["excluded"] else ""
    return f"{metrics['rows']:,} documents{down}: {', '.join(counts) or 'none found'}"


def release_name(folder: Path) -> str:
    """Return what is replayed, for a log line: a release by its digest."""
    return f"replay of release {open_release(folder).digest}" if is_release(folder) else f"replay of manifest {folder}"


def _require_conserved(split: str, counted: LocatedCounts, looked_for: int) -> None:
    most = counted["rows"] - counted["at_address"]
    if not most - counted["excluded"] <= looked_for <= most:
        raise ProvenanceError(
            f"{split}: of {counted['rows']:,} rows {counted['at_address']:,} are at their address and "
            f"{counted['excluded']:,} excluded, and {looked_for:,} were looked for elsewhere: a row was lost. Run the "
            "pipeline replay again"
        )


def _first_faults(matches: Artifact) -> list[dict[str, Any]]:
    with pq.ParquetFile(matches.path(FAULTS_FILE)) as file:
        rows = next(file.iter_batches(_SHOWN)).to_pylist() if file.metadata.num_rows else []
    return [{**row, **{name: _hash(row[name]) for name in ("expected_hash", "found_hash")}} for row in rows]


def _found(row: Mapping[str, Any]) -> list[str]:
    """Return what was found in the place of a document, in words."""
    if row["found_hash"] is None:
        return []
    name = "a document without id" if row["found_id"] is None else f"id {str(row['found_id'])[:60]!r}"
    place = Address(row["found_source"], row["found_shard_index"], row["found_row"])
    return [f"found {name} at {place}, found hash {row['found_hash']}"]


def _hash(value: int | None) -> str | None:
    return None if value is None else f"{value:016x}"


def require_allowed(report: ReplayReport, allowed: Collection[str]) -> None:
    """Check that no kind of row is missing but those that are allowed.

    Raises:
        ProvenanceError: some are; with counts, the first of them, and what to do.
    """
    kinds = [kind for kind in FAULTS if report["rows"][kind] and kind not in allowed]
    if not kinds:
        return
    first = [row for row in report["faults"]["first"] if row["reason"] in kinds]
    counts = ", ".join(f"{report['rows'][kind]:,} {kind}" for kind in kinds)
    remedies = "; ".join(f"{kind}: {_REMEDIES[kind]}" for kind in kinds)
    consequences = "; ".join(dict.fromkeys(_CONSEQUENCES[kind] for kind in kinds))
    raise ProvenanceError(
        f"of {report['rows']['rows']:,} documents of the manifest the upstream cannot give all: {counts}. "
        f"{'First: ' + _fault_line(first[0]) + '. ' if first else ''}All are in {report['faults']['in']}. {remedies}. "
        f"Or go on without them: {allowing(kinds, allowed)} ({consequences})"
    )


def _fault_line(row: Mapping[str, Any]) -> str:
    place = [] if row["source"] is None else [str(Address.of(row))]
    name = [f"id {str(row['id'])[:60]!r}"] if row["id"] is not None else []
    expected = [f"expected hash {row['expected_hash']}"] if row["expected_hash"] else []
    what = f"{row['split']} document {row['number']:,} is {row['reason']}"
    return ", ".join([what, *place, *name, *expected, *_found(row)])
