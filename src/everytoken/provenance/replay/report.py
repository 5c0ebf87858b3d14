"""What a replay found, and a refusal of what is missing unless it is allowed.

Kinds that ``replay.allow`` can name: ``moved`` (a file or pin of the upstream is another one), ``gone``, ``changed``
and ``ambiguous`` (see `everytoken.provenance.replay.match`). The report is written before anything is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from everytoken.corpus.statistics import add_statistics
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.replay.match import FAULTS, FAULTS_FILE, OUTCOMES
from everytoken.shards.artifacts import Artifact
from everytoken.shards.shards import Shards

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


def require_unmoved(moved: Sequence[Mapping[str, Any]], allowed: Collection[str], where: str) -> None:
    """Check that no file or pin of the upstream is another one, unless that is allowed.

    Args:
        moved: of `everytoken.provenance.replay.moved.released_plan`.
        allowed: kinds.
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
        f"another place (replay.upstreams, a mirror), or let every row be compared by its hash: replay.allow: [{MOVED}]"
    )


def _moved_line(change: Mapping[str, Any]) -> str:
    what = change["what"] if change["path"] is None else change["path"]
    found = "which is gone" if change["found"] is None else f"found {change['found']}"
    return f"source {change['source']!r}, {what}: expected {change['expected']}, {found}"


def replay_report(
    located: Shards, matches: Artifact, moved: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check that every row of the manifest has an outcome; return counts, and the report with the first faults.

    Raises:
        ProvenanceError: rows are neither found, excluded nor missing: the datasets are not of one replay.
    """
    counts = add_statistics(located.statistics)
    outcomes = matches.statistics["outcomes"]
    by_split = {}
    for split, counted in counts.items():
        found = {**dict.fromkeys(OUTCOMES, 0), **outcomes.get(split, {})}
        by_split[split] = {**counted, **found}
        _require_conserved(split, by_split[split], matches)
    names = ("rows", "excluded", "at_address", *OUTCOMES)
    total = {name: sum(counted.get(name, 0) for counted in by_split.values()) for name in names}
    metrics = {**total, MOVED: len(moved), "by_split": by_split}
    report = {
        "rows": metrics,
        "moved": list(moved),
        "faults": {"in": f"{matches.folder}/{FAULTS_FILE}", "first": _first_faults(matches)},
    }
    return metrics, report


def _require_conserved(split: str, counted: Mapping[str, int], matches: Artifact) -> None:
    looked_for = sum(matches.statistics["outcomes"].get(split, {}).values())
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


def _hash(value: int | None) -> str | None:
    return None if value is None else f"{value:016x}"


def require_allowed(report: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Check that no kind of row is missing but those that are allowed.

    Args:
        report: of `replay_report`.
        allowed: kinds.

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
        f"Or go on without them: replay.allow: [{', '.join(kinds)}] ({consequences})"
    )


def _fault_line(row: Mapping[str, Any]) -> str:
    place = (
        [f"source {row['source']!r} file {row['shard_index']} row {row['row']}"] if row["source"] is not None else []
    )
    name = [f"id {str(row['id'])[:60]!r}"] if row["id"] is not None else []
    hashes = [f"{key.removesuffix('_hash')} hash {row[key]}" for key in ("expected_hash", "found_hash") if row[key]]
    return ", ".join([f"{row['split']} document {row['number']:,} is {row['reason']}", *place, *name, *hashes])
