"""Fetch one file to its place: whole and checked, or not there.

Bytes are gathered under a temporary name beside the place. That file carries a lock while it is written, so two workers
that want the same file fetch it once, and a dead one holds up nobody. What it had fetched lies there: the next one
goes on from its last byte when the whole can be checked by a digest, else it starts anew, because nothing would tell a
half that the disk lost. Then size and digest are checked, the bytes are flushed to disk, and the file gets its name.

A copy of a file whose digest is not pinned has a small file beside it that says what the listing told of it: when the
listing tells something else, the copy is out of date and fetched again.
"""

from __future__ import annotations

import fcntl
import glob
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from everytoken.corpus.upstreams.checksums import algorithm_of, content_digest
from everytoken.corpus.upstreams.retries import FetchError, retrying
from everytoken.shards import fsync_folder, value_digest, write_text


class Listed(NamedTuple):
    """What the listing told of a remote file.

    ``pinned`` is its digest, or None. ``version`` is what changes with its content when the place does not, or None
    when the place itself stands for one content (a commit of a dataset).
    """

    size: int | None
    pinned: str | None
    version: str | None


def is_at_hand(location: Path, listed: Listed) -> bool:
    """Return whether the file at ``location`` is a copy of what is listed, by size and version (not by digest)."""
    try:
        if listed.size is not None and location.stat().st_size != listed.size:
            return False
        if listed.version is None:
            return location.is_file()
        return location.is_file() and json.loads(_beside(location).read_text(encoding="utf-8")) == list(listed)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def fetch(location: Path, listed: Listed, download: Callable[[io.FileIO], None]) -> None:
    """Make the file at ``location`` be there, as it is listed; return at once when it is.

    Args:
        location: its place.
        listed: what it must be.
        download: appends what follows the bytes that a stream has (see `everytoken.corpus.upstreams.remotes.download`).

    Raises:
        FetchError: it cannot be had, or what came is not what is listed; then nothing is left.
        OSError: it cannot be stored.
    """
    location.parent.mkdir(parents=True, exist_ok=True)
    partial = location.with_name(f".{location.name}.{value_digest(list(listed))[:16]}.partial")
    with _sole_writer(partial) as stream:
        if is_at_hand(location, listed):  # another worker fetched it while this one waited
            partial.unlink()
            return
        try:
            _gather(stream, listed, download)
        except FetchError:
            if stream.seek(0, os.SEEK_END) == 0:
                partial.unlink()
            raise
        except _NotAsListed as error:
            partial.unlink()
            raise FetchError(str(error), _NOT_AS_LISTED) from None
        os.fsync(stream.fileno())
        partial.replace(location)
        fsync_folder(location.parent)
        if listed.version is not None:  # last: a copy without it, or with an older one, is fetched again
            write_text(_beside(location), json.dumps(list(listed)))
    _remove_dead_partials(location)


def discard(location: Path) -> None:
    """Remove a fetched copy and what lies beside it."""
    location.unlink(missing_ok=True)
    _beside(location).unlink(missing_ok=True)


class _NotAsListed(Exception):
    """The whole file came, and it is not what is listed."""


_NOT_AS_LISTED = (
    "Run again; if it stays so, the file was changed or damaged at its origin, or something between here and there "
    "(a proxy, a mirror) changes it: nothing of it was kept."
)


def _gather(stream: io.FileIO, listed: Listed, download: Callable[[io.FileIO], None]) -> None:
    """Fill ``stream`` with the whole file; a resumed one that turns out wrong is fetched once more from its start."""
    resumed = stream.seek(0, os.SEEK_END) if listed.pinned is not None else 0
    if listed.size is not None and resumed > listed.size:
        resumed = 0
    while True:
        stream.truncate(resumed)
        retrying(lambda: download(stream), progress=lambda: stream.seek(0, os.SEEK_END))
        try:
            _require_listed(stream, listed)
        except _NotAsListed:
            if not resumed:
                raise
            resumed = 0
        else:
            return


def _require_listed(stream: io.FileIO, listed: Listed) -> None:
    size = stream.seek(0, os.SEEK_END)
    if listed.size is not None and size != listed.size:
        raise _NotAsListed(f"expected {listed.size:,} bytes as listed, fetched {size:,}")
    if listed.pinned is not None:
        stream.seek(0)
        found = content_digest(stream, algorithm_of(listed.pinned), size)
        if found != listed.pinned:
            raise _NotAsListed(f"what was fetched has another digest: expected {listed.pinned}, found {found}")


@contextmanager
def _sole_writer(partial: Path) -> Iterator[io.FileIO]:
    """Open ``partial`` and hold its lock, waiting for whoever has it (a killed process frees it)."""
    while True:
        stream = io.FileIO(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        with stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_open_as(stream, partial):
                yield stream
                return
        # whoever had it renamed or removed it while this one waited


def _is_open_as(stream: io.FileIO, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return False


def _remove_dead_partials(location: Path) -> None:
    """Remove what was fetched of other versions of the file, unless somebody is fetching one."""
    for path in location.parent.glob(f".{glob.escape(location.name)}.{'[0-9a-f]' * 16}.partial"):
        try:
            with path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            continue


def _beside(location: Path) -> Path:
    return location.with_name(f".{location.name}.listed.json")
