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


def matches_pattern(path: Sequence[str], pattern: Sequence[str], *, within: bool = False) -> bool:
    """Return whether a path matches, part by part.

    Args:
        path: the parts of a path.
        pattern: the parts of a pattern.
        within: instead, whether something within that folder could match.
    """
    reached = _with_skipped({0}, pattern)  # how many parts of the pattern can be used up so far
    for part in path:
        following = set()
        for used in reached - {len(pattern)}:
            if pattern[used] == "**":
                following.add(used)
            elif fnmatchcase(part, pattern[used]):
                following.add(used + 1)
        reached = _with_skipped(following, pattern)
    return bool(reached - {len(pattern)}) if within else len(pattern) in reached


def _with_skipped(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """Return ``reached`` with what is reached by letting each next ``**`` stand for no folder."""
    found = set(reached)
    for used in reached:
        while used < len(pattern) and pattern[used] == "**":
            used += 1
            found.add(used)
    return found


def is_safe(path: object) -> bool:
    """Return whether what a server lists as a path is one, in UTF-8, that stays below the folder it is fetched into."""
    if not isinstance(path, str):
        return False
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        return False
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
