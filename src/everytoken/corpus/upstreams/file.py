"""One file of a source: opened where it lies, and fetched first when it is not on this machine yet."""

from __future__ import annotations

import errno
import functools
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from everytoken.corpus.errors import RowError
from everytoken.corpus.upstreams.checksums import algorithm_of, content_digest
from everytoken.corpus.upstreams.fetch import Listed, Partial, discard, fetch, is_at_hand, known_digest
from everytoken.corpus.upstreams.remotes import REMOTE, HubRemote, Remote, UrlRemote
from everytoken.corpus.upstreams.retries import FetchError

PLAN_AGAIN = "run the pipeline ingestion again, which plans the files as they are"
"""Remedy for a file that is not the planned one."""

_DAMAGE = (EOFError, OSError, UnicodeDecodeError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, pa.ArrowException)
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_PUT_BACK = "Put the file back where it was (or make it readable), or make the list of files again."
_GONE = "Run again (it is fetched again), and see that nothing else removes files there."
_STORE = "Free space, or make the folder writable, and run again: what was fetched so far is not fetched again."
_NAME = "The name does not fit into the folder for fetched files: choose other files by upstream.pattern."
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)  # too long, or a folder's name too


class FileStatus(NamedTuple):
    """What tells a file that was written to, or another one in its place, from the file that was there."""

    size: int
    modified_ns: int
    inode: int


class UpstreamFile(NamedTuple):
    """A file of a source: its path inside the upstream, and where it is on this machine.

    ``member`` is the path inside the zip file at ``location`` for a wheel, else None. ``pinned`` is the digest that
    the upstream itself tells (``sha256:<hex>`` or ``git-sha1:<hex>``), ``size`` the bytes that it tells; None where it
    tells nothing. ``remote`` says how the file is fetched to ``location``; None for files of this machine.
    """

    source: str
    path: str
    location: Path
    member: str | None
    pinned: str | None = None
    size: int | None = None
    remote: Remote | None = None

    def open(self) -> io.BufferedReader:
        """Open the file's bytes, fetched first when need be; a member is read inside its zip file, never extracted.

        Raises:
            RowError: the file is not there and cannot be fetched, cannot be opened, or is no zip file with the member.
        """
        self._bring()
        try:
            if self.member is None:
                return io.BufferedReader(io.FileIO(self.location))
            return _MemberFile(zipfile.ZipFile(self.location), self.member)
        except OSError as error:
            self._not_there(error)
        except (zipfile.BadZipFile, KeyError) as error:
            reason = f"{self.location} is no zip file that holds it ({type(error).__name__}: {error})"
            raise RowError(self.source, self.path, None, reason, _REFETCH) from None

    def status(self) -> FileStatus:
        """Return the status of the file (of the wheel for a member) as it is on this machine; nothing is fetched.

        Raises:
            RowError: it is not there, or no longer there.
        """
        try:
            status = self.location.stat()
        except OSError as error:
            self._not_there(error)
        return FileStatus(status.st_size, status.st_mtime_ns, status.st_ino)

    def digest(self, algorithm: str = "sha256") -> str:
        """Return the digest of the file's bytes (the member's own, not the wheel's) as ``<algorithm>:<hex>``."""
        with self.open() as file, damage_named(self, file):
            return content_digest(file, algorithm, 0 if algorithm == "sha256" else _size_of(file))

    def planned_digest(self) -> str:
        """Return the digest that the upstream tells of a remote file; of a file of this machine that of its bytes.

        A remote file without one is fetched, unless that was done before for the version that is listed now (an ETag,
        digest or time): the digest was noted then, and the copy need not be there any more. Where the server tells no
        version, the file is fetched for every plan for which no copy of the listed size is there, and that copy stays
        until the rows of the file are read.

        Raises:
            RowError: the bytes of a file of this machine are not what its checksum file says.
        """
        if self.remote is not None:
            told = self.pinned or known_digest(self.location, self._listed())
            if told is not None:
                return told
        found = self.digest()
        if self.pinned not in (None, found):
            reason = f"the checksum file says {self.pinned}, the file has {found}"
            raise RowError(self.source, self.path, None, reason, "Put the right file back, or correct the checksums.")
        return found

    def require(self, digest: str) -> FileStatus:
        """Return the status of the file once its bytes have ``digest``.

        A copy that has another one is damaged or out of date: it is fetched again, once. A digest is taken once a
        process while the status stays: shards that are ranges of one file share it.

        Raises:
            RowError: the bytes have another digest.
        """
        self._bring()
        status = self.status()  # before the digest: no change between two readings of the file goes unseen
        found = _digest_of(self, algorithm_of(digest), status)
        if found != digest and self.remote is not None:
            self.discard()
            self._bring()
            status = self.status()
            found = _digest_of(self, algorithm_of(digest), status)
        if found != digest:
            expected = digest.replace("sha256:", "SHA-256 ").replace("git-sha1:", "git SHA-1 ")
            reason = f"the file has changed since the shard plan: expected {expected}, found {found.partition(':')[2]}"
            raise RowError(self.source, self.path, None, reason, f"Put the planned file back, or {PLAN_AGAIN}.")
        return status

    def discard(self) -> None:
        """Remove the copy of a remote file; it is fetched when it is opened again. Files of this machine stay."""
        if self.remote is not None:
            discard(self.location)

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` takes; it says where the file is on this machine, and holds no secrets."""
        remote = None if self.remote is None else self.remote.model_dump(mode="json", exclude_none=True)
        return {**self._asdict(), "location": str(self.location), "remote": remote}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UpstreamFile:
        """Return the file that `to_json` was taken of."""
        remote = None if value["remote"] is None else REMOTE.validate_python(value["remote"])
        return cls(**{**value, "location": Path(value["location"]), "remote": remote})

    def _bring(self) -> None:
        """Fetch the file unless it is at hand."""
        if self.remote is None:
            return
        remote, listed = self.remote, self._listed()
        try:
            if not is_at_hand(self.location, listed):
                fetch(self.location, listed, lambda stream: _download(remote, self.path, self.size, stream))
        except FetchError as error:
            raise RowError(self.source, self.path, None, error.reason, error.remedy) from None
        except OSError as error:
            reason = f"it cannot be stored at {self.location} ({type(error).__name__}: {error.strerror or error})"
            remedy = _NAME if error.errno in _NAME_ERRORS else _STORE
            raise RowError(self.source, self.path, None, reason, remedy) from None

    def _listed(self) -> Listed:
        return Listed(self.size, self.pinned, self.remote.version if isinstance(self.remote, UrlRemote) else None)

    def _not_there(self, error: OSError) -> NoReturn:
        reason = f"it cannot be opened at {self.location} ({type(error).__name__}: {error.strerror})"
        remedy = _PUT_BACK if self.remote is None else _GONE
        raise RowError(self.source, self.path, None, reason, remedy) from None


def _download(remote: Remote, path: str, size: int | None, stream: Partial) -> None:
    """Append to ``stream`` what follows the bytes that it has (see `fetch.fetch`).

    The client libraries are imported here: workers that read local files start without them.
    """
    if isinstance(remote, HubRemote):
        from everytoken.corpus.upstreams import hub_client

        hub_client.download_from_hub("dataset", remote.dataset, remote.revision, path, size, stream)
    else:
        from everytoken.corpus.upstreams import urls

        urls.download_from_url(remote, path, size, stream)


@contextmanager
def damage_named(file: UpstreamFile, stream: io.BufferedIOBase) -> Iterator[None]:
    """Turn what reads, decompressors and parquet raise on damaged bytes into a `RowError` with the byte offset."""
    try:
        yield
    except _DAMAGE as error:
        place = f"near byte {stream.tell()} of the file" if not stream.closed else "in the file"
        reason = f"truncated or corrupt {place} ({type(error).__name__}: {error})"
        raise RowError(file.source, file.path, None, reason, _REFETCH) from None


@functools.lru_cache(maxsize=64)
def _digest_of(file: UpstreamFile, algorithm: str, status: FileStatus) -> str:
    return file.digest(algorithm)


def _size_of(file: io.BufferedReader) -> int:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


class _MemberFile(io.BufferedReader):
    """A member of a zip file that closes the zip file with itself."""

    def __init__(self, archive: zipfile.ZipFile, member: str) -> None:
        self._archive = archive
        super().__init__(archive.open(member))  # type: ignore[arg-type]  # ZipExtFile has read, readinto, seek, tell

    def close(self) -> None:
        super().close()
        self._archive.close()
