"""The styles of rephrasing: one file, and a draw for each document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from everytoken.reflections.errors import ReflectionError
from everytoken.seeds import python_random

_MARKER = re.compile(r"<!--[ \t]*TEMPLATE:(.*?)-->")
_DRAW = "rephrase_template"


def parse_styles(text: str, path: Path) -> Mapping[str, str]:
    """Return the styles of a file by name. ``<!-- TEMPLATE: name -->`` begins one; text before the first is ignored.

    Raises:
        ReflectionError: there is no marker, a name is blank or occurs twice, or a style has no text.
    """
    _, *parts = _MARKER.split(text)
    names = [name.strip() for name in parts[::2]]
    if not names:
        raise ReflectionError(f"{path} has no marker '<!-- TEMPLATE: name -->', case as here: give each style one")
    if "" in names:
        raise ReflectionError(f"a style of {path} has no name: write it behind 'TEMPLATE:'")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ReflectionError(f"the style {twice[0]!r} of {path} occurs twice: give each style its own name")
    styles = {name: body.strip() for name, body in zip(names, parts[1::2], strict=True)}
    if blank := [name for name, body in styles.items() if not body]:
        raise ReflectionError(f"the style {blank[0]!r} of {path} has no text: write it below its marker")
    return styles


def draw_style(names: Iterable[str], seed: int, key: str) -> str:
    """Return the style of a document; the order of the names plays no part."""
    return python_random(_DRAW, seed, key).choice(sorted(names))
