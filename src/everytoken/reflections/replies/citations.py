"""Sections of the constitution that a text cites, ``[1.1]`` or ``[1.1, 2.3]``."""

from __future__ import annotations

import re
from collections.abc import Collection

_BRACKETS = re.compile(r"\[([0-9., ]+)\]")


def cited_sections(text: str, sections: Collection[str]) -> list[str]:
    """Return the sections that a text cites, each once, in the order of their first citation.

    Args:
        sections: those that the constitution has; others are no citations.
    """
    cited = (one.strip() for found in _BRACKETS.findall(text) for one in found.split(","))
    return list(dict.fromkeys(one for one in cited if one in sections))
