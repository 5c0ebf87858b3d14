"""Trees of messages as OpenAssistant has them: gathered from each form of a record, and their paths.

A record is a tree (``{message_tree_id, prompt: root}``), a root itself (``{message_id, text, replies}``), or the flat
messages of one tree (``{messages: [{message_id, parent_id}]}``). `gather_tree` makes the first form of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.turns import objects_of, string_of, type_found


def gather_tree(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record as ``{message_tree_id, prompt}``, with the other fields of its own level.

    Raises:
        BadRow: a flat message names a parent that is not there, an id comes twice, or there is not one root.
    """
    if "prompt" not in record and "replies" in record and "text" in record:
        return {"message_tree_id": record.get("message_tree_id", record.get("message_id")), "prompt": record}
    if "prompt" not in record and isinstance(record.get("messages"), list):
        root = _gathered(record)
        rest = {name: value for name, value in record.items() if name != "messages"}
        name = root.get("message_tree_id", root.get("message_id"))
        return {"message_tree_id": name, **rest, "prompt": root}
    return record


def best_path(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages of the best path from the root to a leaf.

    Rank 0 is the best; replies without a rank come after those with one, in the order of the file.
    """
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
    """Cut a tree into its paths: rows of ``messages`` without their replies, with the other fields of the tree.

    Raises:
        BadRow: the record is no tree of messages.
    """
    if not isinstance(record, Mapping):
        raise BadRow("cannot_render", f"the tree is {type_found(record)}, expected an object with 'prompt'")
    tree = gather_tree(record)
    rest = {name: value for name, value in tree.items() if name != "prompt"}
    for path in all_paths(tree):
        messages = [{name: value for name, value in message.items() if name != "replies"} for message in path]
        yield {"message_tree_id": None, **rest, "messages": messages}


def _gathered(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root of flat messages, each with its replies in the order of the file."""
    messages: dict[str, dict[str, Any]] = {}
    for place, message in objects_of(record, "messages"):
        name = string_of(message, "message_id", place)
        if name in messages:
            raise BadRow("cannot_render", f"'message_id' of {place} is {name[:40]!r}, as of a message before it")
        messages[name] = {**message, "replies": []}
    roots = []
    for message in messages.values():
        parent = message.get("parent_id")
        if parent is None:
            roots.append(message)
        elif not isinstance(parent, str) or parent not in messages:
            raise BadRow("cannot_render", f"'parent_id' is {str(parent)[:40]!r}, which is no message of the tree")
        else:
            messages[parent]["replies"].append(message)
    if len(roots) != 1:
        raise BadRow("cannot_render", f"{len(roots)} messages have no 'parent_id', expected one: the root")
    if len(messages) > sum(1 for _ in _below(roots[0])):
        raise BadRow("cannot_render", "some messages are their own ancestors, expected a tree")
    return roots[0]


def _below(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting = [root]
    while waiting:
        message = waiting.pop()
        yield message
        waiting += message["replies"]


def _root(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    root = tree.get("prompt")
    if not isinstance(root, Mapping):
        if "prompt" not in tree:
            raise BadRow("cannot_render", f"the record has no 'prompt'; its fields are {sorted(tree)[:20]}")
        raise BadRow("cannot_render", f"'prompt' is {type_found(root)}, expected the first message of a tree")
    if not _stands(root):
        raise BadRow("cannot_render", "the first message of the tree is deleted, or its review rejected it")
    return root


def _replies(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [reply for _, reply in objects_of(message, "replies", "a message") if _stands(reply)]


def _stands(message: Mapping[str, Any]) -> bool:
    for name in ("deleted", "review_result"):
        if not isinstance(message.get(name), bool | None):
            found = type_found(message[name])
            raise BadRow("cannot_render", f"{name!r} of a message is {found}, expected true or false")
    return not message.get("deleted") and message.get("review_result") is not False


def _rank(message: Mapping[str, Any]) -> tuple[bool, float]:
    rank = message.get("rank")
    if rank is None:
        return True, 0
    if isinstance(rank, bool) or not isinstance(rank, int | float) or rank != rank:
        raise BadRow("cannot_render", f"'rank' of a message is {type_found(rank)}, expected a number")
    return False, rank
