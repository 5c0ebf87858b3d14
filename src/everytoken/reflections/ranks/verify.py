"""Verify the result files of runs: what each complete rank holds is what its marker says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.checks import READ_FAULTS, Check, Faults, run_checks
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.ranks.contents import damaged_lines, marker_of, read_content
from everytoken.reflections.ranks.folders import REMEDY_OF_DAMAGE, RankFolder
from everytoken.reflections.ranks.run_lock import RUN_CONFIG
from everytoken.reflections.ranks.verbs import ranks_of


def find_run_folders(folder: Path) -> list[Path]:
    """Return the folders of generation runs in ``folder`` or below, in order of their paths."""
    return sorted(path.parent for path in folder.glob(f"**/{RUN_CONFIG}"))


def run_folder_checks(root: Path, *, full: bool, covers: str) -> Iterator[Check]:
    """Check a run: the sizes of complete ranks, and, when ``full``, every line of theirs."""
    check = partial(_check_run, full=full)
    yield from run_checks((("ranks", check),), root, (ReflectionError, *READ_FAULTS), covers=covers)


def _check_run(root: Path, *, full: bool) -> dict[str, int]:
    ranks = ranks_of(root)
    complete = [rank for rank in ranks if rank.marker.exists()]
    said = {rank: _said_by(rank) for rank in complete}
    if faults := [fault for rank in complete for fault in _faults(rank, said[rank], full)]:
        raise Faults(faults)
    results = sum(one["results"] for one in said.values())
    return {"ranks": len(ranks), "complete": len(complete), "results of complete ranks": results}


def _said_by(rank: RankFolder) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(rank.marker.read_bytes())
    except ValueError as error:
        raise ReflectionError(f"{rank.marker} is damaged ({error}). {REMEDY_OF_DAMAGE}") from None
    return said


def _faults(rank: RankFolder, said: dict[str, Any], full: bool) -> Iterator[str]:
    size = rank.results.stat().st_size if rank.results.exists() else 0
    if size != said["bytes"]:
        found = f"expected {said['bytes']:,} bytes, as its marker says, found {size:,}"
        yield f"{rank.results}: {found}. {REMEDY_OF_DAMAGE}"
    elif full and marker_of(rank, read_content(rank)) != said:
        yield damaged_lines(rank)
