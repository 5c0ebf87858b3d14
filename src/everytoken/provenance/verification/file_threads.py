"""Files read and hashed in several threads, which end when nobody waits for them any more."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self, TypeVar

_READ = 1 << 20
_Item = TypeVar("_Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[_Item], Result], items: Iterable[_Item]) -> Iterator[Result]:
    """Yield the result for each item, in their order; what has not begun when the iterator is left never does."""
    pool = ThreadPoolExecutor(_threads())
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _threads() -> int:
    return min(8, os.cpu_count() or 1)


class Hashing:
    """Hashes files, each once; a context manager, whose end stops what is still being hashed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_threads())
        self._stopped = Event()
        self._begun: dict[Path, Future[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def begin(self, path: Path) -> Future[str]:
        """Let a thread hash a file, unless one does or did."""
        if path not in self._begun:
            self._begun[path] = self._pool.submit(self._hash, path)
        return self._begun[path]

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 (hex) of a file; wait for it.

        Raises:
            OSError: the file cannot be read.
        """
        return self.begin(path).result()

    def wrong(self, folder: Path, wanted: Mapping[str, str]) -> list[str]:
        """Return what is wrong with files that shall have these SHA-256, in their order."""
        for name in wanted:
            self.begin(folder / name)
        found = {name: self.sha256(folder / name) for name in wanted}
        return [
            f"{folder / name}: expected SHA-256 {digest[:16]}, found {found[name][:16]}"
            for name, digest in wanted.items()
            if found[name] != digest
        ]

    def _hash(self, path: Path) -> str:
        digest, block = hashlib.sha256(), memoryview(bytearray(_READ))
        with path.open("rb", buffering=0) as file:
            while (read := file.readinto(block)) and not self._stopped.is_set():
                digest.update(block[:read])
        return digest.hexdigest()
