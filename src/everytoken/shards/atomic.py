"""Files and folders that appear under their final name only when they are whole, and one writer a folder.
 A name with the suffix ``.tmp`` is a temporary: whoever holds the lock of a folder may delete every temporary in it,
for the process that wrote it is dead.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from everytoken.shards.errors import StoreBusy


def fsync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the bytes of ``path`` durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same folder; on success fsync it and rename it to ``path``, else remove it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        fsync_file(temporary)
        temporary.replace(path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link_file(source: Path, target: Path) -> None:
    """Let ``target``, which is not there yet, be the file ``source`` too: a hard link, or a copy where none can be."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:  # another file system, or one without links
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder beside ``path``; on success fsync all in it and let it take the place of ``path``.

    A crash between the two renames leaves no ``path``: then the folder is missing, never half.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            fsync_folder(file) if file.is_dir() else fsync_file(file)
        fsync_folder(temporary)
        replaced = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        if path.exists():
            path.replace(replaced)
        temporary.replace(path)
        fsync_folder(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Delete what dead writers left in ``folder``: the temporaries of ``name``, or all."""
    stem = ".+" if name is None else re.escape(name)  # the whole name: model.v2 may have a writer
    for path in folder.iterdir():
        if re.fullmatch(rf"\.{stem}\.\d+(\.old)?\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def lock_folder(folder: Path) -> Path:
    """Return the folder beside ``folder`` that carries its lock; for a folder that is itself replaced when written."""
    lock = folder.with_name(f".{folder.name}.lock")
    lock.mkdir(exist_ok=True)
    return lock


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder`` (flock on the folder itself: no lock file stays behind, a dead owner frees it).

    Raises:
        StoreBusy: another process writes or reads it.
    """
    with _locked(folder, fcntl.LOCK_EX, "is being written by another process, or read for something that one makes"):
        yield


@contextmanager
def readers(folders: Iterable[Path]) -> Iterator[None]:
    """Keep ``folders`` as they are while something is made from them: others may read, none may write.

    Raises:
        StoreBusy: another process writes one of them.
    """
    with ExitStack() as locks:
        for folder in sorted(set(folders)):
            locks.enter_context(_locked(folder, fcntl.LOCK_SH, "is being written by another process"))
        yield


@contextmanager
def _locked(folder: Path, kind: int, doing: str) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"{folder} {doing}. Wait for it to end, or give this run other folders (globals.yml: data)."
            ) from None
        yield
    finally:
        os.close(descriptor)
