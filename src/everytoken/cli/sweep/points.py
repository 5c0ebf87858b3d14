"""One point of a sweep: its folder, what it shares with another one, its run, and what that found.

A point is a run in a data folder of its own. The folder begins with links to the stored data of the point that shares
most values with it, of the first one with those of the environment. The run then decides by content, as any run does:
what the parameters of the point do not change is found made, and the rest is made in the place of the links. Stores
replace files and never write into one, so no point changes the data of another.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.cli.sweep.grid import GridPoint
from everytoken.configuration import COSTS_FILE, StageCost, read_costs
from everytoken.shards import LEDGER_FILE, write_text

_POINT_FILE = "sweep_point.json"
_NOT_SHARED = ("checkpoint", "_replies")  # ends of names: what is large and changes, and what is written in place
_REPORTS = "08_reporting"


@dataclass(frozen=True)
class PointResult:
    """What a finished point found.

    Attributes:
        parameters_digest: of all parameters of its run; another one is another run.
        metrics: by the name of the column.
        digests: of what the point made or found made, by dataset.
        made: stages that the point made itself, and what they took.
    """

    parameters_digest: str
    metrics: Mapping[str, float]
    digests: Mapping[str, str]
    made: Mapping[str, float]


def parameters_digest(parameters: Mapping[str, Any], version: str) -> str:
    """Return the SHA-256 of the parameters of a run and the version of the program."""
    text = json.dumps([version, parameters], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def finished(folder: Path, digest: str) -> PointResult | None:
    """Return what a point found, if a run with these parameters has ended in its folder."""
    try:
        found = PointResult(**json.loads((folder / _POINT_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # it was not finished, or an older version wrote it
        return None
    return found if found.parameters_digest == digest else None


def nearest_point(point: GridPoint, others: Sequence[GridPoint], order: Sequence[str]) -> GridPoint | None:
    """Return the one of other points that shares most with a point, the first of several; None of none.

    Args:
        order: names of parameters, first those that earlier stages read: on these most stages depend.
    """
    names = sorted(point.values, key=lambda name: order.index(name) if name in order else len(order))

    def shared(other: GridPoint) -> list[bool]:
        return [point.values[name] == other.values.get(name) for name in names]

    return max(others, key=shared, default=None)


def begin(folder: Path, source: Path, stores: Mapping[str, Path]) -> None:
    """Make the folder of a point, with links to the stores in ``source``; one that is there is kept.

    Args:
        source: data folder of another point, or of the environment.
        stores: where each store of the job is below a data folder, by name.
    """
    if folder.exists():
        return
    making = folder.with_name(f".{folder.name}.making")
    if making.exists():
        shutil.rmtree(making)  # a process that was killed left it
    making.mkdir(parents=True)
    for name, place in stores.items():
        if not name.endswith(_NOT_SHARED) and (source / place / LEDGER_FILE).exists():
            _link(source / place, making / place)
    if (source / COSTS_FILE).exists():
        (making / COSTS_FILE).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / COSTS_FILE, making / COSTS_FILE)
    making.rename(folder)


def _link(stored: Path, place: Path) -> None:
    """Link the files of a store; hidden ones are locks and what is being made."""
    place.mkdir(parents=True, exist_ok=True)
    for path in sorted(stored.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            _link(path, place / path.name)
        else:
            try:
                os.link(path, place / path.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, place / path.name)


def conclude(folder: Path, digest: str, before: Sequence[StageCost]) -> PointResult:
    """Read what a run left in the folder of a point, and write it next to it: the point is finished.

    Args:
        before: costs of the stages that the point began with.
    """
    known = {one.stage: one for one in before}
    made = {one.stage: one.seconds for one in read_costs(folder / COSTS_FILE) if known.get(one.stage) != one}
    result = PointResult(digest, _metrics(folder / _REPORTS), _digests(folder), made)
    write_text(folder / _POINT_FILE, json.dumps(vars(result), ensure_ascii=False, indent=1))
    return result


def _metrics(reports: Path) -> dict[str, float]:
    """Return the figures of the reports that compare models; those that a job does not have are left out."""
    found: dict[str, float] = {}
    evaluation = _json(reports / "evaluation_metrics.json")
    if evaluation:
        found["bits_per_byte"] = evaluation["total"]["bits_per_byte"]
        for source, figures in sorted(evaluation["by_source"].items()):
            found[f"bits_per_byte.{source}"] = figures["bits_per_byte"]
    for pipeline in ("training", "pretraining", "finetuning"):
        metrics = _json(reports / f"{pipeline}_metrics.json")
        for name in ("mean_loss_last_tenth", "loss_tokens") if metrics else ():
            found[f"{pipeline}.{name}"] = metrics[name]
    return found


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _digests(folder: Path) -> dict[str, str]:
    ledgers = sorted(folder.glob(f"*/*/{LEDGER_FILE}"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["root_digest"] for path in ledgers}
