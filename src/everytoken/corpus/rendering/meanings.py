"""What the keys of a chat's record mean: which are read, which may be passed over, and which carry meaning.

A key *carries meaning* when the text or what of it is trained would be another without it: weights, reasoning, tools,
pictures. A shape reads some of them. Where it does not, a record with such a key is set aside as ``chat_not_honoured``
unless the renderer's ``ignore`` names the key. Every key that is not read is counted by `unread_keys`. A null says
nothing: parquet has one for every key that only other rows have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.turns import type_found

Shape = Literal[
    "messages",
    "sharegpt",
    "alpaca",
    "dolly",
    "prompt_response",
    "query_response",
    "question_answer",
    "prompt_completion",
    "chosen",
    "transcript",
    "strings",
    "oasst_tree",
]
KeyLevel = Literal["record", "message", "part"]
Unread = Literal["passed_over", "ignored", "unknown"]

WEIGHTS = ("weight", "train", "training", "loss", "loss_weight", "loss_mask", "loss_scale")
REASONING = ("reasoning_content", "reasoning", "thinking")
DEFINITIONS = ("tools", "functions")
CALLS = ("tool_calls", "function_call")
_LABELS = ("label", "kto_tag")
_MEDIA = ("images", "image", "image_url", "videos", "video", "video_url", "audios", "audio", "audio_url", "input_audio")

MEANINGFUL_KEYS = frozenset(
    (*WEIGHTS, *REASONING, *DEFINITIONS, *CALLS, *_LABELS, *_MEDIA, "function_calls", "history", "system", "chosen")
)
"""Keys that carry meaning on any level; a shape reads them, or a record with them is not what it says."""

HARMLESS_KEYS = frozenset(
    (
        *("id", "_id", "ids", "uuid", "idx", "index", "hash", "key", "message_id", "parent_id", "message_tree_id"),
        *("prompt_id", "conversation_id", "conversation_hash", "session_id", "thread_id", "turn_id", "user_id"),
        *("tool_call_id", "call_id", "name", "names", "user", "username", "author", "sender", "model", "model_name"),
        *("source", "origin", "dataset", "split", "url", "license", "lang", "language", "category", "version"),
        *("created", "created_at", "created_date", "updated_at", "date", "time", "timestamp", "tree_state"),
        *("metadata", "meta", "review_count", "labels", "emojis", "detoxify", "synthetic"),
        *("parallel_tool_calls", "tool_choice"),  # settings of the request
        *("rejected", "rejected_response"),  # what is not learned
    )
)
"""Keys that say where a chat comes from, and not what is said in it."""


MESSAGE_COLUMNS = (*("message_id", "message_tree_id", "parent_id", "role", "text", "rank", "deleted", "review_result"),)
"""Columns of a table whose rows are the messages of trees."""


class _Keys(NamedTuple):
    """What a shape reads: its fields, further keys of a record, keys of a message, and fields that hold messages."""

    fields: tuple[str, ...]
    further: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


_ANY_RECORD = (*WEIGHTS, *_LABELS, *DEFINITIONS, "system")
_OF_A_PAIR = (*REASONING, "history")
_OF_A_MESSAGE = frozenset((*WEIGHTS, *REASONING, *DEFINITIONS))
_OPENAI = ("role", "content", *CALLS)
_PART = frozenset(("type", "text", "value"))

_KEYS: dict[Shape, _Keys] = {
    "messages": _Keys(("messages",), ("chosen",), _OPENAI, ("messages", "chosen")),
    "sharegpt": _Keys(("conversations",), ("chosen",), ("from", "value"), ("conversations", "chosen")),
    "alpaca": _Keys(("instruction", "input", "output"), (*_OF_A_PAIR, "chosen")),
    "dolly": _Keys(("instruction", "context", "response"), _OF_A_PAIR),
    "prompt_response": _Keys(("prompt", "response"), _OF_A_PAIR),
    "query_response": _Keys(("query", "response"), _OF_A_PAIR),
    "question_answer": _Keys(("question", "answer"), _OF_A_PAIR),
    "prompt_completion": _Keys(("prompt", "completion"), (), _OPENAI, ("prompt", "completion")),
    "chosen": _Keys(("prompt", "chosen"), (), _OPENAI, ("prompt", "chosen")),
    "transcript": _Keys(("chosen",)),
    "strings": _Keys(("data",)),
    "oasst_tree": _Keys(
        ("message_tree_id", "prompt"),
        ("messages",),
        ("message_id", "role", "text", "replies", "rank", "deleted", "review_result"),
        ("messages",),
    ),
}


def fields_of_shape(shape: Shape) -> tuple[str, ...]:
    """Return the names of the fields of a shape."""
    return _KEYS[shape].fields


@cache
def read_keys(shape: Shape, level: KeyLevel) -> frozenset[str]:
    """Return the keys of a level that a shape reads."""
    keys = _KEYS[shape]
    if level == "record":
        return frozenset((*keys.fields, *keys.further, *_ANY_RECORD))
    if not keys.holders:
        return frozenset()
    return frozenset((*keys.message, *_OF_A_MESSAGE)) if level == "message" else _PART


@cache
def _refused_keys(shape: Shape, level: KeyLevel) -> frozenset[str]:
    return MEANINGFUL_KEYS - HARMLESS_KEYS - read_keys(shape, level)


def carriers_of_record(shape: Shape) -> list[str]:
    """Return the keys of a record that carry meaning, read or not, sorted: no reader may hide them."""
    return sorted(MEANINGFUL_KEYS | read_keys(shape, "record"))


def says_something(value: Any) -> bool:
    """Return whether a value is more than null, an empty text, list or object; 0 and false say something."""
    return value is not None and not (isinstance(value, str | list | Mapping) and not value)


def without_keys(record: Mapping[str, Any], shape: Shape, names: Iterable[str]) -> Mapping[str, Any]:
    """Return a record without these keys on any level, and without parts of these types.

    What is below a call or a definition of a tool stays.
    """
    gone = frozenset(names)
    if not gone:
        return record
    holders = _KEYS[shape].holders

    def cut(value: Any, below: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            kept = {key: one for key, one in value.items() if key not in gone}
            return {key: cut(one, ()) if key in below else one for key, one in kept.items()}
        if not isinstance(value, list):
            return value
        return [cut(one, below) for one in value if not (isinstance(one, Mapping) and _own_key("part", one) & gone)]

    kept = {key: value for key, value in record.items() if key not in gone}
    return {key: cut(value, ("content",)) if key in holders else value for key, value in kept.items()}


def require_honoured(record: Mapping[str, Any], shape: Shape) -> None:
    """Check that a shape reads every key that carries meaning, and that the record is labelled as wanted.

    Raises:
        BadRow: ``chat_not_honoured``; or ``chat_not_wanted``, when a label says that the answer is bad.
    """
    for name in _LABELS:
        label = record.get(name)
        if label is False:
            raise BadRow("chat_not_wanted", f"{name!r} of the record is false: its answer is a bad one")
        if not isinstance(label, bool | None):
            raise not_honoured(name, "the record", f"is {type_found(label)}, expected true or false")
    for level, where, keys in _levels(record, shape):
        refused = _refused_keys(shape, level)
        if refused.isdisjoint(keys):
            continue
        for name in sorted((keys.keys() & refused) - _own_key(level, keys)):
            if says_something(keys[name]):
                raise not_honoured(name, where, f"carries meaning that shape {shape} does not read there")


def unread_keys(record: Mapping[str, Any], shape: Shape, ignored: Iterable[str] = ()) -> Iterator[tuple[Unread, str]]:
    """Yield every key with a value that is not read, once for each value: why, and its name after its level.

    Args:
        ignored: keys that a rule passes over, read or not.
    """
    ignored = frozenset(ignored)
    for level, _, keys in _levels(record, shape):
        if _own_key(level, keys) & ignored:
            yield "ignored", f"part.{keys['type']}"
            continue
        read = read_keys(shape, level) | _own_key(level, keys)
        for name, value in keys.items():
            if value is None or (name in read and name not in ignored):
                continue
            shown = name if level == "record" else f"{level}.{name}"
            if name in ignored:
                yield "ignored", shown
            else:
                yield why_unread(name), shown
    prompt_too = shape == "chosen" and isinstance(record.get("chosen"), list) and isinstance(record.get("prompt"), str)
    if prompt_too and "prompt" not in ignored:
        yield "passed_over", "prompt"  # the chat begins with it


def why_unread(name: str) -> Unread:
    """Return whether a key that is not read is known to be harmless; one that carries meaning is empty there."""
    return "passed_over" if name in HARMLESS_KEYS or name in MEANINGFUL_KEYS else "unknown"


def is_plain(message: Mapping[str, Any]) -> bool:
    """Return whether a message has none of the keys that any message may have next to what is said."""
    return _OF_A_MESSAGE.isdisjoint(message)


def weight_of(keys: Mapping[str, Any], where: str) -> bool | None:
    """Return whether a message or record is trained, or None where nothing says so.

    Raises:
        BadRow: a weight is neither 0 nor 1, or two of them differ.
    """
    found: bool | None = None
    for name in WEIGHTS:
        value = keys.get(name)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise not_honoured(name, where, f"is {str(value)[:40]}, expected 0 or 1: a turn is trained or is not")
        if found is not None and found != bool(value):
            raise not_honoured(name, where, f"is {value}, and another key there says the opposite")
        found = bool(value)
    return found


def reasoning_of(keys: Mapping[str, Any], where: str) -> str:
    """Return the reasoning of a message or an answer, empty where there is none.

    Raises:
        BadRow: it is no text, or two keys hold different ones.
    """
    found = ""
    for name in REASONING:
        value = keys.get(name)
        if not says_something(value):
            continue
        if not isinstance(value, str):
            raise not_honoured(name, where, f"is {type_found(value)}, expected a string")
        if found and value != found:
            raise not_honoured(name, where, "differs from another key of reasoning there")
        found = value
    return found


def not_honoured(name: str, where: str, problem: str, remedy: str | None = None) -> BadRow:
    """Return why a record is set aside that says more than its document would."""
    remedy = remedy or "Name it in the renderer's ignore to read the chat without it"
    return BadRow("chat_not_honoured", f"{name!r} of {where} {problem}. {remedy}")


def first_key(keys: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these keys that says something, for messages; the first of all when none does."""
    return next((name for name in names if says_something(keys.get(name))), names[0])


def _own_key(level: KeyLevel, keys: Mapping[str, Any]) -> frozenset[str]:
    """Return the key of a part that has its type's name, as ``{type: thinking, thinking}``."""
    own = keys.get("type") if level == "part" else None
    return frozenset((own,)) if isinstance(own, str) else frozenset()


def _levels(record: Mapping[str, Any], shape: Shape) -> Iterator[tuple[KeyLevel, str, Mapping[str, Any]]]:
    """Yield every object of a record whose keys have a meaning."""
    yield "record", "the record", record
    for holder in _KEYS[shape].holders:
        held = record.get(holder)
        for number, message in enumerate(held if isinstance(held, list) else [held]):
            if not isinstance(message, Mapping):
                continue
            where = f"{holder}[{number}]" if isinstance(held, list) else holder
            yield "message", where, message
            content = message.get("content")
            for at, part in enumerate(content if isinstance(content, list) else ()):
                if isinstance(part, Mapping):
                    yield "part", f"part {at} of {where}", part
