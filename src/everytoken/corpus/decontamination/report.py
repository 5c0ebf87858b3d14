"""What decontamination found, in one report: by evaluation file, by source, and the documents with most of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everytoken.corpus.decontamination.contamination import JudgedDocuments, JudgedStatistics, NgramStatistics, worst_of
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import Artifact, Shards


def contamination_report(contamination: Shards, counts: Artifact) -> dict[str, Any]:
    """Return the report, or {} where nothing was looked for.

    ``ngrams``: distinct ones ``found`` in the corpus, and ``ignored`` of these. ``by_evaluation``: of each file the
    counts of `everytoken.corpus.decontamination.contamination.count_documents`, and the documents whose first match is
    of it. ``by_source``: documents that match, and those contaminated. ``worst``: the documents with most matching
    n-grams.

    Args:
        contamination: stored parts of `everytoken.corpus.decontamination.contamination.judge_part`.
        counts: that they were made with.
    """
    counted = counts.statistics_as(NgramStatistics)
    files = counted["files"]
    if not files:
        return {}
    statistics = contamination.statistics_as(JudgedStatistics)
    none = JudgedDocuments(matching=0, contaminated=0)
    first = add_statistics(part["by_evaluation"] for part in statistics)
    return {
        "ngrams": {"found": counted["found"], "ignored": counted["ignored"]},
        "by_evaluation": {name: {**found, "documents": first.get(name, none)} for name, found in files.items()},
        "by_source": add_statistics(part["by_source"] for part in statistics),
        "worst": worst_of([row for part in statistics for row in part["worst"]]),
    }


def contamination_metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a report for the metrics of a run; {} of an empty one."""
    return {key: report[key] for key in ("ngrams", "by_evaluation", "by_source")} if report else {}
