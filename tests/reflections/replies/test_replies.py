"""Replies: those of the reference run, where we differ on purpose our own results, and no error but a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.reflections import GENERATION_RUNS, BlankReply, RefusedReply
from everytoken.reflections.replies import cited_sections, extract_json, parse_raw, parse_reply, without_surrogates

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/replies.json").read_text())


def outcome(parse: Callable[..., Any], *given: Any) -> dict[str, Any]:
    try:
        return {"ok": parse(*given)}
    except RefusedReply as error:
        return {"error": "no JSON object" if "no JSON object" in str(error) else "refused"}


def wanted(case: dict[str, Any]) -> dict[str, Any]:
    return case.get("ours") or {name: case[name] for name in ("ok", "error") if name in case}


@pytest.mark.parametrize("case", VECTORS["extract_json"], ids=lambda case: case["reply"][:30])
def test_the_object_of_a_reply_is_that_of_the_reference_run(case: dict[str, Any]) -> None:
    assert outcome(extract_json, case["reply"]) == wanted(case)


@pytest.mark.parametrize("case", VECTORS["parse_reply"], ids=lambda case: case["reply"][:50])
def test_the_fields_of_a_reply_are_those_of_the_reference_run(case: dict[str, Any]) -> None:
    assert outcome(parse_reply, case["reply"], case["required"]) == wanted(case)


@pytest.mark.parametrize("case", VECTORS["parse_raw"], ids=lambda case: case["reply"][:30])
def test_the_text_of_a_reply_is_that_of_the_reference_run(case: dict[str, Any]) -> None:
    expected = wanted(case)
    assert outcome(parse_raw, case["reply"]) == ({"ok": {"text": expected["ok"]}} if "ok" in expected else expected)


@pytest.mark.parametrize("case", VECTORS["citations"]["cases"], ids=lambda case: case["text"])
def test_citations_are_those_of_the_reference_run(case: dict[str, Any]) -> None:
    assert cited_sections(case["text"], VECTORS["citations"]["sections"]) == case["ids"]


_RUN = ("analysis", "reflection_1p", "reflection_3p")


@pytest.mark.parametrize("value", ["null", '""', '" \\n"', "[]", "5", "{}", '[" "]'])
def test_a_stored_field_without_text_is_told_apart_from_other_refusals(value: str) -> None:
    with pytest.raises(BlankReply, match="reflection_1p"):
        parse_reply(f'{{"analysis": "", "reflection_1p": {value}, "reflection_3p": "It."}}', _RUN)
    with pytest.raises(BlankReply):
        parse_raw("<think>x</think> ")
    for reply in ("prose", '{"analysis": "a"}', '{"analysis": "", "reflection_1p": "see reflection_3p"}'):
        with pytest.raises(RefusedReply) as error:
            parse_reply(reply, ("analysis", "reflection_1p"))
        assert not isinstance(error.value, BlankReply)


def test_backslashes_that_json_knows_stay_where_others_are_doubled() -> None:
    reply = r'{"a": "\\frac and \alpha, \"quoted\" / \u00e9 \/"}'
    assert extract_json(reply) == {"a": r'\frac and \alpha, "quoted" / é /'}


@pytest.mark.parametrize("reply", ['{"a":' * 100_000, "{" * 100_000, '{"' * 50_000, "```\n{" * 20_000, "[" * 100_000])
def test_a_reply_of_nothing_but_openings_is_refused_soon(reply: str) -> None:
    with pytest.raises(RefusedReply):
        extract_json(reply)


def test_halves_of_surrogate_pairs_are_replaced_and_counted() -> None:
    found = extract_json(r'{"a": "x \ud800 y \udfff\ud83d\ude42"}')
    assert without_surrogates(found["a"]) == ("x \ufffd y \ufffd🙂", 2)
    assert without_surrogates("🙂 plain") == ("🙂 plain", 0)


_FIELDS = [run.required for run in GENERATION_RUNS.values() if run.required]
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_SNIPPETS = st.sampled_from(
    ['{"', '": "', '"}', "{", "}", "[", "]", "```json\n", "```", "<think>", "</think>", "\\", "\\ud800", "\n", '"', ":"]
)
_REPLIES = st.one_of(
    st.text(),
    st.lists(_SNIPPETS | st.sampled_from([name for names in _FIELDS for name in names]) | st.text(max_size=3)).map(
        "".join
    ),
    _JSON.map(json.dumps),
    st.tuples(st.sampled_from(_FIELDS), st.lists(_JSON, min_size=5, max_size=5)).map(
        lambda drawn: json.dumps(dict(zip(*drawn, strict=False)))
    ),
)


@given(_REPLIES, st.sampled_from(_FIELDS))
def test_any_reply_has_its_fields_or_is_refused(reply: str, required: tuple[str, ...]) -> None:
    try:
        found = parse_reply(reply, required)
    except RefusedReply:
        return
    assert set(required) <= set(found)
    assert all(found[name].strip() for name in required if name != "analysis")


@given(_REPLIES)
def test_any_reply_has_text_or_is_refused(reply: str) -> None:
    try:
        found = parse_raw(reply)["text"]
    except RefusedReply:
        return
    assert found and found == found.strip() and "<think>" not in found and found in reply


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20)),
    st.sampled_from(["{}", "Here: {} done", "```json\n{}\n```"]),
)
def test_an_object_is_found_whatever_is_around_it(value: dict[str, str], around: str) -> None:
    said = json.dumps(value)
    if "<think>" not in said and "</think>" not in said and "```" not in said:
        assert extract_json(around.replace("{}", said)) == value
