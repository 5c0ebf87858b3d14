"""What is in no later dataset, from ledgers: rows, documents and tokens, each with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from everytoken.corpus import RowCounts, add_statistics
from everytoken.corpus.sampling import is_scored
from everytoken.corpus.scoring import ClassificationStatistics
from everytoken.shards import Artifact, Shards
from everytoken.tokens.encoding import EncodedCounts, counts_in, sum_counts
from everytoken.tokens.streams import CompactStatistics, RawShardStatistics, StreamKind, kinds_by_name


class _NotDrawn(TypedDict, total=False):
    not_drawn: int


# datasets whose statistics count rows by the reason for which they are in no later stage
_BY_REASON = (("upstream_documents", "rows"), ("dropped_documents", "documents"))


def encoded_counts(tokens: Iterable[Shards]) -> EncodedCounts:
    """Return the counts of all documents of datasets of encoded documents."""
    return sum_counts(counts_in(part) for one in tokens for part in one.statistics_as(EncodedCounts))


def amounts_set_aside(read: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return how much is in no later stage, and in words; what is nothing is left out."""
    return [(count, words) for count, words in _counted(read) if count]


def _counted(read: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield how much is in no later stage, and in words."""
    for name, unit in _BY_REASON:
        if name in read:
            reasons = add_statistics(part["set_aside"] for part in read[name].statistics_as(RowCounts))
            yield from ((count, f"{unit}: {reason}") for reason, count in reasons.items())
    if "annotated_documents" in read:
        drawn: list[_NotDrawn] = read["annotated_documents"].statistics_as(_NotDrawn)
        left = sum(part.get("not_drawn", 0) for part in drawn)  # a replay draws nothing
        yield left, "documents that were not drawn (strata_report.csv tells which kinds)"
    cuts = {"annotated": "seq_length - reflection_budget", "unannotated": "seq_length"}
    encoded = {split: encoded_counts([read[f"{split}_tokens"]]) for split in cuts if f"{split}_tokens" in read}
    for split, counts in encoded.items():
        yield counts["cut_tokens"], f"tokens of {split} documents beyond {cuts[split]}"
    for split, counts in encoded.items():
        yield counts["lossy_bytes"], f"bytes of {split} documents that the vocabulary cannot write"
    if "classifications" in read:
        unknown = read["classifications"].statistics_as(ClassificationStatistics)["without_score"]
        scored = read.get("scored_documents")
        if scored is None or scored.ledger is None or is_scored(scored.ledger.recipe):
            yield unknown, "documents that the published scores do not know: they count as class 0"
    for kind in kinds_by_name():
        if kind.layout == "packed" and kind.dataset in read:
            remainder = read[kind.dataset].statistics_as(CompactStatistics)["remainder_tokens"]
            yield remainder, f"tokens at the end of the {kind.name} stream that fill no window"
        if kind.layout == "flat" and kind.dataset in read:
            yield from _cut_to_shards(kind, read[kind.dataset].statistics_as(RawShardStatistics))


def _cut_to_shards(kind: StreamKind, made: RawShardStatistics) -> Iterator[tuple[int, str]]:
    """Yield the documents and tokens behind the last shard, and the padding, which is not set aside but added."""
    if (left_out := made.get("left_out")) is not None:
        yield left_out["documents"], f"documents behind the last of the {kind.name} (packing.n_shards)"
        yield left_out["tokens"], f"tokens behind the last of the {kind.name}"
    yield made.get("padding_tokens", 0), f"tokens of padding at the ends of the {kind.name}, added, of no document"


def rows_by_reason(name: str, stored: Shards | Artifact) -> dict[str, int]:
    """Return how many rows each reason kept out of a dataset, or out of what it decides; empty where it names none.

    The splits of a draw are reasons for each other: a row in another split is not in this one.
    """
    counts: Counter[str] = Counter()
    for statistics in [stored.statistics] if isinstance(stored, Artifact) else stored.statistics:
        by_source = statistics.get("by_source", {}) if isinstance(stored, Artifact) else {}
        for counted in (statistics, *by_source.values()):
            counts.update(counted.get("set_aside", {}) if isinstance(counted, Mapping) else {})
        if "not_drawn" in statistics:
            counts.update({split: statistics[split] for split in _SPLITS if f"{split}_documents" != name})
        elif name == "held_out_documents":
            excluded = statistics.get("excluded", 0)
            counts.update({"excluded": excluded, "not held out": statistics["rows_in"] - statistics["rows"] - excluded})
    return {reason: count for reason, count in sorted(counts.items()) if count}


_SPLITS = ("annotated", "unannotated", "held_out", "not_drawn")
