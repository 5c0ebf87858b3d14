"""The constitution: Markdown whose sections have headings ``### X.Y title``."""

from __future__ import annotations

import re
from pathlib import Path

from everytoken.reflections.errors import ReflectionError

_HEADING = re.compile(r"^###[ \t]+([0-9]+\.[0-9]+)(?=[ \t\r\n]|\Z)", re.MULTILINE)


def constitution_sections(text: str) -> list[str]:
    """Return the numbers of the sections, in order, as their headings say; what the text mentions is no section."""
    return _HEADING.findall(text)


def section_headings(text: str) -> list[str]:
    """Return number and title of the sections, in order."""
    return [line.removeprefix("###").strip() for line in text.splitlines() if _HEADING.match(line)]


def require_sections(text: str, path: Path) -> frozenset[str]:
    """Return the numbers of the sections of a constitution that is used.

    Raises:
        ReflectionError: it has none, or one twice.
    """
    sections = constitution_sections(text)
    if not sections:
        raise ReflectionError(f"{path} has no section: give its sections headings such as '### 1.1 Honesty'")
    if twice := [section for section in sections if sections.count(section) > 1]:
        raise ReflectionError(
            f"{path} has two sections {twice[0]}: a citation would be of both. Give each its own number"
        )
    return frozenset(sections)
