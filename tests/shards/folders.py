"""Folders as values, to compare them."""

from __future__ import annotations

from pathlib import Path


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below ``folder``, hidden ones too, and b"" for every empty folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{name}/"] = b""
    return found
