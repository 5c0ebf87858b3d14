"""What a dataset holds, as a digest: of its ledger where it keeps one, else of its file."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.tracking.errors import TrackingError


@dataclass(frozen=True)
class Contents:
    """Content of a dataset at one moment: hex digest, rows (None if it has no rows) and bytes."""

    digest: str
    rows: int | None
    bytes: int


NOTHING = Contents("", None, 0)
"""Of an optional dataset that was not made."""


def contents(name: str, dataset: Any) -> Contents | None:
    """Return what a Kedro dataset object holds now, or None if nothing tells (a database, a remote file).

    A dataset with ``ledger_summary() -> {"root_digest": str, "rows": int | None, "bytes": int}`` is asked; where that
    is None, it is an optional one that was not made, and holds `NOTHING`.
    Otherwise a local file gives the SHA-256 of its bytes, and a local folder that of its files' names and
    SHA-256s.

    Raises:
        TrackingError: if the ledger summary lacks a key, or the file is not there.
    """
    dataset = _unwrapped(dataset)
    if hasattr(dataset, "ledger_summary"):
        summary = dataset.ledger_summary()
        if summary is None:
            return NOTHING
        missing = {"root_digest", "rows", "bytes"} - set(summary)
        if missing:
            raise TrackingError(
                f"dataset {name}: ledger_summary() of {type(dataset).__name__} lacks {sorted(missing)}."
            )
        return Contents(summary["root_digest"], summary["rows"], summary["bytes"])
    path = local_path(dataset)
    if path is None:
        return None
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{_file_digest(file)}  {file.relative_to(path).as_posix()}\n" for file in files]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        return Contents(digest, None, sum(file.stat().st_size for file in files))
    if not path.is_file():
        raise TrackingError(f"dataset {name}: its file {path} is not there right after it was read or written.")
    return Contents(_file_digest(path), None, path.stat().st_size)


def local_path(dataset: Any) -> Path | None:
    """Return the local file or folder of a Kedro dataset (of a versioned one the version in use), or None."""
    dataset = _unwrapped(dataset)
    is_local = getattr(dataset, "_protocol", "file") in ("file", "local", "")
    if getattr(dataset, "_filepath", None) is None or not is_local:
        return None
    versioned = getattr(dataset, "_version", None) is not None
    return Path(str(dataset._get_load_path() if versioned else dataset._filepath))


def _unwrapped(dataset: Any) -> Any:
    inner = getattr(dataset, "_dataset", None)  # CachedDataset
    return dataset if inner is None else inner


def _file_digest(path: Path) -> str:
    stat = path.stat()
    return _digest_of(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=4096)
def _digest_of(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    """SHA-256 of a file; cached while size, time and inode stay, as one file may be read by many nodes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
