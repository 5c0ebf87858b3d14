"""The lock of a file or folder that several processes share: flock, which the system frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(
    path: Path, opened: Callable[[], int] | None = None, *, wait: bool = True, shared: bool = False
) -> Iterator[int]:
    """Hold the lock of ``path`` and give its descriptor, which is closed at the end.

    Args:
        path: a file or folder. Where it was removed or replaced meanwhile, the one of that name is opened and locked.
        opened: makes and opens it; without it, it must exist.
        wait: for the process that holds the lock.
        shared: with others that read, instead of alone.

    Raises:
        BlockingIOError: another process holds the lock, and ``wait`` is false.
        OSError: it cannot be opened.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDONLY) if opened is None else opened()
        try:
            fcntl.flock(descriptor, kind)
            if is_open_as(descriptor, path):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one that has the name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
