"""Distributions of classes: over rows, over each id once a part, over each id once; and who is near a threshold.

The last two are easily confused, and differ where an id comes in several parts: the published table of a corpus has
each id once, while its parts were scored and counted by themselves.

A row is scored (the first of its id in its part), has the score of that row by its id, or is without a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from everytoken.corpus.documents import CLASS_NAMES, N_CLASSES
from everytoken.corpus.scoring.classifications import IdScores
from everytoken.corpus.statistics import ScoreCounts, add_statistics

ALL_SOURCES = "all sources"


class RowsScored(TypedDict):
    """What became of rows: ``rows_in`` is the sum of the other three."""

    rows_in: int
    rows_scored: int
    rows_scored_by_id: int
    rows_without_score: int


def class_name(number: int) -> str:
    """Return a class with its name.

    >>> class_name(3)
    '3_moderate'
    """
    return f"{number}_{CLASS_NAMES[number]}"


def row_counts(scored: Mapping[str, ScoreCounts], without_score: int) -> RowsScored:
    """Return how many rows came in, were scored, have a score by their id, and have none.

    Args:
        scored: ``by_source`` of the statistics of all scored parts.
    """
    rows = sum(sum(counts["rows_by_class"].values()) for counts in scored.values())
    once = sum(sum(counts["distinct_by_class"].values()) for counts in scored.values())
    return RowsScored(
        rows_in=rows,
        rows_scored=once,
        rows_scored_by_id=rows - once - without_score,
        rows_without_score=without_score,
    )


def score_table(
    scored: Mapping[str, ScoreCounts], classified: Mapping[str, IdScores], threshold: int | None, without_score: int = 0
) -> list[dict[str, object]]:
    """Return a flat table, an entry a source and class, and the classes over all sources.

    ``rows``; of these ``once_a_part`` (scored), ``scored_by_id`` and ``without_score`` (which count as class 0);
    ``once``, the ids over all parts; the shares of ``once_a_part`` and ``once`` among the classes of the source, and
    their difference; and for every eps the rows within eps of another class and of the other side of the threshold.
    Of class 0 of one of several sources, ``scored_by_id`` and ``without_score`` are None where any row is without.

    Args:
        classified: ``by_source`` of the statistics of the classifications.
        threshold: lowest class that is annotated; None where documents are not scored.
    """
    sources = {source: (scored[source], classified[source]) for source in sorted(scored)}
    total = (
        add_statistics(scored.values()),
        add_statistics(classified.values()),
    )
    others = len(sources) > 1
    return [
        entry
        for source, (counts, of_ids) in [*sources.items(), (ALL_SOURCES, total)]
        for entry in _classes(
            source, counts, of_ids, threshold, None if without_score and source in sources and others else without_score
        )
        if counts
    ]


def _classes(
    source: str, counts: ScoreCounts, of_ids: IdScores, threshold: int | None, without_score: int | None
) -> Sequence[dict[str, object]]:
    a_part, once = counts["distinct_by_class"], of_ids["unique_by_class"]
    entries = []
    for k in map(str, range(N_CLASSES)):
        shares = [of[k] / sum(of.values()) if sum(of.values()) else 0.0 for of in (a_part, once)]
        without = without_score if k == "0" else 0
        entry = {
            "source": source,
            "class": int(k),
            "class_name": class_name(int(k)),
            "rows": counts["rows_by_class"][k],
            "once_a_part": a_part[k],
            "scored_by_id": None if without is None else counts["rows_by_class"][k] - a_part[k] - without,
            "without_score": without,
            "once": once[k],
            "share_once_a_part": shares[0],
            "share_once": shares[1],
            "difference": shares[1] - shares[0],
        }
        for eps, near in sorted(of_ids["near"].items(), key=lambda item: float(item[0])):
            entry[f"within_{eps}_of_another_class"] = near["of_class"][k]
            if threshold:  # every document is at or above class 0
                entry[f"within_{eps}_of_threshold_{threshold}"] = near[f"of_threshold_{threshold}"][k]
        entries.append(entry)
    return entries
