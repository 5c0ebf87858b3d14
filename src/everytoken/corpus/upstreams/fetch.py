"""Fetch one file to its place: whole and checked, or not there.

Bytes are gathered under a temporary name beside the place. That file carries a lock while it is written, so two workers
that want the same file fetch it once, and a dead one holds up nobody. What it had fetched lies there: the next one
goes on from its last byte when the whole can be checked by a digest, else it starts anew, because nothing would tell a
half that the disk lost. A server that cannot go on from a byte sends the file from its start again, a bounded number of
times. Then size and digest are checked, the bytes are flushed to disk, and the file gets its name.

A copy of a file that can change at its place has a note beside it: what the listing told of it, and its digest. When
the listing tells something else, the copy is out of date and fetched again. The note stays when the copy is discarded:
as long as the listing tells the same version, the digest is known without the file.

Both are named by a digest of the file's name, which may itself be as long as a name can be.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from everytoken.corpus.upstreams.checksums import algorithm_of, content_digest
from everytoken.corpus.upstreams.retries import ATTEMPTS, FetchError, retrying
from everytoken.locks import locked
from everytoken.shards import fsync_folder, value_digest, write_text


class Listed(NamedTuple):
    """What the listing told of a remote file.

    ``pinned`` is its digest, or None. ``version`` is what changes with its content when the place does not, or None
    when the place itself stands for one content (a commit of a dataset).
    """

    size: int | None
    pinned: str | None
    version: str | None


class Partial(io.FileIO):
    """What came so far of a file, open for reading and writing."""

    restarts = 0

    def end(self) -> int:
        """Return how many bytes came; the next ones are written after them."""
        return self.seek(0, os.SEEK_END)

    def write(self, block: Any) -> int:
        """Write the whole block: an unbuffered file may take a part only."""
        rest = memoryview(block)
        while rest:
            rest = rest[super().write(rest) :]
        return len(block)

    def start_anew(self) -> None:
        """Give up what came, as the server cannot go on from there; return at once when nothing came.

        Raises:
            FetchError: that happened `retries.ATTEMPTS` times already.
        """
        if self.end() == 0:
            return
        self.truncate(0)
        self.seek(0)
        self.restarts += 1
        if self.restarts > ATTEMPTS:
            raise FetchError(
                f"the server gives the file only from its start, and the transfer broke off {self.restarts} times",
                "Run again when the network is better, or fetch the file by other means and read it from a folder.",
            )


def is_at_hand(location: Path, listed: Listed) -> bool:
    """Return whether the file at ``location`` is a copy of what is listed, by size and version (not by digest)."""
    try:
        if listed.size is not None and location.stat().st_size != listed.size:
            return False
        if listed.version is None:
            return location.is_file()
        return location.is_file() and _noted_digest(location, listed) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def known_digest(location: Path, listed: Listed) -> str | None:
    """Return the digest of a file that was fetched before, also when its copy was discarded.

    None for another version than is listed now, and where the listing tells no version: then the same size may be
    another content.
    """
    return _noted_digest(location, listed) if listed.version else None


def fetch(location: Path, listed: Listed, download: Callable[[Partial], None]) -> None:
    """Make the file at ``location`` be there, as it is listed; return at once when it is.

    Args:
        download: appends what follows the bytes that a stream has, or the whole file again where the server cannot
            resume (`Partial.start_anew`). It raises `Transient` when the transfer broke off: another call resumes.

    Raises:
        FetchError: it cannot be had, or what came is not what is listed; then nothing is left.
        OSError: it cannot be stored.
    """
    location.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(location, f"{value_digest(list(listed))[:16]}.partial")
    with (
        locked(partial, lambda: os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)) as descriptor,
        Partial(descriptor, "r+", closefd=False) as stream,
    ):
        if is_at_hand(location, listed):  # another worker fetched it while this one waited
            partial.unlink()
            return
        try:
            _gather(stream, listed, download)
        except FetchError:
            if stream.end() == 0:
                partial.unlink()
            raise
        except _NotAsListed as error:
            partial.unlink()
            raise FetchError(str(error), _NOT_AS_LISTED) from None
        os.fsync(stream.fileno())
        digest = listed.pinned
        if digest is None and listed.version is not None:
            stream.seek(0)
            digest = content_digest(stream, "sha256", 0)
        partial.replace(location)
        fsync_folder(location.parent)
        if listed.version is not None:  # last: a copy without it, or with an older one, is fetched again
            write_text(_beside(location, _NOTE), json.dumps({"listed": list(listed), "digest": digest}))
    _remove_dead_partials(location)


def discard(location: Path) -> None:
    """Remove a fetched copy; the note of its version and digest stays."""
    location.unlink(missing_ok=True)


class _NotAsListed(Exception):
    """The whole file came, and it is not what is listed."""


_NOTE = "listed.json"
_NOT_AS_LISTED = (
    "Run again; if it stays so, the file was changed or damaged at its origin, or something between here and there "
    "(a proxy, a mirror) changes it: nothing of it was kept."
)


def _gather(stream: Partial, listed: Listed, download: Callable[[Partial], None]) -> None:
    """Fill ``stream`` with the whole file; a resumed one that turns out wrong is fetched once more from its start."""
    resumed = stream.end() if listed.pinned is not None else 0
    if listed.size is not None and resumed > listed.size:
        resumed = 0
    while True:
        stream.truncate(resumed)
        retrying(lambda: download(stream), progress=stream.end)
        try:
            _require_listed(stream, listed)
        except _NotAsListed:
            if not resumed:
                raise
            resumed = 0
        else:
            return


def _require_listed(stream: Partial, listed: Listed) -> None:
    size = stream.end()
    if listed.size is not None and size != listed.size:
        raise _NotAsListed(f"expected {listed.size:,} bytes as listed, fetched {size:,}")
    if listed.pinned is not None:
        stream.seek(0)
        found = content_digest(stream, algorithm_of(listed.pinned), size)
        if found != listed.pinned:
            raise _NotAsListed(f"what was fetched has another digest: expected {listed.pinned}, found {found}")


def _remove_dead_partials(location: Path) -> None:
    """Remove what was fetched of other versions of the file, unless somebody is fetching one."""
    for path in location.parent.glob(_beside(location, "*.partial").name):
        try:
            with locked(path, wait=False):
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            continue


def _noted_digest(location: Path, listed: Listed) -> str | None:
    """Return the digest in the note beside ``location`` when it is of what is listed now."""
    try:
        note = json.loads(_beside(location, _NOTE).read_text(encoding="utf-8"))
        return str(note["digest"]) if note["listed"] == list(listed) else None
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return None


def _beside(location: Path, suffix: str) -> Path:
    return location.with_name(f".{value_digest(location.name)[:16]}.{suffix}")
