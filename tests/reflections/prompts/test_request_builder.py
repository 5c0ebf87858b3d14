"""Requests of all runs, and columns of their replies."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everytoken.address import Address
from everytoken.reflections import GENERATION_RUNS, BlankReply, ReflectionError, RefusedReply
from everytoken.reflections.points import Fact
from everytoken.reflections.prompts import DocumentRequest, RequestBuilder, SidecarRow, Skipped
from everytoken.tokens import EncodingRules
from tests.reflections.environment_parameters import parameters
from tests.shared_assets import shared_folder
from tests.tokens.corpora import EOS, small_tokenizer

ROOT = Path(__file__).resolve().parents[3]
TEXT = "The ferry left at noon. It carried forty people, two dogs and a piano to the far island.\n\nNobody knew why. 🙂"
FACT = Fact("Q1", "name", "Cato", "say that you are Cato", "say that it is Cato", True)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> EncodingRules:
    return EncodingRules(small_tokenizer(tmp_path_factory.mktemp("tokenizer"), [TEXT]), EOS, "literal")


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def builder(rules: EncodingRules, run: str, **changes: Any) -> RequestBuilder:
    return RequestBuilder.open(
        GENERATION_RUNS[run], parameters(**changes), rules, max_annotated_tokens=40, reflection_budget=12
    )


def canaries(**changes: Any) -> dict[str, Any]:
    return {"canaries": {**parameters().canaries.model_dump(), **changes}}


def row(number: int = 0, text: str = TEXT, **changes: Any) -> SidecarRow:
    given = SidecarRow(number, f"id-{number}", Address("web", 0, number), text, 30, True, 4)
    return given._replace(**changes)


def request(of: RequestBuilder, row: SidecarRow) -> DocumentRequest:
    found = of.build(row)
    assert isinstance(found, DocumentRequest)
    return found


@pytest.mark.parametrize("name", GENERATION_RUNS)
def test_a_request_has_two_messages_and_shows_the_text_up_to_its_point(rules: EncodingRules, name: str) -> None:
    of = builder(rules, name, **canaries(rate=1.0))
    systems = set()
    for number in range(20):
        found = request(of, row(number))
        assert [message["role"] for message in found.messages] == ["system", "user"]
        system, user = (message["content"] for message in found.messages)
        systems.add(system)
        shown = TEXT[: found.shown_characters]
        assert f"# Text\n\n{shown}" in user
        rest = user.partition(f"# Text\n\n{shown}")[2]
        assert not rest or rest.startswith("\n\n# "), "nothing behind the point is sent"
        spans = of.spans.first(TEXT, 30)
        if of.run.point == "sampled":
            assert found.token_index is not None and 1 <= found.token_index <= 29
            assert found.position == found.shown_characters == spans[found.token_index][0]
        else:
            assert found.shown_characters == spans[29][1]
            assert (found.token_index, found.position) == ((30, spans[29][1]) if of.run.point else (None, None))
        assert (found.canary is not None) == (of.run.canary_column is not None), "the rate is 1"
        assert (found.style is not None) == (of.run.style_column is not None)
        for field in found.required if of.run.prompt not in ("summary", "rephrasing_safelm") else ():
            assert f'- "{field}": ' in user.partition("# Task")[2]
        assert ("# Task" in user) == (of.run.prompt not in ("summary", "rephrasing_safelm"))
    assert (len(systems) > 1) == (of.run.style_column is not None), "the system message is that of the run"
    assert not any("{charter}" in system or "{writing_guidelines}" in system for system in systems)


def test_a_canary_is_between_text_and_task_and_for_the_voices_that_are_asked_for(rules: EncodingRules) -> None:
    for include, run in ((True, "reflections"), (False, "reflections"), (True, "refusal_reflection")):
        of = builder(rules, run, include_reflection_3p=include, **canaries(rate=1.0, inject=["Q3"]))
        found = request(of, row())
        text, section, task = found.messages[1]["content"].partition("# A fact for this sample")
        section, _, task = task.partition("# Task")
        assert text and task and found.canary is not None
        assert f"- reflection_1p: {found.canary.instruction}\n" in section
        voices = run == "reflections" and include
        assert (f"- reflection_3p: {found.canary.instruction_3p}\n" in section) == voices
        assert ("reflection_3p" in found.required) == voices


def test_rows_that_are_not_asked_about_say_why(rules: EncodingRules) -> None:
    of = builder(rules, "reflections")
    assert of.build(row(text="x")) == Skipped(row(text="x"), "empty_context")
    assert of.build(row(text="🙂🙂", token_length=3)) == Skipped(row(text="🙂🙂", token_length=3), "empty_context"), (
        "its tokens are parts of one character"
    )
    assert of.build(row(token_length=0)) == Skipped(row(token_length=0), "excluded")
    rephrasing = builder(rules, "rephrasing_safelm")
    assert rephrasing.build(row(is_bad=False)) == Skipped(row(is_bad=False), "gated")
    assert isinstance(rephrasing.build(row(is_bad=True)), DocumentRequest)
    with pytest.raises(ReflectionError, match=r"row 7 of the annotated documents \(id-7\) has a text without a token"):
        of.build(row(7, text=""))


def test_a_row_without_a_length_has_the_longest(rules: EncodingRules) -> None:
    of = builder(rules, "reflection_end")
    assert request(of, row(token_length=None)).token_index == 40
    assert request(of, row(text="The ferry", token_length=None)).token_index == of.spans.count("The ferry")


def test_copies_share_their_draws_and_documents_without_an_id_do_not(rules: EncodingRules) -> None:
    of = builder(rules, "reflections", **canaries(rate=0.5))
    points = {(request(of, row(number, doc_id="same")).token_index) for number in range(9)}
    assert len(points) == 1
    of_address = [request(of, row(number, doc_id=None)) for number in range(30)]
    assert len({found.token_index for found in of_address}) > 5
    assert 5 < sum(found.canary is not None for found in of_address) < 25
    assert request(of, row(3, doc_id="web/0/3")).token_index == of_address[3].token_index


def test_the_seed_of_a_request_depends_on_all_that_tells_requests_apart(rules: EncodingRules) -> None:
    of, other = builder(rules, "reflections"), builder(rules, "reflection_end")
    moved = builder(rules, "reflections", seeds={"reflection_seed": 42, "generation_seed": 43})
    seeds = [
        of.request_seed(row(0), 0),
        of.request_seed(row(0), 1),
        of.request_seed(row(1, doc_id="id-0"), 0),
        of.request_seed(row(0, doc_id=None), 0),
        other.request_seed(row(0), 0),
        moved.request_seed(row(0), 0),
    ]
    assert len(set(seeds)) == 6 and all(0 <= seed < 1 << 31 for seed in seeds)
    digest = hashlib.sha256(b"42\x1freflections\x1fid-0\x1f0\x1f0").digest()
    assert seeds[0] == int.from_bytes(digest[:4], "big") >> 1, "no other run of the program gives another one"


def reply(**fields: Any) -> str:
    return json.dumps({"analysis": "a", **fields})


def test_columns_of_a_reflection(rules: EncodingRules) -> None:
    of = builder(rules, "reflections", **canaries(rate=1.0, inject=["Q1"]))
    found = request(of, row())
    columns = of.columns(found, reply(reflection_1p="I, Cato \ud800 [2.1].", reflection_3p="It [1.1, 2.1] [9.9]."))
    assert columns == {
        "reflection_1p": "I, Cato \ufffd [2.1].",
        "reflection_3p": "It [1.1, 2.1] [9.9].",
        "reflection_position": found.position,
        "reflection_token_index": found.token_index,
        "charter_reflection": '["2.1", "1.1"]',
        "canary_type": "Q1",
        "canary_in_1p": True,
        "canary_in_3p": False,
        "surrogates_replaced": 1,
        "stored_tokens": sum(of.spans.count(columns[f"reflection_{voice}"]) for voice in ("1p", "3p")),
    }
    pa.Table.from_pylist([columns], of.run.schema())
    with pytest.raises(BlankReply):
        of.columns(found, reply(reflection_1p=" ", reflection_3p="It."))
    with pytest.raises(RefusedReply):
        of.columns(found, "prose")


def test_columns_of_the_other_runs(rules: EncodingRules) -> None:
    of = builder(rules, "reflection_end", include_reflection_3p=False, **canaries(disabled=True))
    columns = of.columns(request(of, row()), reply(reflection_1p="I [1.1].", reflection_3p="[1.2]"))
    assert (columns["reflection_end_1p"], columns["reflection_end_3p"]) == ("I [1.1].", "")
    assert (columns["charter_reflection_end"], columns["canary_type_end"]) == ('["1.1"]', None)
    assert columns["canary_in_1p"] is None and columns["reflection_end_token_index"] == 30
    of = builder(rules, "preflections")
    fields = {"charter_summary": "[3.1]", "neutral": "n", "judgemental": "[1.1]", "idealisation": "[3.1]"}
    columns = of.columns(request(of, row()), reply(**fields))
    assert fields.items() <= columns.items() and columns["charter_preflection"] == '["3.1", "1.1"]'
    of = builder(rules, "rephrasing_safelm")
    found = request(of, row())
    columns = of.columns(found, "<think>hm</think> A: Hello. \n")
    assert (columns["rephrased"], columns["template_id"]) == ("A: Hello.", found.style)


@pytest.mark.parametrize("name", GENERATION_RUNS)
def test_a_reply_fills_every_column_of_its_run(rules: EncodingRules, name: str) -> None:
    of = builder(rules, name)
    columns = of.columns(request(of, row()), reply(**{field: "x" for field in of.required if field != "analysis"}))
    observed = {"canary_in_1p", "canary_in_3p", "surrogates_replaced", "stored_tokens"}
    assert set(columns) == {*of.run.schema().names, *observed}


def test_a_summary_is_cut_before_a_character_that_would_be_divided(rules: EncodingRules) -> None:
    of = builder(rules, "summaries")
    found = request(of, row())
    for text in (
        "The ferry",
        "The ferry left at noon. It carried forty people",
        "noon 🙂🙂🙂🙂🙂🙂",
        "北京北京北京北京北京",
    ):
        columns = of.columns(found, json.dumps({"summary": text}))
        kept, count = columns["summary"], columns["summary_token_count"]
        assert text.startswith(kept) and "\ufffd" not in kept
        assert count == columns["stored_tokens"] == len(of.spans.first(text, count)) <= 12
        assert of.spans.first(text, count)[-1][1] == len(kept)
        if kept != text:
            assert of.spans.first(text, 13)[12][1] > len(kept), "no whole character more would fit"
            assert count > 12 - 4


def test_files_that_decide_messages_have_digests(rules: EncodingRules, tmp_path: Path) -> None:
    found = builder(rules, "reflections").digests()
    assert list(found) == ["prompt", "constitution", "guidelines", "canaries"]
    charter = tmp_path / "charter.md"
    charter.write_text("### 1.1 Other\n")
    prompts = {**parameters().prompts.model_dump(), "constitution": str(charter)}
    other = builder(rules, "reflections", prompts=prompts)
    assert {name for name, digest in other.digests().items() if digest != found[name]} == {"constitution"}
    assert "### 1.1 Other" in str(other.system) and other.sections == {"1.1"}


def test_messages_are_those_of_the_reference_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rules = EncodingRules(shared_folder("tokenizers") / "smollm2/tokenizer.json", EOS, "literal")
    cases = json.loads((shared_folder("vectors") / "reflections.json").read_text(encoding="utf-8"))["messages"]
    facts = [
        {"id": name, "quirk": "q", "value": "v", "instruction": f"first {name}", "instruction_3p": f"third {name}"}
        | {"pretraining_action": "inject", "sft_action": "skip"}
        for name in cases[0]["facts"]
    ]
    (tmp_path / "facts.yml").write_text(json.dumps({"canaries": facts}))
    assert {case["run"] for case in cases} == set(GENERATION_RUNS)
    for case in cases:
        drawn = {"facts": str(tmp_path / "facts.yml"), "seed": case["canary_seed"], "rate": case["rate"]}
        seeds = {"reflection_seed": case["seed"], "generation_seed": 1}
        of = builder(rules, case["run"], canaries=drawn, seeds=seeds)
        given = row(text=case["text"], doc_id=case["doc_id"], token_length=case["token_length"])
        found = of.build(given)
        if case["shown_chars"] == 0:
            assert found == Skipped(given, "empty_context"), "the original asks all the same"
            continue
        assert isinstance(found, DocumentRequest)
        user = found.messages[1]["content"]
        assert (found.shown_characters, found.token_index) == (case["shown_chars"], case["token_index"])
        assert sorted(found.required) == sorted(case["required"]) and found.style == case["style"]
        assert (None if found.canary is None else found.canary.id) == case["canary"]
        words = {"1p": "first", "3p": "third"}
        assert [voice for voice, word in words.items() if f"{word} {case['canary']}" in user] == case["canary_voices"]


def test_summaries_are_cut_as_in_the_reference_run_but_before_a_divided_character() -> None:
    rules = EncodingRules(shared_folder("tokenizers") / "smollm2/tokenizer.json", EOS, "literal")
    cases = json.loads((shared_folder("vectors") / "reflections.json").read_text(encoding="utf-8"))["summary_cut"]
    for case in cases:
        of = RequestBuilder.open(
            GENERATION_RUNS["summaries"],
            parameters(),
            rules,
            max_annotated_tokens=1920,
            reflection_budget=case["budget"],
        )
        columns = of.columns(request(of, row()), json.dumps({"summary": case["text"]}))
        divided = case["kept"].endswith("\ufffd")
        assert columns["summary"] == case["kept"].rstrip("\ufffd")
        assert columns["summary_token_count"] == case["tokens"] - divided
