"""What must not change while a run is made: written with the first submit, compared with each later one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import LockedValues

RUN_CONFIG = "run_config.json"
_REMEDY = "Restore the old values; or give the run another folder (an alias, or globals.yml: data)."


def run_values(root: Path) -> LockedValues:
    """Return the file of the locked values of a run."""
    return LockedValues(root / RUN_CONFIG, _REMEDY)


def read_run_config(root: Path) -> dict[str, Any]:
    """Return the locked values of a run.

    Raises:
        ReflectionError: there is no run, or its file is damaged.
    """
    try:
        return run_values(root).read()
    except FileNotFoundError:
        raise ReflectionError(
            f"{root} holds no run: it has no {RUN_CONFIG}. Start one: everytoken reflections submit"
        ) from None


def lock_run(root: Path, values: Mapping[str, Any]) -> None:
    """Write the locked values of a run, or check that they are those of its start.

    Raises:
        ReflectionError: a value has changed, or there are results that no file describes.
    """
    root.mkdir(parents=True, exist_ok=True)
    run_values(root).start(values, partial(_require_new, root))


def _require_new(root: Path) -> None:
    if found := sorted(path.name for path in root.iterdir() if path.name.isdigit()):
        raise ReflectionError(
            f"{root} has results ({', '.join(found[:5])}) and no {RUN_CONFIG}: nothing says what was asked. Give the "
            "run another folder, or remove these"
        )
