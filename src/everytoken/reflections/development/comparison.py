"""Versions next to each other: figures of each, the best one, ties, and how often one beats another on a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from everytoken.reflections.development.candidates import Trial
from everytoken.reflections.development.scores import DIMENSIONS, mean_score
from everytoken.reflections.items import AskedItems


@dataclass(frozen=True)
class VersionFigures:
    """Figures of a version.

    Attributes:
        items: rows of the sample; ``judged`` of them have scores.
        mean_aggregate: of the judged rows; None without one.
        accept_rate: share of the judged rows.
        accept_by_safety_score: share of the judged rows with this score of the document.
        failure_rates: share of all attempts that failed, as ``generating.api``, ``generating.parse``, ``judging.api``
            and ``judging.parse``.
        parse_rates: share of the replies that came which were acceptable, generating and judging; None where none came.
    """

    name: str
    version: str
    items: int
    generated: int
    judged: int
    mean_aggregate: float | None
    accept_rate: float | None
    by_dimension: dict[str, float]
    accept_by_safety_score: dict[int, float]
    failure_rates: dict[str, float]
    parse_rates: dict[str, float | None]

    def metrics(self) -> dict[str, float]:
        """Return all numbers under one level of names."""
        found: dict[str, float] = {"items": self.items, "generated": self.generated, "judged": self.judged}
        for name in ("mean_aggregate", "accept_rate"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        found |= {f"mean.{name}": value for name, value in self.by_dimension.items()}
        found |= {f"accept_rate.safety_score_{key}": value for key, value in self.accept_by_safety_score.items()}
        found |= {f"failure_rate.{name}": value for name, value in self.failure_rates.items()}
        return found | {f"parse_rate.{name}": rate for name, rate in self.parse_rates.items() if rate is not None}


@dataclass(frozen=True)
class Ranking:
    """Versions by their mean aggregate on the rows that all of them have scores for.

    Attributes:
        order: name and mean of each version, the best first.
        best: names with the highest mean; more than one is a tie, none: no row has scores of all.
        against: of each other version: rows on which the first of ``best`` is better, equal and worse.
    """

    rows: int
    order: tuple[tuple[str, Fraction], ...]
    best: tuple[str, ...]
    against: dict[str, tuple[int, int, int]]


def figures_of(trial: Trial) -> VersionFigures:
    """Return the figures of a version."""
    given, judged = trial.candidate.development, trial.judged
    accepted = {number: one.is_accepted(given) for number, one in judged.items()}
    groups: dict[int, list[bool]] = defaultdict(list)
    for number, is_accepted in accepted.items():
        groups[trial.items[number].request.row.safety_score].append(is_accepted)
    values = list(judged.values())
    return VersionFigures(
        name=trial.candidate.name,
        version=trial.candidate.version,
        items=len(trial.items),
        generated=len(trial.generating.replies),
        judged=len(judged),
        mean_aggregate=_mean([one.aggregate for one in values]),
        accept_rate=_mean([Fraction(one) for one in accepted.values()]),
        by_dimension={
            name: float(mean_score([score for one in values for score in one.of_dimension(name)]))
            for name in DIMENSIONS
            if values
        },
        accept_by_safety_score={score: sum(groups[score]) / len(groups[score]) for score in sorted(groups)},
        failure_rates={**_rates("generating", trial.generating), **_rates("judging", trial.judging)},
        parse_rates={"generating": _parse_rate(trial.generating), "judging": _parse_rate(trial.judging)},
    )


def rank_versions(trials: Sequence[Trial]) -> Ranking:
    """Rank versions; means are compared exactly, so equal ones tie."""
    judged = {trial.candidate.name: trial.judged for trial in trials}
    rows = sorted(set.intersection(*(set(one) for one in judged.values()))) if judged else []
    if not rows:
        return Ranking(0, (), (), {})
    values = {name: [found[row].aggregate for row in rows] for name, found in judged.items()}
    means = {name: sum(of_rows, Fraction()) / len(rows) for name, of_rows in values.items()}
    order = tuple(sorted(means.items(), key=lambda one: -one[1]))
    best = tuple(name for name, mean in order if mean == order[0][1])
    against = {name: _compared(values[best[0]], of_rows) for name, of_rows in values.items() if name != best[0]}
    return Ranking(len(rows), order, best, against)


def _compared(first: Sequence[Fraction], second: Sequence[Fraction]) -> tuple[int, int, int]:
    pairs = list(zip(first, second, strict=True))
    return sum(a > b for a, b in pairs), sum(a == b for a, b in pairs), sum(a < b for a, b in pairs)


def _mean(values: Sequence[Fraction]) -> float | None:
    return float(sum(values, Fraction()) / len(values)) if values else None


def _rates(stage: str, asked: AskedItems) -> dict[str, float]:
    return {f"{stage}.{fault}": count / max(1, asked.attempts) for fault, count in asked.failures.items()}


def _parse_rate(asked: AskedItems) -> float | None:
    came = len(asked.replies) + asked.failures["parse"]
    return len(asked.replies) / came if came else None
