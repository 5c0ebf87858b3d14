"""Local copies of remote files, by their digests, in a folder that is kept below a bound.

A copy that is needed now carries a shared lock for as long. To make room, those that were not needed for longest are
removed; one with a lock is passed over. Processes share the folder, and what one fetched the others find::

    files/<SHA-256>              a part, or a block of a large file
    files/.<SHA-256>.partial     one that is being fetched; its size is that of the whole
    artifacts/<digest>/          the files of an artifact under their names, removed together
    used                         bytes of all of them, or more: files are only counted again when that is at the bound
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from everytoken.locks import locked
from everytoken.shards.atomic import fsync_file, link_file, lock_folder
from everytoken.shards.remote.folders import StorageError

_USED_FILE = "used"


class NoRoom(StorageError):
    """The copies that are needed now leave no room below the bound."""


class _Copy(NamedTuple):
    used: int  # time, in nanoseconds
    path: Path
    bytes: int


@dataclass(frozen=True)
class CacheSettings:
    """``cache`` of a catalog entry: the folder of local copies, and the most bytes of all that it holds."""

    path: str
    bytes: int

    def __post_init__(self) -> None:
        if type(self.bytes) is not int or self.bytes < 1:
            raise StorageError(f"cache.bytes is {self.bytes!r}; give the most bytes of local copies, a positive number")


@dataclass(frozen=True)
class FileCache:
    """A folder of local copies.

    Attributes:
        bound: the most bytes of all of them together.
    """

    folder: Path
    bound: int

    @property
    def _files(self) -> Path:
        return self.folder / "files"

    def place(self, name: str) -> Path:
        """Return where a file is, when it is there."""
        return self._files / name

    @contextmanager
    def file(self, name: str, size: int, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """Give the path of a copy, which stays while the block runs; fetch it where it is not there.

        Args:
            name: digest of the content.
            fetch: writes the file; called once by one process.

        Raises:
            StorageError: there is no room for it.
        """
        path = self.place(name)
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(path, shared=True))
                    break
                except FileNotFoundError:
                    self.fetch(path, size, fetch)
            os.utime(path)
            yield path

    def fetch(self, path: Path, size: int, fetch: Callable[[Path], None]) -> None:
        """Let a file of the cache be there; ``fetch`` writes one of ``size`` bytes, called by one process.

        Raises:
            NoRoom: there is no room for it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with locked(partial, lambda: os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)) as descriptor:
            try:
                if path.exists():  # another process fetched it while this one waited
                    return
                self._take_room(size, lambda: os.truncate(descriptor, size))
                fetch(partial)
                fsync_file(partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def keep(self, path: Path, name: str) -> None:
        """Let a local file be the copy of this name too, if there is room for it without removing what is needed."""
        target = self.place(name)
        self._files.mkdir(parents=True, exist_ok=True)
        try:
            self._take_room(path.stat().st_size, lambda: link_file(path, target))
        except FileExistsError:
            os.utime(target)
        except StorageError:
            return

    def drop(self, name: str) -> None:
        """Remove a copy that is not what it should be."""
        self.place(name).unlink(missing_ok=True)

    def adopt(self, folder: Path, name: str) -> bool:
        """Move a local folder here, as the files of an artifact, if there is room; return whether it was moved."""
        target = self.folder_of(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with locked(lock_folder(target), wait=False):
                if target.exists():  # without its large files
                    shutil.rmtree(target)
                self._take_room(_bytes_in(folder), lambda: folder.rename(target))
        except (BlockingIOError, NoRoom):
            return False
        os.utime(target)
        return True

    def folder_of(self, name: str) -> Path:
        """Return where the files of an artifact are, when they are there."""
        return self.folder / "artifacts" / name

    @contextmanager
    def pinned(self, name: str) -> Iterator[Path]:
        """Give the folder of an artifact, which stays, as far as it is there, while the block runs."""
        path = self.folder_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_folder(path), shared=True):
            yield path

    def _take_room(self, size: int, take: Callable[[], object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            used = self._used()
            if used is None or used + size > self.bound:
                used = self._freed(size)
            take()
            (self.folder / _USED_FILE).write_text(str(used + size), encoding="utf-8")

    def _used(self) -> int | None:
        """Return the bytes that were used when room was taken last; None: nobody knows."""
        try:
            return int((self.folder / _USED_FILE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def _freed(self, size: int) -> int:
        """Remove copies for ``size`` bytes more, and a little more than that; return the bytes of those that stay."""
        copies = sorted(self._copies())
        used, wanted = sum(copy.bytes for copy in copies), self.bound - size
        if used > wanted >= 0:
            for copy in copies:
                if used <= max(0, wanted - self.bound // 16):
                    break
                if _removed(copy.path):
                    used -= copy.bytes
        if used > wanted:
            raise NoRoom(
                f"there is no room for {size:,} bytes in {self.folder}, whose bound is {self.bound:,} bytes: what "
                f"is needed now has {used:,}. Raise cache.bytes to what all workers read at a time, or use "
                "fewer workers"
            )
        return used

    def _copies(self) -> Iterator[_Copy]:
        for path in self._files.iterdir() if self._files.is_dir() else ():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield _Copy(found.st_mtime_ns, path, found.st_size)
        artifacts = self.folder / "artifacts"
        for path in artifacts.iterdir() if artifacts.is_dir() else ():
            if path.name.endswith(".lock"):
                continue
            yield _Copy(path.stat().st_mtime_ns, path, _bytes_in(path))


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # one that was being fetched has its name now
            total += path.stat().st_size if path.is_file() else 0
    return total


def _removed(path: Path) -> bool:
    """Remove a copy, unless somebody needs it; return whether it is gone."""
    try:
        with locked(lock_folder(path) if path.is_dir() else path, wait=False):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True
