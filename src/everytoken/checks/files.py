"""What every kind of check asks of files: that they exist with their sizes, no other does, and each has its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

from everytoken.checks.check import require_none
from everytoken.shards import LEDGER_FILE, THREADS, is_here, size_here, stub_of

_READ = 1 << 20


def require_files(
    folder: Path, sizes: Mapping[str, int | None], lister: str, *, remedy: str = "", own: Collection[str] = ()
) -> int:
    """Check that the files in a folder are those of a list; return how many hidden ones are not in it.

    Args:
        sizes: bytes of each file by its path in the folder; None: any number.
        lister: what has the list, in words.
        remedy: what to do about a missing file.
        own: files that no list names, besides the ledger.

    Raises:
        Faults: a file is missing, has another size, or is not listed.
    """
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    stubs = {stub_of(Path(name)).as_posix() for name in sizes}
    missing = [name for name in sizes if not is_here(folder / name)]
    expected = {name: "" if sizes[name] is None else f": expected {sizes[name]:,} bytes, it" for name in missing}
    faults = [f"{folder / name}{expected[name]} is missing{remedy}" for name in missing]
    faults += wrong_sizes(folder, sizes)
    unlisted = sorted(found - sizes.keys() - stubs - {LEDGER_FILE, *own})
    hidden = [name for name in unlisted if name.startswith(".") or "/." in name]
    faults += [f"{folder / name}: {lister} no such file" for name in unlisted if name not in hidden]
    require_none(faults, [folder / name for name in missing])
    return len(hidden)


def wrong_sizes(folder: Path, sizes: Mapping[str, int | None]) -> list[str]:
    """Return which files that exist have another number of bytes."""
    found = {name: size for name in sizes if (size := size_here(folder / name)) is not None}
    return [
        f"{folder / name}: expected {sizes[name]:,} bytes, found {size:,}"
        for name, size in found.items()
        if sizes[name] not in (None, size)
    ]


class Hashing:
    """Hashes files in threads, each file once; a context manager, whose end stops what is still being hashed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
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

    def wrong(self, folder: Path, wanted: Mapping[str, str], known: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return by file what is wrong with those that shall have these SHA-256; ``known``: of files read already."""
        begun = {name: self.begin(folder / name) for name in wanted if name not in (known or {})}
        found = {name: future.result() for name, future in begun.items()} | {**(known or {})}
        return {
            name: f"{folder / name}: expected SHA-256 {digest[:16]}, found {found[name][:16]}"
            for name, digest in wanted.items()
            if found[name] != digest
        }

    def _hash(self, path: Path) -> str:
        digest, block = hashlib.sha256(), memoryview(bytearray(_READ))
        with path.open("rb", buffering=0) as file:
            while (read := file.readinto(block)) and not self._stopped.is_set():
                digest.update(block[:read])
        return digest.hexdigest()
