"""Files that a developer may have beside the repository; tests that want them are skipped where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest


def shared_folder(name: str) -> Path:
    """Return the folder ``name`` of the assets beside the repository, or skip the test that asks for it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"there is no folder of shared assets with {name!r} beside this repository")
    return folder
