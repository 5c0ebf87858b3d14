"""Digests of values and files: SHA-256, of values over their canonical JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.shards.errors import ShardsError

_READ = 1 << 20


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces; floats by shortest repr; NaN and infinities refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain_json(value: Any, where: str) -> Any:
    """Return ``value`` as JSON gives it back: tuples as lists, NumPy scalars as numbers, every mapping as a dict.

    What is digested or compared must not change by being written and read; JSON itself would turn the key 1 into "1".

    Raises:
        ShardsError: no JSON value, NaN, infinity, or a key that is not text; the message says where in ``value``.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ShardsError(f"{where} is {value}, which JSON does not know; give a finite number or None")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ShardsError(f"{where} has the key {key!r}; JSON keys are text, so write str(key)")
        return {key: plain_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ShardsError(f"{where} is a {type(value).__name__}; give plain JSON (text, numbers, lists, dicts)")


def value_digest(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of the bytes of ``path``."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ):
            digest.update(block)
    return digest.hexdigest()


class HashedFile(RawIOBase):
    """A new file that takes the SHA-256 of what is written to it, front to back."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes, or an array's buffer; return how many bytes."""
        self.sha256.update(data)
        written = self._file.write(data)
        self.bytes += written
        return written

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.bytes

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Close it; ``sha256`` stays."""
        self._file.close()
        super().close()
