"""The fields of a reply: names corrected, all there, with text in them, and no key of the JSON in the prose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from everytoken.reflections.errors import BlankReply, RefusedReply
from everytoken.reflections.registry import RAW_TEXT
from everytoken.reflections.replies.json_object import extract_json, without_thinking

ANALYSIS = "analysis"
"""The field that no column stores."""

_RENAMED = {
    "reflection": "reflection_1p",
    "reflection_first_person": "reflection_1p",
    "reflectio_n_1p": "reflection_1p",
    "reflecting_1p": "reflection_1p",
    "reflection_third_person": "reflection_3p",
    "reflectio_n_3p": "reflection_3p",
    "reflecting_3p": "reflection_3p",
    "reservation_3p": "reflection_3p",
    "judgmental": "judgemental",
    "idealization": "idealisation",
}
_OTHER_MODE = {"preflection_1p": "reflection_1p", "preflection_3p": "reflection_3p"}

_KEYS = "reflection_1p|reflection_3p|preflection_1p|preflection_3p|charter_summary"
_LEAK = re.compile(rf'(?<!\w)(?:{_KEYS})(?!\w)|"(?:{_KEYS}|analysis|neutral|judgemental|idealisation|summary)"')


def parse_reply(reply: str, required: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object of a reply, its names corrected; fields that nobody asked for stay as they are.

    Args:
        required: fields that it must have; all but ``analysis`` must have text.

    Raises:
        BlankReply: a field that is stored is blank or no text.
        RefusedReply: there is no object, a field is missing, or the text of one spells the name of another.
    """
    found = _renamed(_unwrapped(extract_json(reply)), required)
    if missing := [name for name in required if name not in found]:
        raise RefusedReply(f"the reply lacks {', '.join(missing)}; it has {', '.join(found) or 'no field'}")
    found |= {name: _joined(found[name]) for name in required}
    stored = {name: found[name] for name in required if name != ANALYSIS}
    if blank := [name for name, text in stored.items() if not (isinstance(text, str) and text.strip())]:
        raise BlankReply(f"stored field empty or not text: {', '.join(blank)}")
    for name, text in stored.items():
        if leak := _LEAK.search(text):
            raise RefusedReply(f"the text of {name} spells the key {leak[0]} of the JSON")
    return found


def parse_raw(reply: str) -> dict[str, str]:
    """Return the whole text of a reply, without thinking and white space around it.

    Raises:
        BlankReply: nothing is left.
        RefusedReply: a thinking block never closes.
    """
    text = without_thinking(reply).strip()
    if not text:
        raise BlankReply("the reply has no text")
    return {RAW_TEXT: text}


def _unwrapped(found: dict[str, Any]) -> dict[str, Any]:
    values = list(found.values())
    return values[0] if len(values) == 1 and isinstance(values[0], dict) else found


def _renamed(found: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    fields = dict(found)
    names = _RENAMED | {wrong: name for wrong, name in _OTHER_MODE.items() if name in required}
    for wrong, name in names.items():
        if wrong in fields and name not in fields:
            fields[name] = fields.pop(wrong)
    return fields


def _joined(value: Any) -> Any:
    return "\n".join(map(str, value)) if isinstance(value, list) else value
