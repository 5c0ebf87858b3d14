"""The JSON object in a reply, amid prose, code fences and thinking."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from everytoken.reflections.errors import RefusedReply

_FENCE = "```"
_WHOLLY_FENCED = re.compile(r"```[^\n`]*\n(.*)```\s*", re.DOTALL)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_ESCAPE = re.compile(r'\\(?:["\\/]|u[0-9a-fA-F]{4})|(\\)')


def without_thinking(reply: str) -> str:
    """Return what follows the last ``</think>``.

    Raises:
        RefusedReply: a thinking block never closes.
    """
    rest = reply.rpartition("</think>")[2]
    if "<think>" in rest:
        raise RefusedReply("a thinking block never closes")
    return rest


def extract_json(reply: str) -> dict[str, Any]:
    """Return the first JSON object of: the text behind the thinking; what a fence around all of it holds; the last
    fenced block to the first; the text behind the last fence; what begins with the first ``{``; with the last ``{`` to
    the first.

    Then all but fences is tried again with backslashes doubled that JSON does not know, as LaTeX has them.

    Raises:
        RefusedReply: there is no object, or a thinking block never closes.
    """
    text = without_thinking(reply).strip()
    for candidate in _candidates(text):
        found = _parsed(candidate)
        if found is not None:
            return found
    raise RefusedReply("the reply has no JSON object")


def _candidates(text: str) -> Iterator[tuple[str, int | None]]:
    """Yield texts, each with the place of the object in it; None: it is the whole text."""
    yield text, None
    if fenced := _WHOLLY_FENCED.fullmatch(text):
        yield fenced[1], None
    yield from ((block, None) for block in reversed(_FENCED.findall(text)))
    if _FENCE in text:
        yield text.rpartition(_FENCE)[2], None
    yield from _objects(text)
    doubled = _ESCAPE.sub(lambda escape: "\\\\" if escape[1] else escape[0], text)
    yield doubled, None
    yield from _objects(doubled)


def _objects(text: str) -> Iterator[tuple[str, int | None]]:
    end = text.rfind("}")
    if end < 0:  # a reply of nothing but openings is not tried at each of them
        return
    yield text, text.find("{")
    place = text.rfind("{", 0, end)
    while place >= 0:
        yield text, place
        place = text.rfind("{", 0, place)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _parsed(candidate: tuple[str, int | None]) -> dict[str, Any] | None:
    text, place = candidate
    if place == -1:
        return None
    try:
        found = _DECODER.decode(text) if place is None else _DECODER.raw_decode(text, place)[0]
    except (ValueError, RecursionError):  # nested as deep as no reply is
        return None
    return found if isinstance(found, dict) else None
