"""Files and folders that appear under their final name only when they are whole, and one writer a folder.

A name with the suffix ``.tmp`` is a temporary: whoever holds the lock of a folder may delete every temporary in it,
for the process that wrote it is dead. Where several may write, each holds the lock of its own temporary, which the
system frees when it is killed. So the next process that writes the same name removes what the dead left, and nothing of
the living.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from everytoken.locks import locked
from everytoken.shards.errors import StoreBusy

logger = logging.getLogger(__name__)


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
    _remove_dead_of(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with locked(temporary, lambda: os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)):
        try:
            yield temporary
            fsync_file(temporary)
            temporary.replace(path)
            fsync_folder(path.parent)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            temporary.unlink(missing_ok=True)


def _name(error: OSError, path: Path) -> None:
    """Let an error of a write, which names no file, name the one that was to be made."""
    if error.filename is None and error.errno is not None:
        error.filename = str(path)


_left: dict[Path, list[str]] = {}  # temporaries in a folder when this process first wrote there: one listing a folder


def _remove_dead_of(path: Path) -> None:
    """Delete the temporaries of ``path`` whose writers are dead: nobody holds their locks."""
    folder = path.parent.absolute()
    if folder not in _left:
        paths = folder.iterdir() if folder.is_dir() else ()
        _left[folder] = [path.name for path in paths if path.name.endswith(".tmp")]
    for name in [name for name in _left[folder] if _is_temporary(name, path.name)]:
        _left[folder].remove(name)
        _remove_if_dead(folder / name)


def _remove_if_dead(path: Path) -> None:
    try:
        with locked(path, lambda: os.open(path, os.O_RDONLY | os.O_NOFOLLOW), wait=False):
            _delete(path)
    except (BlockingIOError, FileNotFoundError):  # it is being written, or was just removed by another process
        return
    except OSError as error:  # a link, or another user's
        logger.warning("%s was left by a process that ended, and cannot be removed: %s", path, error.strerror)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Give an empty folder ``<name>-*`` in the system's temporary folder; it is removed at the end.

    Those of the same name that killed processes of this user left are removed first.
    """
    place = Path(tempfile.gettempdir())
    for path in place.glob(f"{name}-*"):
        if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid():
            _remove_if_dead(path)
    folder = place / f"{name}-{uuid4().hex}"

    def make() -> int:
        folder.mkdir(mode=0o700)
        return os.open(folder, os.O_RDONLY)

    with locked(folder, make):  # made again where another process took it for a dead one's before it was locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


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
    _remove_dead_of(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    replaced = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")

    def make() -> int:
        temporary.mkdir(parents=True)
        return os.open(temporary, os.O_RDONLY)

    with locked(temporary, make):
        try:
            yield temporary
            for file in sorted(temporary.rglob("*")):
                fsync_folder(file) if file.is_dir() else fsync_file(file)
            fsync_folder(temporary)
            if path.exists():
                path.replace(replaced)
            temporary.replace(path)
            fsync_folder(path.parent)
            shutil.rmtree(replaced, ignore_errors=True)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_temporary(name: str, of: str | None) -> bool:
    stem = ".+" if of is None else re.escape(of)  # the whole name: model.v2 may have a writer
    return re.fullmatch(rf"\.{stem}\.\d+(\.old)?\.tmp", name) is not None


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Delete what dead writers left in ``folder``: the temporaries of ``name``, or all."""
    for path in folder.iterdir():
        if _is_temporary(path.name, name):
            _delete(path)


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
    with _held(folder, False, "is being written by another process, or read for something that one makes"):
        yield


@contextmanager
def readers(folders: Iterable[Path]) -> Iterator[None]:
    """Keep ``folders`` as they are while something is made from them: others may read, none may write.

    Raises:
        StoreBusy: another process writes one of them.
    """
    with ExitStack() as locks:
        for folder in sorted(set(folders)):
            locks.enter_context(_held(folder, True, "is being written by another process"))
        yield


@contextmanager
def _held(folder: Path, shared: bool, doing: str) -> Iterator[None]:
    with ExitStack() as lock:
        try:
            lock.enter_context(locked(folder, wait=False, shared=shared))
        except BlockingIOError:
            raise StoreBusy(
                f"{folder} {doing}. Wait for it to end, or give this run other folders "
                "(globals.yml: data, or the option of the command)."
            ) from None
        yield
