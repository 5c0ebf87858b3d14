"""What the tests of shards share: a note of the parts that ran, and the bytes of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return which parts ran since the last call, by the side file to which the part functions write."""
    side = tmp_path / "ran.txt"
    monkeypatch.setenv("TEST_RAN", str(side))

    def since_last_call() -> list[str]:
        names = side.read_text().split() if side.exists() else []
        side.unlink(missing_ok=True)
        return sorted(names)

    return since_last_call
