"""A message of a chat as a turn: its text, its reasoning, its calls of tools, and whether it is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.meanings import (
    CALLS,
    DEFINITIONS,
    REASONING,
    WEIGHTS,
    first_key,
    is_plain,
    not_honoured,
    reasoning_of,
    says_something,
    weight_of,
)
from everytoken.corpus.rendering.turns import ROLES, Role, Turn, json_of, objects_of, role_of, string_of, type_found

_OPENAI_ROLES: dict[str, Role] = {
    **{role: role for role in ROLES},
    "developer": "system",  # the newer name of it
    "function": "tool",  # the older name of it
}


def messages_in(record: Mapping[str, Any], field: str) -> list[Turn]:
    """Return the turns of a field that is a list of messages."""
    return [turn_of_message(message, where) for where, message in objects_of(record, field)]


def turn_of_message(message: Mapping[str, Any], where: str) -> Turn:
    r"""Return the turn of a message as OpenAI's API has it.

    A content is a string or a list of parts. Texts are joined with nothing between them. Parts of reasoning come before
    them, calls of tools after them, each call on a line of its own. Calls in ``tool_calls`` or ``function_call`` follow
    as canonical JSON, on a line of their own. Parts of other types (images, sounds) are refused.
    """
    role = role_of(message, "role", where, _OPENAI_ROLES)
    calls = [message[name] for name in CALLS if message.get(name)]
    if not calls and isinstance(message.get("content"), str):
        return turn_with_keys(message, role, message["content"], where)
    said = _Said([], [], [])
    if not (calls and message.get("content") in (None, "", [])):
        said = _said(message, where)
    if (calls or said.calls) and role != "assistant":
        raise BadRow("cannot_render", f"{where} calls a tool, and its role is {role}, expected assistant")
    text = "".join(said.texts)
    lines = [*said.calls, *(json_of(call, f"the call of a tool in {where}") for call in calls)]
    content = "\n".join([text, *lines] if text or not lines else lines)
    return turn_with_keys(message, role, content, where, "".join(said.reasoning))


def turn_with_keys(
    message: Mapping[str, Any], role: Role, content: str, where: str, reasoning_in_parts: str = ""
) -> Turn:
    """Return a turn with what the further keys of its message say: weights, reasoning, definitions of tools.

    Raises:
        BadRow: ``chat_not_honoured``: a role has what only another may have.
    """
    if is_plain(message) and not reasoning_in_parts:
        return Turn(role, content)
    weight, reasoning, tools = weight_of(message, where), reasoning_of(message, where), definitions_of(message, where)
    if reasoning_in_parts and reasoning not in ("", reasoning_in_parts):
        raise not_honoured(first_key(message, REASONING), where, "differs from the reasoning among its parts")
    reasoning = reasoning or reasoning_in_parts
    if reasoning and role != "assistant":
        raise not_honoured(first_key(message, REASONING), where, f"is of role {role}, expected assistant")
    if tools and role != "system":
        raise not_honoured(first_key(message, DEFINITIONS), where, f"is of role {role}, expected system")
    if weight and role != "assistant":
        name = first_key(message, WEIGHTS)
        raise not_honoured(name, where, f"trains role {role}, and only the assistant is trained")
    return Turn(role, content, reasoning, tools, weight is not False)


def definitions_of(keys: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the definitions of tools of a record or a system turn, each as canonical JSON.

    They are a list of objects, or such a list as text.

    Raises:
        BadRow: they are something else.
    """
    given = [name for name in DEFINITIONS if says_something(keys.get(name))]
    if not given:
        return ()
    name, value = given[0], keys[given[0]]
    if len(given) > 1:
        raise not_honoured(name, where, f"is given with {given[1]!r}: expected one list of tools")
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_distinct)
        except (ValueError, RecursionError):
            raise not_honoured(name, where, "is no JSON with distinct keys, expected a list of objects") from None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise not_honoured(name, where, f"is {type_found(value)}, expected a list of objects")
    return tuple(json_of(tool, f"{name!r} of {where}") for tool in value)


_IN_ORDER = "Put them in this order in the file: reasoning, text, calls of tools"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


class _Said(NamedTuple):
    texts: list[str]
    reasoning: list[str]
    calls: list[str]


def _said(message: Mapping[str, Any], where: str) -> _Said:
    content = message.get("content")
    if not isinstance(content, list):
        return _Said([string_of(message, "content", where)], [], [])
    said = _Said([], [], [])
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type_found(part)
        place = f"part {number} of {where}"
        if kind == "text":
            said.texts.append(_text_of(part, "text", place))
            if said.calls:
                raise not_honoured("text", place, "follows a call of a tool", _IN_ORDER)
        elif kind in ("reasoning", "thinking"):
            said.reasoning.append(_text_of(part, kind, place))
            if said.texts or said.calls:
                raise not_honoured(kind, place, "follows what is said", _IN_ORDER)
        elif kind == "tool_call":
            said.calls.append(_text_of(part, kind, place))
        else:
            raise BadRow("cannot_render", f"{place} is {kind!r}, expected text: others are not read")
    return said


def _text_of(part: Mapping[str, Any], kind: str, where: str) -> str:
    """Return the text of a part: under its type, or under ``value`` as LLaMA-Factory has it, or under ``text``."""
    names = [name for name in dict.fromkeys((kind, "value", "text")) if part.get(name) is not None]
    if len(names) > 1:
        raise not_honoured(names[1], where, f"is given with {names[0]!r}", "Keep one text of each part in the file")
    return string_of(part, names[0] if names else "text", where)
