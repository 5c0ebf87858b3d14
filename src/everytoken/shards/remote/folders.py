"""A folder of objects behind a URL: what it lists, and how objects are read, written and replaced.

Objects whose names have the digest of their content never change. Only a ledger is replaced, and only by whom has read
the version that is replaced. A storage that compares on the server (S3: ``If-Match``) lets one of two runs win.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from everytoken.redaction import GIVE_IT_BY, redacted, shown_url
from everytoken.shards.errors import ShardsError
from everytoken.shards.remote.access import options_of
from everytoken.shards.remote.retries import Transient, retried

REQUEST_BYTES = 16 << 20  # bytes of one request

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class StorageError(ShardsError):
    """An object storage refuses something, or cannot be reached."""


class Changed(Exception):
    """What should be replaced is not what was read."""


class Gone(Exception):
    """There is no such object."""


class ObjectFolder:
    """The objects below a URL, by names relative to it.

    Args:
        url: of the folder. Credentials and settings: `everytoken.shards.remote.access`.
    """

    compares_on_server = False
    """Whether the storage itself refuses to replace another version than the one that was read."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def shown(self) -> str:
        """The URL for messages."""
        return shown_url(self.url)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        with self._explained(""):
            filesystem, base = url_to_fs(self.url, **self._settings())
            return filesystem, base.rstrip("/")

    def _settings(self) -> dict[str, Any]:
        return {"use_listings_cache": False, **options_of(self.url)}  # what was listed is not what is there

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec."""
        return self._opened[0]

    def place(self, name: str) -> str:
        """Return the path of an object in the file system."""
        return f"{self._opened[1]}/{name}"

    def asking(self, name: str, attempt: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
        """Return what ``attempt`` returns; it is repeated while the storage is busy or out of reach.

        Raises:
            StorageError: the storage refuses it, or failed too often.
            Gone, Changed: it says so.
        """

        def explained() -> _T:
            with self._explained(name):
                return attempt()

        def gave_up(reason: str) -> StorageError:
            return StorageError(
                f"{reason}. Check the network and the storage, then run the same command again: what was made or "
                "transferred is kept"
            )

        return retried(explained, gave_up, progress=progress)

    def sizes(self) -> dict[str, int]:
        """Return all objects by name, and their bytes."""

        def ask() -> dict[str, int]:
            filesystem, base = self._opened
            filesystem.invalidate_cache()
            try:
                found = filesystem.find(base, withdirs=False, detail=True)
            except FileNotFoundError:
                self.require_bucket()
                return {}
            return {place[len(base) + 1 :]: int(info["size"]) for place, info in found.items() if place != base}

        return self.asking("", ask)

    def require_bucket(self) -> None:
        """Return where a folder that lists nothing is empty; raise where nothing can be put there."""

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes and the version of a small object; None: there is none."""

        def ask() -> tuple[bytes, str]:
            self.filesystem.invalidate_cache()
            content: bytes = self.filesystem.cat_file(self.place(name))
            return content, hashlib.sha256(content).hexdigest()

        try:
            return self.asking(name, ask)
        except Gone:
            return None

    def version(self, name: str) -> str | None:
        """Return the version of a small object; None: there is none."""
        found = self.read(name)
        return None if found is None else found[1]

    def replace(self, name: str, content: bytes, version: str | None) -> None:
        """Write a small object in the place of the version that was read; None: there was none.

        Raises:
            Changed: there is another version.
        """
        now = self.read(name)
        if (None if now is None else now[1]) != version:
            raise Changed
        self.asking(name, lambda: self.filesystem.pipe_file(self.place(name), content))

    def upload(self, name: str, path: Path) -> None:
        """Write a file whose name has the digest of its content, once; return at once where it is there already."""
        size = path.stat().st_size

        def put() -> None:
            if self.size_of(name) != size:
                self.filesystem.put_file(str(path), self.place(name))
                self._require_size(name, size)

        self.asking(name, put)

    def size_of(self, name: str) -> int | None:
        """Return the bytes of an object; None: there is none. To be called within `asking`."""
        self.filesystem.invalidate_cache()
        try:
            return int(self.filesystem.info(self.place(name))["size"])
        except FileNotFoundError:
            return None

    def _require_size(self, name: str, size: int) -> None:
        if (found := self.size_of(name)) != size:
            raise StorageError(
                f"{self.shown}/{name} has {found} bytes, expected {size}: something else was put there. Delete it and "
                "run the same command again"
            )

    def download(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object.

        Raises:
            Gone: there is no such object.
        """

        def ask() -> bytes:
            content: bytes = self.filesystem.cat_file(self.place(name), start=start, end=stop)
            if len(content) != stop - start:
                raise Transient(f"{self.shown}/{name}: expected {stop - start:,} bytes, received {len(content):,}")
            return content

        return self.asking(name, ask) if stop > start else b""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone already count as deleted."""
        for name in names:

            def remove(name: str = name) -> None:
                if self.size_of(name) is not None:
                    self.filesystem.rm_file(self.place(name))

            self.asking(name, remove)

    def abort_uploads(self) -> int:
        """Give up uploads that ended runs left half; return how many. Storages without such have none."""
        return 0

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn what fsspec and the libraries behind it raise into our errors."""
        what = f"{self.shown}/{name}" if name else self.shown
        try:
            yield
        except (Transient, Gone, Changed, ShardsError):
            raise
        except ImportError as error:
            raise StorageError(
                f"{what} needs a package that is not installed ({error}). For s3:// it is s3fs: "
                "pip install 'everytoken[s3]'"
            ) from None
        except Exception as error:
            raise _meaning(what, error) from error


_NO_LOGIN = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError")


def answer_in(error: BaseException) -> tuple[str, int]:
    """Return code and HTTP status of what S3 answered; ("", 0) for other errors."""
    for one in (error, error.__cause__):
        answer = getattr(one, "response", None)
        if isinstance(answer, Mapping):
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(answer.get("Error", {}).get("Code", "")), int(status)
    return "", 0


def _meaning(what: str, error: Exception) -> Exception:
    code, status = answer_in(error)
    said = redacted(f"{type(error).__name__}: {error}")
    if code == "NoSuchBucket":
        return StorageError(f"{what}: there is no such bucket. Make it, or correct the URL")
    if code in ("PreconditionFailed", "412") or status == 412:
        return Changed()
    if code == "NoSuchUpload":
        return Transient(f"{what}: another run ended the upload")
    if isinstance(error, FileNotFoundError):
        return Gone(what)
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_LOGIN or status in (401, 403):
        return StorageError(
            f"access to {what} is denied ({said}). Give credentials of the storage: `credentials` of the catalog entry "
            f"(conf/local/credentials.yml), or as its library finds them. {GIVE_IT_BY}"
        )
    is_request = (
        400 <= status < 500 and status not in (408, 409, 425, 429) and code not in ("RequestTimeout", "BadDigest")
    )
    is_ours = isinstance(error, ValueError | TypeError | NotImplementedError) or _errno(error) in _OURS
    if is_request or is_ours:
        return StorageError(f"{what} cannot be read or written ({said}). Check the URL, and what the storage allows")
    return Transient(f"{what}: {said}")


_OURS = (errno.ENOSPC, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


def _errno(error: Exception) -> int | None:
    return error.errno if isinstance(error, OSError) and not answer_in(error)[1] else None
