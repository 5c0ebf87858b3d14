"""What decontamination found, in one report: by evaluation file, by source, and the documents with most of it."""

from __future__ import annotations

from typing import TypedDict

from everytoken.corpus.decontamination.contamination import (
    FileFound,
    JudgedDocuments,
    JudgedStatistics,
    NgramStatistics,
    WorstDocument,
    worst_of,
)
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import Artifact, Shards


class FoundOfFile(FileFound):
    """Counts of an evaluation file, and the documents whose first match is of it."""

    documents: JudgedDocuments


class ContaminationMetrics(TypedDict, total=False):
    """Numbers of a report; nothing where nothing was looked for.

    ``ngrams``: distinct ones ``found`` in the corpus, and ``ignored`` of these.
    """

    ngrams: dict[str, int]
    by_evaluation: dict[str, FoundOfFile]
    by_source: dict[str, JudgedDocuments]


class ContaminationReport(ContaminationMetrics, total=False):
    """Those, and the documents with most matching n-grams."""

    worst: list[WorstDocument]


def contamination_report(contamination: Shards, counts: Artifact) -> ContaminationReport:
    """Return the report, or {} where nothing was looked for."""
    counted = counts.statistics_as(NgramStatistics)
    files = counted["files"]
    if not files:
        return {}
    statistics = contamination.statistics_as(JudgedStatistics)
    none = JudgedDocuments(matching=0, contaminated=0)
    first = add_statistics(part["by_evaluation"] for part in statistics)
    return {
        "ngrams": {"found": counted["found"], "ignored": counted["ignored"]},
        "by_evaluation": {name: FoundOfFile(**found, documents=first.get(name, none)) for name, found in files.items()},
        "by_source": add_statistics(part["by_source"] for part in statistics),
        "worst": worst_of([row for part in statistics for row in part["worst"]]),
    }


def contamination_metrics(report: ContaminationReport) -> ContaminationMetrics:
    """Return the numbers of a report for the metrics of a run; {} of an empty one."""
    if not report:
        return {}
    return {
        "ngrams": report["ngrams"],
        "by_evaluation": report["by_evaluation"],
        "by_source": report["by_source"],
    }
