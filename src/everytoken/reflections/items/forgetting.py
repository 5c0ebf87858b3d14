"""Items that are to leave a folder of replies: what was asked and answered about them is removed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from everytoken.reflections.items.asked_items import FAILURES_FILE, REPLIES_FILE, lock_of_items
from everytoken.reflections.items.line_files import parsed
from everytoken.shards import atomic_file


def forget_items(folder: Path, ids: Collection[str]) -> set[str]:
    """Remove replies and failures of items, and lines that nobody can read; return the ids that had a line.

    Each file is replaced by its other lines. A process that asks is waited for.
    """
    with lock_of_items(folder, wait=True):
        return {one for name in (REPLIES_FILE, FAILURES_FILE) for one in _forget(folder / name, ids)}


def _forget(path: Path, ids: Collection[str]) -> set[str]:
    if not path.is_file():
        return set()
    found: set[str] = set()
    with atomic_file(path) as temporary, temporary.open("wb") as file, path.open("rb") as lines:
        for content in lines:
            item = _item_of(content)
            if item in ids:
                found.add(item)
            elif item:
                file.write(content)
    return found


def _item_of(content: bytes) -> str:
    """Return the id of the item of a line; "" of a torn or foreign one."""
    try:
        line = parsed(content) if content.endswith(b"\n") else None
    except ValueError:
        return ""
    return str(line.get("id", "")) if isinstance(line, dict) else ""
