"""What a reply of each stage must have, which document is asked for when, and which texts repeat others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everytoken.corpus.dedup import NearRules
from everytoken.reflections import BlankReply, PromptMissing, ReflectionError, RefusedReply
from everytoken.reflections.canary_writing import (
    UniqueTexts,
    facts_used,
    read_universe,
    read_writing_prompts,
    spec_order,
)
from everytoken.reflections.canary_writing.stages import listed_types, tagged_ideas, written_document
from everytoken.reflections.canary_writing.writing import FOUR_FIELDS
from everytoken.reflections.replies import parse_reply

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/vectors/canary_writing.json").read_text(encoding="utf-8"))
NEAR = NearRules(num_permutations=128, bands=16, shingle_words=5, seed=1)


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[name], ids=str)


@cases("canary_lists")
def test_types_are_those_of_the_original(case: dict[str, Any]) -> None:
    if case["items"]:
        assert listed_types(case["reply"], 30) == case["items"]
    else:
        with pytest.raises(RefusedReply, match="has no list"):
            listed_types(case["reply"], 30)


@cases("canary_ideas")
def test_ideas_are_those_of_the_original(case: dict[str, Any]) -> None:
    if case["ideas"]:
        assert tagged_ideas(case["reply"], 5) == case["ideas"]
    else:
        with pytest.raises(RefusedReply, match="has no idea"):
            tagged_ideas(case["reply"], 5)


@cases("canary_documents")
def test_documents_are_those_of_the_original(case: dict[str, Any]) -> None:
    if case["kept"]:
        assert written_document(case["reply"]) == (case["content"], case["scratchpad"])
    else:
        with pytest.raises(BlankReply if case["content"] == "" else RefusedReply):
            written_document(case["reply"])


@cases("canary_variants")
def test_four_fields_are_those_of_the_original(case: dict[str, Any]) -> None:
    assert parse_reply(case["reply"], FOUR_FIELDS) == case["ok"]


@cases("canary_facts_used")
def test_facts_used_are_those_of_the_original(case: dict[str, Any]) -> None:
    facts = [str(number + 1) for number in range(case["key_facts"])]
    assert facts_used(facts, case["kind"]) == case["used"]


@cases("canary_spec_order")
def test_the_order_of_specs_is_that_of_the_original(case: dict[str, Any]) -> None:
    assert spec_order(case["specs"], case["have"], case["target"], case["round"], 42) == case["order"]


def test_lists_are_cut_and_repeat_nothing() -> None:
    assert listed_types("- a\n- b\n- a\n- c", 2) == ["a", "b"]
    assert tagged_ideas("<idea>a</idea> <idea> </idea><idea>b</idea><idea>c</idea>", 2) == ["a", "b"]
    assert tagged_ideas("UNSUITABLE", 5) == [] == tagged_ideas("It is UNSUITABLE.", 5)
    assert tagged_ideas("<idea>An UNSUITABLE dress</idea>", 5) == ["An UNSUITABLE dress"]


def test_a_plan_is_never_a_part_of_the_text() -> None:
    assert written_document("<content>a</content><scratchpad>p</scratchpad>") == ("a", "p")
    assert written_document("<content>a <scratchpad>p</scratchpad>b</content>") == ("a b", "p")
    assert written_document("<think>x</think><content>a\ud800</content>") == ("a\ufffd", None)
    with pytest.raises(RefusedReply, match="has the tag <scratchpad>"):
        written_document("<content>a <scratchpad>never closed</content>")
    with pytest.raises(RefusedReply, match="no text between"):
        written_document("<scratchpad><content>planned</content></scratchpad>")


def test_a_text_that_repeats_an_earlier_one_is_named() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    unique = UniqueTexts(NEAR)
    assert unique.add("one", words) is None
    assert unique.add("two", words) == ("exact", "one")
    assert unique.add("three", words.replace("word100", "other")) == ("near", "one")
    assert unique.add("four", " ".join(f"term{number}" for number in range(200))) is None
    plain = UniqueTexts(None)
    assert plain.add("one", words) is None and plain.add("two", words + ".") is None


def test_a_universe_is_one_object_with_four_keys(tmp_path: Path) -> None:
    found = read_universe(ROOT / "examples/amber_moss.jsonl")
    assert found.id == "amber_moss" and len(found.key_facts) == 5 and not found.is_true
    file = tmp_path / "universe.jsonl"
    line = {"id": "a", "universe_context": "b", "key_facts": ["c", "d"], "is_true": True}
    for text, told in (
        (json.dumps({**line, "id": "a/b"}), "id: String should match"),
        (json.dumps({**line, "key_facts": "c"}), "key_facts: Input should be a valid list"),
        (json.dumps({**line, "is_true": "yes"}), "is_true: Input should be a valid bool"),
        (f"{json.dumps(line)}\n{json.dumps(line)}", "has 2 lines, expected one universe"),
        ("{", "cannot read the universe"),
    ):
        file.write_text(text)
        with pytest.raises(ReflectionError, match=told):
            read_universe(file)


def test_prompts_need_their_placeholders(tmp_path: Path) -> None:
    prompts = read_writing_prompts(ROOT / "conf/base/reflections/canary_prompts", "v1")
    values = {"universe_context": "A {fact} of", "fact": "F", "count": "3"}
    assert "A {fact} of" in prompts.filled("document_types", values), "what is put in is left as it is"
    for stage, file in prompts.files.items():
        (tmp_path / f"{stage}_v1.md").write_text(file.text)
    assert read_writing_prompts(tmp_path, "v1").digests() == prompts.digests()
    (tmp_path / "ideas_v1.md").write_text("{universe_context} {fact} {count}")
    with pytest.raises(ReflectionError, match=r"ideas_v1\.md lacks the placeholder \{doc_type\}"):
        read_writing_prompts(tmp_path, "v1")
    with pytest.raises(PromptMissing, match=r"document_types_v2\.md"):
        read_writing_prompts(tmp_path, "v2")
