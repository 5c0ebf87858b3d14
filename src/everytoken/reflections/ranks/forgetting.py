"""Taking documents down: what was generated about their rows leaves the files of a run.

Each file is written again without the lines of these rows and then replaced, under the lock of its rank. A row that had
a line counts as ``excluded`` from then on, so that the rank stays complete. A rank that is being made is ended first;
the next submit resumes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.locks import locked
from everytoken.reflections.items import parsed
from everytoken.reflections.ranks.annotated_rows import sidecar_facts
from everytoken.reflections.ranks.contents import marker_of, read_content
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.reflections.ranks.requests_of_rows import line_without_reply
from everytoken.reflections.ranks.result_lines import ROW_KEY
from everytoken.reflections.ranks.run_lock import read_run_config, run_values
from everytoken.reflections.ranks.verbs import cancel, ranks_of
from everytoken.reflections.registry import GenerationRun, find_generation_run
from everytoken.shards import atomic_file

_EXCLUDED = "excluded"


@dataclass(frozen=True)
class ForgottenRows:
    """What was removed from the files of a run: rows that had a line, and ranks that were ended for it."""

    run: str
    rows: int
    ended: tuple[int, ...]


def forget_rows(
    root: Path, rows: Collection[int], *, come_back: bool = False, run: GenerationRun | None = None
) -> ForgottenRows:
    """Remove what was generated about rows.

    Args:
        run: whose rows they are; None: the one that the folder names.
        come_back: whether the documents are taken back: then their rows have no result, and are asked again.

    Raises:
        ReflectionError: there is no run.
    """
    chosen = run or find_generation_run(read_run_config(root)["run_name"])[0]
    meant = [rank for rank in ranks_of(root) if rank.path.is_dir() and _own(rank, rows)]
    ended = cancel(root, [rank.number for rank in meant if rank.is_running]) if meant else []
    count = sum(_forget(rank, chosen, _own(rank, rows), come_back) for rank in meant)
    return ForgottenRows(root.name, count, tuple(one.number for one in ended))


def follow_sidecar(root: Path, before: str, sidecar: Path, sha256: str) -> bool:
    """Let a run go on with the sidecar that a take-down made of its own; return whether it was its own.

    Args:
        before: SHA-256 of the sidecar before the take-down.
    """
    if read_run_config(root)["sidecar"]["sha256"] != before:
        return False
    run_values(root).replace("sidecar", {"sha256": sha256, **sidecar_facts(sidecar)})
    return True


def _own(rank: RankFolder, rows: Collection[int]) -> set[int]:
    return {row for row in rows if rank.first <= row < rank.end}


def _forget(rank: RankFolder, run: GenerationRun, rows: set[int], come_back: bool) -> int:
    with locked(rank.path):
        told = {row for path in (rank.results, rank.failures) for row in _rows_told(path, rows, come_back)}
        if not told:
            return 0
        was_complete = rank.completion() is not None
        rank.marker.unlink(missing_ok=True)
        _write_without(rank.failures, told, ())
        excluded = () if come_back else (line_without_reply(run, row, None, _EXCLUDED) for row in sorted(told))
        _write_without(rank.results, told, excluded)
        if was_complete and not come_back:
            rank.complete(marker_of(rank, read_content(rank)))
        return len(told)


def _rows_told(path: Path, rows: set[int], come_back: bool) -> set[int]:
    """Return the rows of which a file has a line, but not those that count as excluded already."""
    found = set()
    for record in _records(path):
        if record.get(ROW_KEY) in rows and (come_back or record.get("status") != _EXCLUDED):
            found.add(record[ROW_KEY])
    return found


def _records(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for content in file:
            if (record := _record(content)) is not None:
                yield record


def _record(content: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None of a torn or foreign one, which nothing reads."""
    try:
        found = parsed(content) if content.endswith(b"\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _write_without(path: Path, rows: set[int], added: Iterable[dict[str, Any]]) -> None:
    """Replace a file by its lines of other rows, and these; what no reader understands goes, too."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        for content in path.open("rb") if path.is_file() else ():
            record = _record(content)
            if record is not None and record.get(ROW_KEY) not in rows:
                file.write(content)
        for line in added:
            file.write(json.dumps(line, sort_keys=True, allow_nan=False).encode("ascii") + b"\n")
