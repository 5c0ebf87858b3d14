"""Patterns of relative paths, the same for a folder, a bucket and a dataset on the hub.

``/`` parts a path; ``*``, ``?`` and ``[...]`` stay within a part, and a part ``**`` stands for any number of folders.
Upper and lower case differ on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator


def _below_the_root(pattern: str) -> str:
    path = PurePosixPath(pattern)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"pattern must be a relative path below the root and have no '..', found {pattern!r}; "
            f"set the root to the folder that holds the files, and pattern to a path in it, such as '**/*.jsonl'"
        )
    if any("**" in part and part != "**" for part in path.parts):
        raise ValueError(f"pattern must have ** as a whole part ('**/*.jsonl'), found {pattern!r}")
    return pattern


Pattern = Annotated[str, AfterValidator(_below_the_root)]


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path or pattern; ``./`` and doubled ``/`` are no parts."""
    return PurePosixPath(path).parts


def matches(path: Sequence[str], pattern: Sequence[str], *, within: bool = False) -> bool:
    """Return whether a path matches, part by part.

    Args:
        path: the parts of a path.
        pattern: the parts of a pattern.
        within: instead, whether something within that folder could match.
    """
    if not path:
        return bool(pattern) if within else all(part == "**" for part in pattern)
    if not pattern:
        return False
    if pattern[0] == "**" and matches(path, pattern[1:], within=within):
        return True
    rest = pattern if pattern[0] == "**" else pattern[1:]
    return (pattern[0] == "**" or fnmatchcase(path[0], pattern[0])) and matches(path[1:], rest, within=within)


def is_safe(path: str) -> bool:
    """Return whether a path that a server lists stays below the folder it is fetched into."""
    parts = path.split("/")
    return bool(path) and "\0" not in path and not any(part in ("", ".", "..") for part in parts)
