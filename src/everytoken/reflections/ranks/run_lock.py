"""What must not change while a run is made: written with the first submit, compared with each later one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everytoken.locks import locked
from everytoken.reflections.errors import ReflectionError
from everytoken.shards import plain_json, write_text

RUN_CONFIG = "run_config.json"


def read_run_config(root: Path) -> dict[str, Any]:
    """Return the locked values of a run.

    Raises:
        ReflectionError: there is no run, or its file is damaged.
    """
    path = root / RUN_CONFIG
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReflectionError(
            f"{root} holds no run: it has no {RUN_CONFIG}. Start one: everytoken reflections submit"
        ) from None
    except ValueError as error:
        raise ReflectionError(f"{path} is damaged ({error}). Restore it from a copy: it says what was asked") from None
    return found


def lock_run(root: Path, values: Mapping[str, Any]) -> None:
    """Write the locked values of a run, or check that they are those of its start.

    Raises:
        ReflectionError: a value has changed, or there are results that no file describes.
    """
    wanted = plain_json(dict(values), RUN_CONFIG)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        if not (root / RUN_CONFIG).exists():
            _require_new(root)
            _write(root, wanted)
            return
        _compare(root, _flat(read_run_config(root)), _flat(wanted))


def lock_found(root: Path, name: str, value: str) -> None:
    """Add to the locked values one that is known only when a server answers, or check it.

    Raises:
        ReflectionError: it was another one.
    """
    with locked(root):
        found = read_run_config(root)
        if found.get(name) is None:
            _write(root, {**found, name: value})
            return
        _compare(root, {name: found[name]}, {name: value})


def change_locked(root: Path, name: str, value: Any) -> None:
    """Put another value in the place of a locked one, which someone answers for."""
    with locked(root):
        _write(root, {**read_run_config(root), name: value})


def _require_new(root: Path) -> None:
    if found := sorted(path.name for path in root.iterdir() if path.name.isdigit()):
        raise ReflectionError(
            f"{root} has results ({', '.join(found[:5])}) and no {RUN_CONFIG}: nothing says what was asked. Give the "
            "run another folder, or remove these"
        )


def _write(root: Path, values: Mapping[str, Any]) -> None:
    write_text(root / RUN_CONFIG, json.dumps(values, indent=1, sort_keys=True) + "\n")


def _compare(root: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and not _is_open(key, old, new)]
    if changed:
        lines = [f"  {key}: {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}" for key in changed]
        raise ReflectionError(
            f"{root / RUN_CONFIG}: what the run was started with has changed, and its results would be of two kinds.\n"
            + "\n".join(lines)
            + "\nRestore the old values; or give the run another folder (an alias, or globals.yml: data)."
        )


def _is_open(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a value is known on one side alone: the name of the model, before a server has told it."""
    return key == "model" and None in (old.get(key), new.get(key))


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested values by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
