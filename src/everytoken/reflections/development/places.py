"""Where the replies of prompt development are, and the page of a run, below the folder of all data."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from everytoken.reflections.items import forget_items

_TRIALS = "07_model_output/prompt_development"
_PAGES = "08_reporting"
_TWO_STAGES = ("generations", "judgements")

IMPROVEMENTS = "improvements"
"""Folder of the requests for better versions, in that of a run."""


def trials_folder(data: Path, run: str) -> Path:
    """Return the folder of the versions of a run that were tried."""
    return data / _TRIALS / run


def versions_page_path(data: Path, run: str) -> Path:
    """Return the file of the page that shows them."""
    return data / _PAGES / f"{run}_prompts.html"


def forget_trials(data: Path, rows: Collection[int]) -> Iterator[tuple[str, int]]:
    """Remove what was asked and answered about rows, and pages; yield runs, and how many rows each had.

    An improvement whose request showed one of the rows is removed with it; the prompt that it gave stays.
    """
    ids = set(map(str, rows))
    for root in sorted((data / _TRIALS).glob("*")):
        told: set[str] = set()
        for stage in _TWO_STAGES:
            for locked in sorted(root.glob(f"{stage}/*/*/locked.json")):
                found = forget_items(locked.parent, ids)
                told |= found
                purpose, name = locked.parent.parent.name, locked.parent.name.rpartition("__on__")[2]
                if found and purpose.startswith("improve_"):
                    shutil.rmtree(root / IMPROVEMENTS / name, ignore_errors=True)
        if told:
            versions_page_path(data, root.name).unlink(missing_ok=True)
            yield root.name, len(told)
