"""Files of a remote folder: each under a name with the digest of its content, fetched and checked where it is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from everytoken.shards.digests import file_sha256
from everytoken.shards.engines import in_threads
from everytoken.shards.errors import DamagedStore
from everytoken.shards.remote.cache import FileCache
from everytoken.shards.remote.folders import REQUEST_BYTES, Gone, ObjectFolder

logger = logging.getLogger(__name__)


def object_name(name: str, sha256: str) -> str:
    """Return the name of the object that holds a file: ``part_00000.parquet`` is ``part_00000.<16 hex>.parquet``."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.{sha256[:16]}{path.suffix}"))


def open_folder(url: str) -> ObjectFolder:
    """Return the folder behind a URL, by its protocol."""
    if url.partition("://")[0].lower() in ("s3", "s3a") and "::" not in url:
        from everytoken.shards.remote.s3 import S3Folder

        return S3Folder(url)
    return ObjectFolder(url)


def names_below(url: str) -> list[str]:
    """Return the names right below a URL, in order, of objects and of what folders there seem to be."""
    objects = open_folder(url)

    def ask() -> list[str]:
        objects.filesystem.invalidate_cache()
        return list(objects.filesystem.ls(objects.place("").rstrip("/"), detail=False))

    try:
        return sorted({name.rstrip("/").rpartition("/")[2] for name in objects.asking("", ask)})
    except Gone:
        return []


@dataclass(frozen=True)
class RemoteFolder:
    """A folder behind a URL, and where local copies of its files are kept."""

    url: str
    cache: FileCache

    @cached_property
    def objects(self) -> ObjectFolder:
        """The objects in it; opened when it is first used."""
        return open_folder(self.url)

    @property
    def shown(self) -> str:
        """The URL for messages."""
        return self.objects.shown

    def file(self, name: str, size: int, sha256: str) -> RemoteFile:
        """Return a file by what a ledger says of it."""
        return RemoteFile(self, name, size, sha256)

    def upload(self, path: Path, name: str, sha256: str) -> None:
        """Write a file there, unless it is there already; then let the local one be a copy in the cache."""
        self.objects.upload(object_name(name, sha256), path)
        self.cache.keep(path, sha256)
        path.unlink()

    def __getstate__(self) -> dict[str, object]:
        return {"url": self.url, "cache": self.cache}  # a worker opens it itself

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a remote folder.

    Attributes:
        name: of the file in its store; the object has another one, `object_name`.
    """

    folder: RemoteFolder
    name: str
    size: int
    sha256: str

    @property
    def object_name(self) -> str:
        """Its name in the folder."""
        return object_name(self.name, self.sha256)

    @property
    def shown(self) -> str:
        """Its URL for messages."""
        return f"{self.folder.shown}/{self.object_name}"

    @property
    def place(self) -> Path:
        """Where its copy is, when it is there."""
        return self.folder.cache.place(self.sha256)

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """Give the path of its copy, which stays while the block runs; what is fetched has the right SHA-256.

        Raises:
            DamagedStore: the object is gone, or is not what was written.
            StorageError: it cannot be fetched, or there is no room for it.
        """
        with self.folder.cache.file(self.sha256, self.size, self.fetch_to) as path:
            yield path

    def verify(self) -> None:
        """Check that its copy has the right SHA-256; a damaged copy is fetched again.

        Raises:
            DamagedStore: the object is gone, or is not what was written.
        """
        with self.at_hand() as path:
            is_right = file_sha256(path) == self.sha256
        if not is_right:
            logger.warning("%s is not what was fetched; it is fetched again", path)
            self.folder.cache.drop(self.sha256)
            with self.at_hand():
                return

    def fetch_to(self, path: Path) -> None:
        """Write the bytes of the object into an existing file, and check them."""
        name, objects = self.object_name, self.folder.objects

        def fetch(start: int) -> None:
            content = objects.download(name, start, min(start + REQUEST_BYTES, self.size))
            with path.open("r+b") as file:
                file.seek(start)
                file.write(content)

        try:
            for _ in in_threads(fetch, range(0, self.size, REQUEST_BYTES)):
                pass
        except Gone:
            raise self.gone() from None
        if (found := file_sha256(path)) != self.sha256:
            raise DamagedStore(
                f"{self.shown} is not what was written: its SHA-256 is {found}, expected {self.sha256}. Delete this "
                "object and run the pipeline that makes it again: only what is missing is made"
            )

    def gone(self) -> DamagedStore:
        """Return the error that it is not there."""
        return DamagedStore(
            f"{self.shown} is gone: another run replaced what it belongs to, or it was deleted. Run the pipeline "
            "that makes it again: only what is missing is made"
        )
