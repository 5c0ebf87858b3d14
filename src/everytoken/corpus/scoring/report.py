"""Distributions of classes: over rows, over each id once a part, over each id once; and who is near a threshold.

The last two are easily confused, and differ where an id comes in several parts: the published table of a corpus has
each id once, while its parts were scored and counted by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everytoken.corpus.documents import N_CLASSES
from everytoken.corpus.scoring.classifications import IdScores
from everytoken.corpus.statistics import ScoreCounts, add_statistics

ALL_SOURCES = "all sources"


def score_table(
    scored: Mapping[str, ScoreCounts], classified: Mapping[str, IdScores], threshold: int
) -> list[dict[str, object]]:
    """Return a flat table, an entry a source and class, and the classes over all sources.

    ``rows``; ``once_a_part`` and ``once``, the ids; the shares of these two among the classes of the source, and their
    difference; and for every eps the rows within eps of another class and of the other side of the threshold.

    Args:
        scored: ``by_source`` of the statistics of all scored parts.
        classified: ``by_source`` of the statistics of the classifications.
    """
    sources = {source: (scored[source], classified[source]) for source in sorted(scored)}
    total = (
        add_statistics(scored.values()),
        add_statistics(classified.values()),
    )
    return [
        entry
        for source, (counts, of_ids) in [*sources.items(), (ALL_SOURCES, total)]
        for entry in _classes(source, counts, of_ids, threshold)
        if counts
    ]


def _classes(source: str, counts: ScoreCounts, of_ids: IdScores, threshold: int) -> Sequence[dict[str, object]]:
    a_part, once = counts["distinct_by_class"], of_ids["unique_by_class"]
    entries = []
    for k in map(str, range(N_CLASSES)):
        shares = [of[k] / sum(of.values()) if sum(of.values()) else 0.0 for of in (a_part, once)]
        entry = {
            "source": source,
            "class": int(k),
            "rows": counts["rows_by_class"][k],
            "once_a_part": a_part[k],
            "once": once[k],
            "share_once_a_part": shares[0],
            "share_once": shares[1],
            "difference": shares[1] - shares[0],
        }
        for eps, near in sorted(of_ids["near"].items(), key=lambda item: float(item[0])):
            entry[f"within_{eps}_of_another_class"] = near["of_class"][k]
            if threshold > 0:  # every document is at or above class 0
                entry[f"within_{eps}_of_threshold_{threshold}"] = near[f"of_threshold_{threshold}"][k]
        entries.append(entry)
    return entries
