"""How an address is spelled wherever a user reads or gives one: ``SOURCE/FILE/ROW``, as ``wikipedia/0/8544``.

The name of a source may hold slashes: the last two members are the numbers of the file and of the row in it, from 0.
"""

from __future__ import annotations

import re

_SPELLED = re.compile(r"(.+)[/\t ]([0-9]+)[/\t ]([0-9]+)", re.DOTALL)


def spelled_address(source: str, shard_index: int, row: int) -> str:
    """Return an address as users see it; `parsed_address` takes it back."""
    return f"{source}/{shard_index}/{row}"


def parsed_address(text: str) -> tuple[str, int, int] | None:
    """Return source, shard_index and row; None where a text is no address. Tabs and spaces may stand for slashes."""
    found = _SPELLED.fullmatch(text)
    return None if found is None else (found[1], int(found[2]), int(found[3]))
