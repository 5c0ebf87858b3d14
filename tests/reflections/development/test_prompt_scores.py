"""Scores of a judge: which replies are refused, their mean, and the decision."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everytoken.reflections import DevelopmentParameters, RefusedReply
from everytoken.reflections.development import DIMENSIONS, Judgement, parse_judgement
from tests.reflections.development.scripted_judge import development, judgement
from tests.shared_assets import shared_folder

VOICES = ("reflection_1p", "reflection_3p")
CASES: list[tuple[list[list[int]], float, int, float, bool]] = [
    ([[5, 5, 5, 5]], 4, 2, 5.0, True),
    ([[4, 4, 4, 4]], 4, 2, 4.0, True),
    ([[5, 5, 5, 2]], 4, 2, 4.25, False),
    ([[5, 5, 5, 3], [3, 4, 4, 4]], 4, 2, 4.125, True),
    ([[3, 4, 4, 4], [4, 4, 4, 4]], 4, 2, 3.875, False),
    ([[4, 4, 4, 4]], 4.5, 2, 4.0, False),
]


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_folder("vectors") / "reflections.json").read_bytes())[name]
    return found


def decided(scores: list[list[int]], bound: float, floor: int) -> tuple[float, bool]:
    found = Judgement({f"v{number}": tuple(one) for number, one in enumerate(scores)}, {})
    given = DevelopmentParameters.model_validate(development(bound=bound, floor=floor))
    return float(found.aggregate), found.is_accepted(given)


@pytest.mark.parametrize(("scores", "bound", "floor", "aggregate", "accepted"), CASES)
def test_a_low_score_or_a_low_mean_rejects(
    scores: list[list[int]], bound: float, floor: int, aggregate: float, accepted: bool
) -> None:
    assert decided(scores, bound, floor) == (aggregate, accepted)


def test_the_decisions_are_those_of_the_vectors() -> None:
    for case in vectors("judge_decision"):
        found = decided(case["scores"], case["accept_threshold"], case["floor_threshold"])
        assert found == (case["aggregate"], case["decision"] == "accept")


def test_the_replies_of_the_vectors_are_read_or_refused() -> None:
    for case in vectors("judge_reply"):
        wanted = case.get("ours", case)
        if "error" in wanted:
            with pytest.raises(RefusedReply):
                parse_judgement(case["reply"], VOICES)
            continue
        found = parse_judgement(case["reply"], VOICES)
        for voice, said in wanted["ok"].items():
            assert dict(zip(DIMENSIONS, found.scores[voice], strict=True)) == said["scores"]


@pytest.mark.parametrize("bad", [3.5, 4.0, "4", 0, 6, -1, True, None, [4]])
def test_a_score_is_a_whole_number_from_1_to_5(bad: Any) -> None:
    reply = json.loads(judgement(4, 4, 4, 4))
    reply["reflection_3p"]["scores"]["specificity"] = bad
    with pytest.raises(RefusedReply, match=r"specificity of reflection_3p is .*, expected a whole number from 1 to 5"):
        parse_judgement(json.dumps(reply), VOICES)


def test_other_dimensions_and_voices_are_refused() -> None:
    reply = json.loads(judgement(4, 4, 4, 4))
    reply["reflection_1p"]["scores"]["style"] = 5
    with pytest.raises(RefusedReply, match="the scores of reflection_1p are not of relevance"):
        parse_judgement(json.dumps(reply), VOICES)
    with pytest.raises(RefusedReply, match="the judge scores reflection_1p, reflection_3p, expected reflection_1p"):
        parse_judgement(judgement(4, 4, 4, 4), VOICES[:1])


def test_a_wrapper_of_one_key_is_taken_off_and_one_voice_is_no_wrapper() -> None:
    reply = json.loads(judgement(4, 3, 2, 5))
    assert parse_judgement(json.dumps({"result": reply}), VOICES).scores["reflection_1p"] == (4, 3, 2, 5)
    alone = {"reflection_1p": reply["reflection_1p"]}
    assert parse_judgement(f"```json\n{json.dumps(alone)}\n```", VOICES[:1]).aggregate == 3.5
