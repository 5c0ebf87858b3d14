"""Files of one JSON object a line that only grow: a process that is killed leaves at most one torn line at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

_BLOCK = 1 << 16


class LineFile:
    """Appends whole lines; what is torn at the end of the file is cut off first."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        end = _end_of_lines(self._descriptor)
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record as ASCII JSON with sorted keys.

        Raises:
            TypeError, ValueError: it is no JSON; nothing was written.
        """
        data = json.dumps(record, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def flush(self) -> None:
        """Return when the lines are on disk."""
        os.fsync(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)


def _end_of_lines(descriptor: int) -> int:
    """Return the offset behind the last line break."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _BLOCK)
        if (found := os.pread(descriptor, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


def parsed(content: bytes) -> Any:
    """Return the JSON of a line.

    Raises:
        ValueError: it is none.
    """
    try:
        return orjson.loads(content)
    except ValueError:  # orjson refuses halves of surrogate pairs, which replies may have
        return json.loads(content)


def records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a small file, such as failures; torn and foreign lines are passed over."""
    found = []
    for content in path.read_bytes().split(b"\n")[:-1] if path.is_file() else ():
        try:
            one = parsed(content)
        except ValueError:
            continue
        found += [one] if isinstance(one, dict) else []
    return found
