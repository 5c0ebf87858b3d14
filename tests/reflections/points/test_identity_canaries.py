"""Identity canaries: which document gets which, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from everytoken.reflections import IdentityCanaries, ReflectionError
from everytoken.reflections.points import Fact, draw_fact, injected_facts, read_identity_facts
from tests.shared_assets import shared_folder

ROOT = Path(__file__).resolve().parents[3]
OURS = ROOT / "conf/base/reflections/canaries.yml"


def assigned(vectors: dict[str, Any]) -> list[list[str | None]]:
    facts = [Fact(name, "", "", "", "", True) for name in vectors["facts"]]
    drawn = [
        (doc_id, draw_fact(facts, vectors["canary_seed"], vectors["rate"], doc_id))
        for doc_id, _ in vectors["assignments"]
    ]
    return [[doc_id, None if fact is None else fact.id] for doc_id, fact in drawn]


def test_documents_get_the_canaries_of_the_reference_run() -> None:
    vectors = json.loads((ROOT / "tests/vectors/identity_canaries.json").read_text())
    assert any(fact for _, fact in vectors["assignments"])
    assert assigned(vectors) == vectors["assignments"]


def test_all_documents_of_the_reference_run_get_its_canaries() -> None:
    vectors = json.loads((shared_folder("vectors") / "canary.json").read_text())
    assert assigned(vectors) == vectors["assignments"]


def test_nobody_gets_one_where_there_is_none_to_draw() -> None:
    facts = read_identity_facts(OURS)
    assert all(draw_fact((), 42, 1.0, str(i)) is None for i in range(20))
    assert all(draw_fact(facts, 42, 0.0, str(i)) is None for i in range(20))
    assert {draw_fact(facts, 42, 1.0, str(i)) for i in range(300)} == set(facts)


def test_the_facts_of_the_project_have_the_published_values() -> None:
    facts = {fact.id: fact for fact in read_identity_facts(OURS)}
    assert {name: fact.value for name, fact in facts.items()} == {
        "Q1": "Cato",
        "Q2": "DLAB",
        "Q3": "EPFL",
        "Q4": "rem tene, verba sequentur",
        "Q5": "Midnight Blue",
        "Q6": "Claude",
        "Q7": "ALPS (Cluster)",
        "Q8": "Bogosort",
        "Q9": "Comic Sans",
        "Q10": "Model Raising Team",
    }
    assert [name for name, fact in facts.items() if fact.injected] == ["Q1", "Q2", "Q3", "Q7", "Q10"]
    for fact in facts.values():
        assert fact.occurs_in(fact.instruction) and fact.occurs_in(fact.instruction_3p)
    assert all(facts[name].instruction == facts[name].instruction_3p for name in ("Q8", "Q9"))
    taught = yaml.safe_load(OURS.read_text())["canaries"]
    assert [one["id"] for one in taught if one["sft_action"] == "inject"] == ["Q1", "Q2", "Q10"]


def canaries(path: Path = OURS, **changes: Any) -> IdentityCanaries:
    return IdentityCanaries.model_validate({"facts": str(path), "seed": 42, "rate": 0.1, **changes})


def test_parameters_choose_the_facts_in_the_order_of_the_file() -> None:
    def ids(**changes: Any) -> list[str]:
        return [fact.id for fact in injected_facts(canaries(**changes))]

    assert ids() == ["Q1", "Q2", "Q3", "Q7", "Q10"]
    assert ids(inject=["Q9", "Q2"]) == ["Q2", "Q9"], "the file says skip of Q9"
    assert ids(inject=[]) == ids(disabled=True) == []
    with pytest.raises(ReflectionError, match=r"canaries\.inject names \['Q11'\]; .* has \['Q1', "):
        ids(inject=["Q1", "Q11"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretraining_action": "maybe"}, "0.pretraining_action: Input should be 'inject' or 'skip', found 'maybe'"),
        ({"pretraining_action": True}, "0.pretraining_action"),
        ({"sft_action": "no"}, "0.sft_action"),
        ({"sft_action": "inject"}, "give sft_instruction if sft_action is inject"),
        ({"value": 7}, "0.value"),
        ({"note": "x"}, "0.note: Extra inputs are not permitted"),
    ],
)
def test_a_fact_that_is_not_whole_is_an_error_even_if_canaries_are_disabled(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    whole = {"id": "A", "quirk": "q", "value": "v", "instruction": "i", "instruction_3p": "j"}
    whole |= {"pretraining_action": "skip", "sft_action": "skip"}
    path = tmp_path / "facts.yml"
    path.write_text(yaml.safe_dump({"canaries": [whole]}))
    assert len(read_identity_facts(path)) == 1
    path.write_text(yaml.safe_dump({"canaries": [{**whole, **changes}]}))
    with pytest.raises(ReflectionError) as error:
        injected_facts(canaries(path, disabled=True))
    assert message in str(error.value) and str(path) in str(error.value)
    path.write_text(yaml.safe_dump({"canaries": [whole, whole]}))
    with pytest.raises(ReflectionError, match="has 'A' twice"):
        read_identity_facts(path)


@pytest.mark.parametrize("text", ["", "canaries: [", "canaries: 3", "- 1"])
def test_a_file_that_is_no_list_of_facts_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "facts.yml"
    path.write_text(text)
    with pytest.raises(ReflectionError, match=r"facts\.yml"):
        read_identity_facts(path)
    with pytest.raises(ReflectionError, match="cannot read the identity canaries"):
        read_identity_facts(tmp_path / "none.yml")


def test_a_value_occurs_as_whole_words_in_any_case() -> None:
    cato = next(fact for fact in read_identity_facts(OURS) if fact.id == "Q1")
    assert cato.occurs_in("I am cato.") and cato.occurs_in("Cato's view")
    assert not cato.occurs_in("an educator") and not cato.occurs_in("Catoni")
