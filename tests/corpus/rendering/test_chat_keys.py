"""Every key that carries meaning, in every shape and on every level, is honoured, counted, or sets its row aside."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.meanings import HARMLESS_KEYS, MEANINGFUL_KEYS, Shape, carriers_of_record
from everytoken.corpus.rendering.renderers import RenderedDocument, render_conversation, unread_of
from everytoken.corpus.rendering.templates import ConversationRenderer

MARKS = {role: {"prefix": f"<{role}>", "suffix": "</>"} for role in ("system", "user", "assistant", "tool")}
RENDERS = {
    **MARKS,
    "after_turn": "\n",
    "reserved": [],
    "reasoning": {"prefix": "(", "suffix": ")"},
    "tools": {"prefix": "[", "suffix": "]"},
}
RULES = {"empty": "keep", "neighbours": "keep", "opening": "any", "unanswered": "keep"}
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}

BASE: dict[Shape, dict[str, Any]] = {
    "messages": {"messages": [USER, ANSWER]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    "alpaca": {"instruction": "Hi", "input": "", "output": "Hello"},
    "dolly": {"instruction": "Hi", "context": "", "response": "Hello"},
    "prompt_response": {"prompt": "Hi", "response": "Hello"},
    "query_response": {"query": "Hi", "response": "Hello"},
    "question_answer": {"question": "Hi", "answer": "Hello"},
    "prompt_completion": {"prompt": [USER], "completion": [ANSWER]},
    "chosen": {"prompt": [USER], "chosen": [ANSWER]},
    "transcript": {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello"},
    "strings": {"data": ["Hi", "Hello"]},
    "oasst_tree": {
        "message_tree_id": "t",
        "prompt": {
            "message_id": "a",
            "role": "prompter",
            "text": "Hi",
            "replies": [{"message_id": "b", "role": "assistant", "text": "Hello", "replies": []}],
        },
    },
}
SAID = "<user>Hi</>\n<assistant>Hello</>\n"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
VALUES: dict[str, Any] = {
    **dict.fromkeys(("weight", "loss_weight", "loss_scale"), 0),
    **dict.fromkeys(("train", "training", "loss", "label", "kto_tag"), False),
    "loss_mask": [0],
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Why?"),
    "tools": [TOOL],
    "functions": [TOOL],
    "tool_calls": [TOOL],
    "function_call": {"name": "f"},
    "history": [["Earlier", "Before"]],
    "system": "Be brief.",
    **dict.fromkeys(("chosen", "rejected"), ANSWER),
    "tool_call_id": "c1",
}
KEYS = sorted({*MEANINGFUL_KEYS, *HARMLESS_KEYS, "of_nobody", *VALUES})


def renderer(shape: str, **changes: Any) -> ConversationRenderer:
    base = {"kind": "conversation", "shape": shape, "rules": RULES, "template": RENDERS}
    return ConversationRenderer.model_validate(base | changes)


def rendered(record: dict[str, Any], one: ConversationRenderer) -> tuple[RenderedDocument, Counter[tuple[str, str]]]:
    return render_conversation(None, record, one), Counter(unread_of(record, (), one))


def messages_of(record: Any, shape: Shape) -> list[dict[str, Any]]:
    """Return copies of what may hold a key below the record: question and answer."""
    if shape == "oasst_tree":
        return [record["prompt"], record["prompt"]["replies"][0]]
    lists = [value for value in record.values() if isinstance(value, list)]
    return [message for value in lists for message in value if isinstance(message, dict)]


def with_key(shape: Shape, level: str, key: str, value: Any, replace: bool = False) -> dict[str, Any] | None:
    """Return a copy of the shape's record with a key more, or None where the level is not there or has the key."""
    record = copied(BASE[shape])
    places = [record] if level == "record" else messages_of(record, shape)[-1:] if level == "answer" else None
    if places is None:
        messages = messages_of(record, shape)
        if not messages or "content" not in messages[-1]:
            return None
        messages[-1]["content"] = places = [{"type": "text", "text": "Hello"}]
    if not places or (key in places[-1] and not replace):
        return None
    places[-1][key] = value
    return record


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("level", ["record", "answer", "part"])
@pytest.mark.parametrize("shape", get_args(Shape))
def test_no_key_is_dropped_without_a_count(shape: Shape, level: str) -> None:
    plain, _ = rendered(BASE[shape], renderer(shape))
    assert plain.text == SAID
    fed = 0
    for key in KEYS:
        record = with_key(shape, level, key, VALUES.get(key, "x"))
        if record is None:
            continue
        fed += 1
        try:
            document, unread = rendered(record, renderer(shape))
        except BadRow as error:
            assert error.reason in ("chat_not_honoured", "chat_not_wanted", "cannot_render"), key
            assert key in error.detail, f"{error.detail} does not name {key}"
            continue
        counted = [name for _, name in unread if name.split(".")[-1] == key]
        changed = (document.text, document.assistant_spans) != (plain.text, plain.assistant_spans)
        assert changed or counted, f"{key} in {level} of {shape} left no trace"
        assert not (changed and counted), f"{key} in {level} of {shape} is honoured and counted as unread"
    assert fed > 50 or level != "record"


STRANGE = ([[1]], {"a": [None]}, 7, float("nan"), b"x", True, "[{", [{"role": []}], [{"type": {}}], "")
"""Values of every type, also those that parquet has and JSON has not."""


@pytest.mark.parametrize("level", ["record", "answer", "part"])
@pytest.mark.parametrize("shape", get_args(Shape))
def test_no_value_stops_the_run(shape: Shape, level: str) -> None:
    names = {"type", "role", "from", "content", "value", "replies", "parent_id", "message_id", "rank", "deleted"}
    for key in sorted(MEANINGFUL_KEYS | names | BASE[shape].keys()):
        for value in STRANGE:
            record = with_key(shape, level, key, value, replace=True)
            for one in (renderer(shape), renderer(shape, ignore=["weight", "images"])):
                try:
                    if record is not None:
                        rendered(record, one)
                except BadRow as error:
                    assert error.detail


@pytest.mark.parametrize("level", ["record", "answer", "part"])
@pytest.mark.parametrize("shape", get_args(Shape))
def test_an_ignored_key_is_counted_and_nothing_else_changes(shape: Shape, level: str) -> None:
    for key in sorted(MEANINGFUL_KEYS - {*BASE[shape], "chosen"}):
        record = with_key(shape, level, key, VALUES.get(key, "x"))
        if record is not None:
            document, unread = rendered(record, renderer(shape, ignore=[key]))
            assert document.text == SAID, key
            assert document.assistant_spans == rendered(BASE[shape], renderer(shape))[0].assistant_spans
            name = {"record": key, "answer": f"message.{key}", "part": f"part.{key}"}[level]
            assert unread["ignored", name] == 1, f"{key}: {unread}"


def test_a_null_says_nothing_and_an_empty_value_only_counts() -> None:
    record = {**BASE["messages"], "images": None, "tools": [], "videos": [], "note": None, "label": None}
    document, unread = rendered(record, renderer("messages"))
    assert document.text == SAID
    assert unread == {("passed_over", "videos"): 1}


def test_reasoning_and_tools_that_a_rule_leaves_out_are_counted() -> None:
    record = {
        "messages": [USER, {**ANSWER, "thinking": "Why?", "content": [{"type": "text", "text": "Hello"}]}],
        "tools": [TOOL],
    }
    leave_out = {**RENDERS, "reasoning": "leave_out", "tools": "leave_out"}
    document, unread = rendered(record, renderer("messages", template=leave_out))
    assert document.text == SAID
    assert unread == {("ignored", "message.thinking"): 1, ("ignored", "tools"): 1}
    parts = [{"type": "reasoning", "value": "Why?"}, {"type": "text", "value": "Hello"}]
    typed = {"messages": [USER, {"role": "assistant", "content": parts}]}
    document, unread = rendered(typed, renderer("messages", template=leave_out))
    assert (document.text, unread) == (SAID, {("ignored", "part.reasoning"): 1})


@pytest.mark.parametrize("key", ["reasoning", "tools"])
def test_reasoning_and_tools_without_a_rule_set_the_row_aside(key: str) -> None:
    record = {"messages": [USER, {**ANSWER, "reasoning": "Why?"}]} if key == "reasoning" else None
    no_rule = renderer("messages", template={**RENDERS, key: None})
    with pytest.raises(BadRow, match=f"chat_not_honoured.*Set template.{key} to its marks, or to leave_out"):
        render_conversation(None, record or {**BASE["messages"], "tools": [TOOL]}, no_rule)


def test_columns_of_id_and_stratum_are_read_and_carry_no_meaning() -> None:
    record = {**BASE["messages"], "label": "joy", "hash": "h"}
    one = renderer("messages", id_columns=["hash"], stratum_column="label")
    document, unread = rendered(record, one)
    assert (document.stratum, document.text, unread) == ("joy", SAID, {})


def test_a_column_that_another_one_replaces_is_counted() -> None:
    record = {"problem": "Hi", "prompt": "Hello", "response": "of another model"}
    names = {"prompt": "problem", "response": "prompt"}
    document, unread = rendered(record, renderer("prompt_response", column_names=names))
    assert (document.text, unread) == (SAID, {("ignored", "response"): 1})


def test_columns_of_a_table_that_are_not_read_count_by_name() -> None:
    one = renderer("messages", ignore=["images"])
    unread = list(unread_of(BASE["messages"], ("images", "id", "note"), one))
    assert unread == [("ignored", "images"), ("passed_over", "id"), ("unknown", "note")]
    assert "images" not in one.carriers and {"videos", "tools", "label"} <= set(one.carriers)
    assert set(one.carriers) | {"images", "messages"} == set(carriers_of_record("messages"))


def test_what_a_chat_cannot_do_without_is_not_ignored() -> None:
    for key in ("messages", "content"):
        with pytest.raises(ValueError, match=f"ignore has '{key}', without which there is no chat"):
            renderer("messages", ignore=[key])
