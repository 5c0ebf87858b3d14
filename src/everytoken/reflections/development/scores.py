"""The reply of a judge: four whole scores for each voice, their mean, and whether the texts are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from everytoken.reflections.errors import RefusedReply
from everytoken.reflections.parameters import DevelopmentParameters
from everytoken.reflections.replies import extract_json

DIMENSIONS = ("relevance", "specificity", "charter_grounding", "voice_tone")
LOWEST, HIGHEST = 1, 5


@dataclass(frozen=True)
class Judgement:
    """What a judge says of the texts of one item.

    Attributes:
        scores: by voice, in the order of `DIMENSIONS`.
        reasoning: by voice.
    """

    scores: Mapping[str, tuple[int, ...]]
    reasoning: Mapping[str, str]

    @property
    def all_scores(self) -> tuple[int, ...]:
        """Those of all voices."""
        return tuple(score for scores in self.scores.values() for score in scores)

    @property
    def aggregate(self) -> Fraction:
        """The mean of all scores of all voices, exactly."""
        return mean_score(self.all_scores)

    def of_dimension(self, name: str) -> list[int]:
        """Return the scores of a dimension, of all voices."""
        return [scores[DIMENSIONS.index(name)] for scores in self.scores.values()]

    def is_accepted(self, given: DevelopmentParameters) -> bool:
        """Return whether no score is at most ``floor``, and the mean is at least ``bound``."""
        return min(self.all_scores) > given.floor and self.aggregate >= Fraction(given.bound)


def mean_score(scores: Sequence[int]) -> Fraction:
    """Return the mean of at least one score."""
    return Fraction(sum(scores), len(scores))


def parse_judgement(reply: str, voices: Sequence[str]) -> Judgement:
    """Return the scores in a reply: a JSON object with ``scores`` and ``reasoning`` for each voice.

    Raises:
        RefusedReply: there is no object, a voice or a dimension is missing or unknown, or a score is no whole number
            from 1 to 5.
    """
    found = extract_json(reply)
    if len(found) == 1 and not set(found) & set(voices) and isinstance(inner := next(iter(found.values())), dict):
        found = inner
    if set(found) != set(voices):
        raise RefusedReply(f"the judge scores {', '.join(found) or 'nothing'}, expected {', '.join(voices)}")
    scores = {voice: _scores(found[voice], voice) for voice in voices}
    return Judgement(scores, {voice: str(found[voice].get("reasoning", "")) for voice in voices})


def _scores(said: Any, voice: str) -> tuple[int, ...]:
    scores = said.get("scores") if isinstance(said, dict) else None
    if not isinstance(scores, dict) or set(scores) != set(DIMENSIONS):
        raise RefusedReply(f"the scores of {voice} are not of {', '.join(DIMENSIONS)}")
    for name in DIMENSIONS:
        score = scores[name]
        if type(score) is not int or not LOWEST <= score <= HIGHEST:
            raise RefusedReply(f"{name} of {voice} is {score!r}, expected a whole number from {LOWEST} to {HIGHEST}")
    return tuple(scores[name] for name in DIMENSIONS)
