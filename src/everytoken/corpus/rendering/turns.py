"""A turn of a chat, and the values of records that turns are read from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from everytoken.corpus.errors import BadRow
from everytoken.shards import canonical_json

_T = TypeVar("_T")
Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)


class Turn(NamedTuple):
    """What one role says at a time.

    Attributes:
        reasoning: what the assistant thinks before it speaks.
        tools: definitions of tools, each as canonical JSON; only a system turn has them.
        trained: whether the loss counts this turn; only the assistant's turns are ever trained.
    """

    role: Role
    content: str
    reasoning: str = ""
    tools: tuple[str, ...] = ()
    trained: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all; white space is something."""
        return not (self.content or self.reasoning or self.tools)


def string_of(record: Mapping[str, Any], name: str, of: str = "the record") -> str:
    """Return a field that is a string.

    Raises:
        BadRow: the field is missing, or of another type.
    """
    return _of_type(record, name, of, str, "a string")


def list_of(record: Mapping[str, Any], name: str, of: str = "the record") -> list[Any]:
    """Return a field that is a list.

    Raises:
        BadRow: the field is missing, or of another type.
    """
    return _of_type(record, name, of, list, "a list")


def objects_of(record: Mapping[str, Any], name: str, of: str = "the record") -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of a field that is a list, each after its place in the record.

    Raises:
        BadRow: the field is no list of objects.
    """
    places = [(f"{name}[{number}]", item) for number, item in enumerate(list_of(record, name, of))]
    for place, item in places:
        if not isinstance(item, Mapping):
            raise BadRow("cannot_render", f"{place} is {type_found(item)}, expected an object")
    return places


def role_of(turn: Mapping[str, Any], name: str, where: str, known: Mapping[str, Role]) -> Role:
    """Return the role that a message names.

    Raises:
        BadRow: it names none of ``known``.
    """
    said = string_of(turn, name, where)
    if said not in known:
        shown = json.dumps(said[:40])
        raise BadRow("cannot_render", f"{name!r} of {where} is {shown}, expected one of {', '.join(sorted(known))}")
    return known[said]


def json_of(value: Any, what: str) -> str:
    """Return a value as canonical JSON.

    Raises:
        BadRow: it is no JSON value: parquet has dates, bytes and NaN.
    """
    try:
        return canonical_json(value)
    except (TypeError, ValueError):
        raise BadRow("cannot_render", f"{what} is no JSON value") from None


def type_found(value: Any) -> str:
    """Return the name of a value's type, for messages."""
    return "null" if value is None else type(value).__name__


def _of_type(record: Mapping[str, Any], name: str, of: str, kind: type[_T], expected: str) -> _T:
    if name not in record:
        raise BadRow("cannot_render", f"{of} has no {name!r}; its fields are {sorted(record)[:20]}")
    value = record[name]
    if not isinstance(value, kind):
        raise BadRow("cannot_render", f"{name!r} of {of} is {type_found(value)}, expected {expected}")
    return value
