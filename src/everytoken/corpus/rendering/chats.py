"""Chats of every public shape as one: a list of turns, each a role and what it says.

The shapes are functions from a record to turns (`SHAPES`), with the record's fields under the names that the shape's
authors gave them. Whatever does not fit is a `BadRow` that says where in the record; what a turn says is never
changed: not stripped, not normalised, not cut. Two things are joined, as the functions say: an instruction with its
input, and what an assistant says with the calls of tools that it makes.

A message's null counts as absent: parquet has one for every key that only other rows have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from everytoken.corpus.errors import BadRow
from everytoken.shards import canonical_json

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)


class Turn(NamedTuple):
    """What one role says at a time."""

    role: Role
    content: str


_OPENAI_ROLES: dict[str, Role] = {
    **{role: role for role in ROLES},
    "developer": "system",  # the newer name of it
    "function": "tool",  # the older name of it
}
_SHAREGPT_ROLES: dict[str, Role] = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bard", "bing", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
}
_OASST_ROLES: dict[str, Role] = {"prompter": "user", "assistant": "assistant"}


def turns_of_messages(record: Mapping[str, Any]) -> list[Turn]:
    r"""Read ``messages: [{role, content}]`` as OpenAI's API has them.

    A content is a string or a list of ``{type: text, text}``, whose texts are joined with nothing between them; parts
    of other types (images, sounds) are refused, because what is said about them makes no sense without them. An
    assistant's ``tool_calls`` or ``function_call`` are kept as canonical JSON, on a line of its own after the content
    when there is one (arguments that are objects in parquet have a null for every key that another row's have: such
    files are better when they hold arguments as text, as the API does). A tool's ``name`` and ``tool_call_id`` are not
    kept: a turn has no place for them.
    """
    return _messages(record, "messages")


def turns_of_sharegpt(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``conversations: [{from, value}]`` as ShareGPT and LLaMA-Factory have them.

    ``function_call`` is the assistant's turn, ``observation`` the tool's; what the value holds is text already.
    """
    return [
        Turn(_role(turn, "from", where, _SHAREGPT_ROLES), _string(turn, "value", where))
        for where, turn in _list(record, "conversations")
    ]


def turns_of_alpaca(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``instruction, input, output``: the user says the instruction and, after a blank line, any input."""
    return [Turn("user", _with_context(record, "instruction", "input")), Turn("assistant", _string(record, "output"))]


def turns_of_dolly(record: Mapping[str, Any]) -> list[Turn]:
    """Read ``instruction, context, response``: as `turns_of_alpaca`, the context in the place of the input."""
    user = _with_context(record, "instruction", "context")
    return [Turn("user", user), Turn("assistant", _string(record, "response"))]


def turns_of_chosen(record: Mapping[str, Any]) -> list[Turn]:
    """Read the preferred answer of a pair: ``chosen`` is the whole chat as messages, or the answer to ``prompt``.

    What was rejected is not read. A chat written into one string, as in hh-rlhf, is not cut apart: what its speakers
    say may hold the marks of speakers.
    """
    if isinstance(record.get("chosen"), str):
        return [Turn("user", _string(record, "prompt")), Turn("assistant", _string(record, "chosen"))]
    return _messages(record, "chosen")


def turns_of_tree(record: Mapping[str, Any]) -> list[Turn]:
    """Read the best path of a tree of messages: at every message the reply that people ranked best.

    Rank 0 is the best; replies without a rank come after those with one, in the order of the file (prompters' messages
    have no ranks). Deleted messages and those that the review rejected (``review_result`` false) are left out with all
    that hangs on them.
    """
    return turns_of_path(best_path(record))


def turns_of_path(path: list[Mapping[str, Any]]) -> list[Turn]:
    """Return the turns of messages of a tree that follow each other; see `turns_of_tree`."""
    return [
        Turn(_role(message, "role", f"message {depth}", _OASST_ROLES), _string(message, "text", f"message {depth}"))
        for depth, message in enumerate(path)
    ]


def _pair(question: str, answer: str) -> Callable[[Mapping[str, Any]], list[Turn]]:
    def turns_of_pair(record: Mapping[str, Any]) -> list[Turn]:
        return [Turn("user", _string(record, question)), Turn("assistant", _string(record, answer))]

    turns_of_pair.__doc__ = f"Read ``{question}, {answer}``; reasoning in the answer stays as it is, to its last sign."
    return turns_of_pair


Shape = Literal[
    "messages",
    "sharegpt",
    "alpaca",
    "dolly",
    "prompt_response",
    "query_response",
    "question_answer",
    "chosen",
    "oasst_tree",
]


class ShapeOf(NamedTuple):
    """How a shape is read: its fields (all that its function looks at), and the function."""

    fields: tuple[str, ...]
    turns: Callable[[Mapping[str, Any]], list[Turn]]


SHAPES: dict[Shape, ShapeOf] = {
    "messages": ShapeOf(("messages",), turns_of_messages),
    "sharegpt": ShapeOf(("conversations",), turns_of_sharegpt),
    "alpaca": ShapeOf(("instruction", "input", "output"), turns_of_alpaca),
    "dolly": ShapeOf(("instruction", "context", "response"), turns_of_dolly),
    "prompt_response": ShapeOf(("prompt", "response"), _pair("prompt", "response")),
    "query_response": ShapeOf(("query", "response"), _pair("query", "response")),
    "question_answer": ShapeOf(("question", "answer"), _pair("question", "answer")),
    "chosen": ShapeOf(("prompt", "chosen"), turns_of_chosen),
    "oasst_tree": ShapeOf(("message_tree_id", "prompt"), turns_of_tree),
}


def best_path(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages of the best path from the root to a leaf; see `turns_of_tree`."""
    path = [_root(tree)]
    while replies := _replies(path[-1]):
        path.append(min(replies, key=_rank))  # the first of equals
    return path


def all_paths(tree: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield every path from the root to a leaf, depth first, replies in the order of the file."""
    waiting = [[_root(tree)]]
    while waiting:
        path = waiting.pop()
        replies = _replies(path[-1])
        if not replies:
            yield path
        waiting += [[*path, reply] for reply in reversed(replies)]


def cut_tree(key: str | None, record: Any) -> Iterator[dict[str, Any]]:
    """Cut a tree into its paths: rows ``{message_tree_id, messages}``, messages without their replies.

    Raises:
        BadRow: the record is no tree of messages.
    """
    if not isinstance(record, Mapping):
        raise BadRow("cannot_render", f"the tree is {_name(record)}, expected an object with 'prompt'")
    for path in all_paths(record):
        messages = [{name: value for name, value in message.items() if name != "replies"} for message in path]
        yield {"message_tree_id": record.get("message_tree_id"), "messages": messages}


def _root(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    root = tree.get("prompt")
    if not isinstance(root, Mapping):
        raise BadRow("cannot_render", f"'prompt' is {_name(root)}, expected the first message of a tree")
    if not _stands(root):
        raise BadRow("cannot_render", "the first message of the tree is deleted, or its review rejected it")
    return root


def _replies(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [reply for _, reply in _list(message, "replies", "a message") if _stands(reply)]


def _stands(message: Mapping[str, Any]) -> bool:
    for name in ("deleted", "review_result"):
        if not isinstance(message.get(name), bool | None):
            raise BadRow("cannot_render", f"{name!r} of a message is {_name(message[name])}, expected true or false")
    return not message.get("deleted") and message.get("review_result") is not False


def _rank(message: Mapping[str, Any]) -> tuple[bool, float]:
    rank = message.get("rank")
    if rank is None:
        return True, 0
    if isinstance(rank, bool) or not isinstance(rank, int | float) or rank != rank:
        raise BadRow("cannot_render", f"'rank' of a message is {_name(rank)}, expected a number")
    return False, rank


def _messages(record: Mapping[str, Any], field: str) -> list[Turn]:
    turns = []
    for where, message in _list(record, field):
        role = _role(message, "role", where, _OPENAI_ROLES)
        calls = [message[name] for name in ("tool_calls", "function_call") if message.get(name)]
        if calls and role != "assistant":
            raise BadRow("cannot_render", f"{where} calls a tool, and its role is {role}, expected assistant")
        content = [] if calls and message.get("content") in (None, "", []) else [_content(message, where)]
        turns.append(Turn(role, "\n".join([*content, *(_as_json(call, where) for call in calls)])))
    return turns


def _content(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return _string(message, "content", where)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else _name(part)
        if kind != "text":
            raise BadRow("cannot_render", f"part {number} of {where} is {kind!r}, expected text: others are not read")
        texts.append(_string(part, "text", f"part {number} of {where}"))
    return "".join(texts)


def _as_json(value: Any, where: str) -> str:
    try:
        return canonical_json(value)
    except (TypeError, ValueError):  # parquet has dates, bytes and NaN
        raise BadRow("cannot_render", f"the call of a tool in {where} is no JSON value") from None


def _with_context(record: Mapping[str, Any], instruction: str, context: str) -> str:
    asked = _string(record, instruction)
    return f"{asked}\n\n{_string(record, context)}" if record.get(context) not in (None, "") else asked


def _role(turn: Mapping[str, Any], name: str, where: str, known: Mapping[str, Role]) -> Role:
    said = _string(turn, name, where)
    if said not in known:
        shown = json.dumps(said[:40])
        raise BadRow("cannot_render", f"{name!r} of {where} is {shown}, expected one of {', '.join(sorted(known))}")
    return known[said]


def _list(record: Mapping[str, Any], name: str, of: str = "the record") -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of a list with where they stand."""
    if name not in record:
        raise BadRow("cannot_render", f"{of} has no {name!r}; its fields are {sorted(record)[:20]}")
    value = record[name]
    if not isinstance(value, list):
        raise BadRow("cannot_render", f"{name!r} of {of} is {_name(value)}, expected a list")
    for number, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise BadRow("cannot_render", f"{name}[{number}] is {_name(item)}, expected an object")
    return [(f"{name}[{number}]", item) for number, item in enumerate(value)]


def _string(record: Mapping[str, Any], name: str, of: str = "the record") -> str:
    value = record.get(name)
    if not isinstance(value, str):
        if name not in record:
            raise BadRow("cannot_render", f"{of} has no {name!r}; its fields are {sorted(record)[:20]}")
        raise BadRow("cannot_render", f"{name!r} of {of} is {_name(value)}, expected a string")
    return value


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
