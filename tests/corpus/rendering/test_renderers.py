from __future__ import annotations

import typing
from datetime import date
from typing import Any

import pytest

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.renderers import (
    RENDERERS,
    DocumentRenderer,
    Identifier,
    NamedRenderer,
    RenderedDocument,
    cut_worked_answers,
    render_champ,
    render_chat,
    render_document,
    render_flan_cot,
    render_wikipedia_lead,
)


def named(kind: str) -> NamedRenderer:
    return NamedRenderer.model_validate({"kind": kind})


def rows(**changes: Any) -> DocumentRenderer:
    ids = ["id", "blob_id", ["repo_name", "path"]]
    base = {"kind": "document", "text_column": "text", "id_columns": ids, "stratum_column": None}
    return DocumentRenderer.model_validate({**base, **changes})


def document_of(identifier: str, text: str, stratum: str) -> RenderedDocument:
    return RenderedDocument(Identifier(identifier, "string"), text, stratum)


def message(sender: str, text: str) -> dict[str, str]:
    return {"sender": sender, "text": text, "timestamp": "2018-05-02T19:38:15Z"}


def test_a_wikipedia_lead_is_title_blank_line_extract() -> None:
    record = {"title": "Ham", "extract": "Ham is pork.", "topic": "Food", "description": "not rendered"}
    assert render_wikipedia_lead("Ham", record, named("wikipedia_lead")) == document_of(
        "Ham", "Ham\n\nHam is pork.", "Food"
    )


def test_a_chat_keeps_every_message_and_names_speakers_as_they_come() -> None:
    turns = [[message("zz", "Hi"), message("zz", "")], [message("aa", "Hello\nyou ")], [message("zz", "Bye")]]
    document = render_chat("c1", {"messages": turns, "prompt": "Smell?", "ratings": {"witty": 1}}, named("chat"))
    assert document == document_of("c1", "A: Hi\nA: \nB: Hello\nyou \nA: Bye", "Smell?")
    assert render_chat("c2", {"messages": turns[:1]}, named("chat")).stratum == "no prompt"


def test_a_champ_problem_has_its_steps_and_its_answer() -> None:
    steps = [{"_text": "One.", "_raw_text": "@@One@@."}, {"_text": "Two."}]
    record = {"_text": "Why?", "solution": {"steps": steps}, "_answer": "7", "category": "Sequence"}
    assert render_champ("P_1", record, named("champ")).text == "Why?\n\nOne.\nTwo.\n\nAnswer: 7"


def test_a_prompt_is_cut_into_its_questions() -> None:
    prompt = "\nThe following are questions about x.\n\nQ: One\n\nstill one?\nA: Yes Q: no.\n\nQ: Two?\nA: No.\n\n"
    cut = list(cut_worked_answers("x", prompt))
    documents = [render_flan_cot("x", record, named("flan_cot")) for record in cut]
    assert documents == [
        document_of("x/0", "Q: One\n\nstill one?\nA: Yes Q: no.", "x"),
        document_of("x/1", "Q: Two?\nA: No.", "x"),
    ]


@pytest.mark.parametrize(("prompt", "reason"), [("no question", "no line"), ("\n\nQ: a", "no line"), (7, "int")])
def test_a_prompt_without_question_or_answer_is_an_error(prompt: Any, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        list(cut_worked_answers("x", prompt))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"id": "a", "blob_id": "b"}, ("a", "string")),
        ({"id": None, "blob_id": "b"}, ("b", "string")),
        ({"repo_name": "r", "path": "p/q.py"}, ("r/p/q.py", "joined")),
        ({"repo_name": "r", "path": None}, None),
        ({"id": "", "blob_id": "b"}, ("", "string")),
        ({"id": 7}, ("7", "integer")),
        ({"id": 1.5}, ("1.5", "number")),
        ({"id": False}, ("false", "boolean")),
        ({}, None),
    ],
)
def test_the_id_is_the_first_that_is_present_and_not_null(record: dict[str, Any], expected: Any) -> None:
    assert render_document(None, {"text": "t", **record}, rows()) == (expected, "t", "all", None)


def test_the_stratum_comes_from_a_column() -> None:
    by_topic = rows(stratum_column="topic")
    assert render_document(None, {"text": "t", "topic": "Arts"}, by_topic).stratum == "Arts"
    assert render_document(None, {"text": "t", "topic": None}, by_topic).stratum == "no topic"
    assert by_topic.columns == ["text", "id", "blob_id", "repo_name", "path", "topic"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"id": "a"}, r"no column 'text'; its columns are \['id'\]"),
        ({"text": None}, "text_null: 'text' is null"),
        ({"text": 7}, "text_not_string: 'text' is int, expected str"),
        ({"text": "t", "id": float("nan")}, "the id is nan, which is no JSON value"),
        ({"text": "t", "id": date(2026, 1, 1)}, "the id is date, expected a JSON value"),
    ],
)
def test_a_row_without_a_text_or_with_a_strange_id_is_an_error(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        render_document(None, record, rows())


@pytest.mark.parametrize("kind", typing.get_args(NamedRenderer.model_fields["kind"].annotation))
@pytest.mark.parametrize("record", [None, [], "text", {}, {"messages": [7]}, {"messages": [[7]]}, {"solution": []}])
def test_a_record_of_another_form_is_an_error_that_names_the_field(kind: str, record: Any) -> None:
    with pytest.raises(BadRow, match=r"'|expected"):
        RENDERERS[kind]("key", record, named(kind))
