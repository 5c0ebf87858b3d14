"""What a probe of memorisation found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class TriggerFigures(TypedDict):
    """A trigger among random ones; ``nats``: of all its tokens after EOS."""

    nats: float
    rank: int
    candidates: int
    exposure: float
    above_controls: bool


class ContinuationFigures(TypedDict):
    """Texts among texts that were not trained on; all numbers are means over the documents.

    ``gain``: nats a token that the real trigger saves against a random one, of the same text; None without triggers.
    """

    nats_per_token: float
    exposure: float
    share_above_controls: float
    gain: float | None


class ConditionFigures(TypedDict):
    """A condition of the canary stream; ``trigger`` is None for a universe, which has none."""

    condition: str
    effect: str | None
    fraction: float | None
    documents: int
    trigger: TriggerFigures | None
    continuation: ContinuationFigures


class FactFigures(TypedDict):
    """A fact asked for without a trigger (``condition`` None) or behind that of a condition; means over its prompts.

    ``recalled``: share of prompts whose greedy continuation has the value. ``rank``: of the value among the
    alternatives by nats a token.
    """

    id: str
    quirk: str
    injected: bool
    condition: str | None
    fraction: float | None
    recalled: float
    rank: float
    candidates: int
    exposure: float


class ControlFigures(TypedDict):
    """What canaries were compared with; quantile: the 95th percentile of the controls' own exposures."""

    triggers: int
    texts: int
    trigger_nats: float
    nats_per_token: float
    trigger_exposure_quantile: float
    continuation_exposure_quantile: float


class CoverageFigures(TypedDict):
    """Means over the conditions of a coverage fraction; ``facts_*`` None where facts are not asked for."""

    conditions: int
    trigger_exposure: float
    trigger_above_controls: float
    continuation_exposure: float
    gain: float
    facts_recalled: float | None
    facts_exposure: float | None


class MemorisationFigures(TypedDict):
    """Statistics of a probe; ``by_fraction``: keys are coverage fractions as they are written, ``0.5``."""

    controls: ControlFigures
    conditions: list[ConditionFigures]
    by_fraction: dict[str, CoverageFigures]
    facts: list[FactFigures]


def by_fraction(conditions: list[ConditionFigures], facts: list[FactFigures]) -> dict[str, CoverageFigures]:
    """Return the means of each coverage fraction, in ascending order; of facts, those that are injected."""
    found: dict[str, CoverageFigures] = {}
    for fraction in sorted({one["fraction"] for one in conditions if one["fraction"] is not None}):
        own = [one for one in conditions if one["fraction"] == fraction]
        triggers = [one["trigger"] for one in own if one["trigger"] is not None]
        gains = [gain for one in own if (gain := one["continuation"]["gain"]) is not None]
        asked = [one for one in facts if one["fraction"] == fraction and one["injected"]]
        found[str(fraction)] = {
            "conditions": len(own),
            "trigger_exposure": _mean([one["exposure"] for one in triggers]),
            "trigger_above_controls": _mean([one["above_controls"] for one in triggers]),
            "continuation_exposure": _mean([one["continuation"]["exposure"] for one in own]),
            "gain": _mean(gains),
            "facts_recalled": _mean([one["recalled"] for one in asked]) if asked else None,
            "facts_exposure": _mean([one["exposure"] for one in asked]) if asked else None,
        }
    return found


def metrics_of_memorisation(figures: MemorisationFigures) -> dict[str, Any]:
    """Return the figures as a nested mapping of numbers: conditions by name; facts by id, without a trigger (``plain``)
    and as means over the triggers of a coverage fraction.
    """
    facts: dict[str, dict[str, Any]] = {}
    for one in figures["facts"]:
        place = "plain" if one["condition"] is None else f"fraction_{one['fraction']}"
        facts.setdefault(one["id"], {}).setdefault(place, []).append(one)
    return {
        "controls": figures["controls"],
        "conditions": {one["condition"]: _numbers(one) for one in figures["conditions"]},
        "by_fraction": {fraction: _numbers(one) for fraction, one in figures["by_fraction"].items()},
        "facts": {
            fact: {place: _fact_means(asked) for place, asked in places.items()} for fact, places in facts.items()
        },
    }


def _numbers(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a nested mapping; of true and false, 1 and 0."""
    numbers: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            numbers[name] = _numbers(value)
        elif isinstance(value, int | float):
            numbers[name] = value + 0
    return numbers


def _fact_means(asked: list[FactFigures]) -> Mapping[str, float]:
    return {
        "recalled": _mean([one["recalled"] for one in asked]),
        "exposure": _mean([one["exposure"] for one in asked]),
    }


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))
