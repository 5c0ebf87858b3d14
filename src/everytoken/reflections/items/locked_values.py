"""What must not change while replies are asked for: written at the start, compared with each later start."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.locks import locked
from everytoken.reflections.errors import ReflectionError
from everytoken.shards import plain_json, write_text


@dataclass(frozen=True)
class LockedValues:
    """The file of the locked values; its folder is locked while they are compared.

    Attributes:
        remedy: what to do where a value has changed.
    """

    path: Path
    remedy: str

    def read(self) -> dict[str, Any]:
        """Return the values.

        Raises:
            FileNotFoundError: nothing was started.
            ReflectionError: the file is damaged.
        """
        try:
            found: dict[str, Any] = json.loads(self.path.read_bytes())
        except ValueError as error:
            raise ReflectionError(
                f"{self.path} is damaged ({error}). Restore it from a copy: it says what was asked"
            ) from None
        return found

    def start(self, values: Mapping[str, Any], require_new: Callable[[], None] = lambda: None) -> None:
        """Write the values, or check that they are those of the start.

        Args:
            require_new: raises where there are results that no file describes.

        Raises:
            ReflectionError: a value has changed.
        """
        wanted = plain_json(dict(values), self.path.name)
        with locked(self.path.parent):
            if self.path.exists():
                self._compare(_flat(self.read()), _flat(wanted))
            else:
                require_new()
                self._write(wanted)

    def found(self, name: str, value: str) -> None:
        """Add a value that is known only when a server answers, or check it.

        Raises:
            ReflectionError: it was another one.
        """
        with locked(self.path.parent):
            said = self.read()
            if said.get(name) is None:
                self._write({**said, name: value})
                return
            self._compare({name: said[name]}, {name: value})

    def replace(self, name: str, value: Any) -> None:
        """Put another value in the place of a locked one, which someone answers for."""
        with locked(self.path.parent):
            self._write({**self.read(), name: value})

    def _write(self, values: Mapping[str, Any]) -> None:
        write_text(self.path, json.dumps(values, indent=1, sort_keys=True) + "\n")

    def _compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and not _is_open(key, old, new)]
        if changed:
            lines = [f"  {key}: {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}" for key in changed]
            raise ReflectionError(
                f"{self.path}: what the run was started with has changed, and its results would be of two kinds.\n"
                + "\n".join(lines)
                + f"\n{self.remedy}"
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
