"""The lock of a file or folder that several processes share: flock, which the system frees when its holder dies.

On a file system of one machine every process sees it. A network file system may keep it on one machine, or not at all,
and says so to nobody. So its type is asked (``statfs``), and locks are refused unless the type is one of those below.
Linux alone numbers its types; elsewhere nothing is asked.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

TRUST_VARIABLE = "EVERYTOKEN_LOCKS"
"""Environment variable that says ``trust`` where locks shall be held on any file system; workers inherit it."""

_OF_ONE_MACHINE = {  # statfs(2): f_type
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0xF2F52010: "f2fs",
    0x3153464A: "jfs",
    0x52654973: "reiserfs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0xF15F: "ecryptfs",
    0x7366746E: "ntfs3",
    0x2011BAB0: "exfat",
    0x4D44: "vfat",
}
_OF_THE_NETWORK = {
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x00C36400: "ceph",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x5346414F: "afs",
    0x20030528: "orangefs",
    0x01021997: "9p",
    0x65735546: "fuse",
}


class LocksRefused(Exception):
    """A file system is not known to keep locks for all processes; the message has its type and a remedy."""


def require_locks(path: Path) -> str:
    """Return the type of the file system of a file or folder that exists, which keeps locks.

    Raises:
        LocksRefused: it is a network file system, or of an unknown type, and locks are not trusted.
        OSError: there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _require_locks(descriptor, path)
    finally:
        os.close(descriptor)


def _require_locks(descriptor: int, path: Path) -> str:
    number = file_system_type(descriptor)
    if number is None:
        return "not numbered on this system"
    if (name := _OF_ONE_MACHINE.get(number)) is not None:
        return name
    name = _OF_THE_NETWORK.get(number, f"unknown, {number:#x}")
    if os.environ.get(TRUST_VARIABLE) == "trust":
        return f"{name}, trusted"
    raise LocksRefused(
        f"{path} is on a file system of the type {name}, which may keep the locks of one process from another: two "
        "runs could write the same files. Put data and raw (globals.yml) on a disk of this machine. If only one run "
        f"at a time writes there, set locks: trust (globals.yml), or export {TRUST_VARIABLE}=trust."
    )


def file_system_type(descriptor: int) -> int | None:
    """Return the number of the type of an open file's file system (statfs(2), ``f_type``); None if not on Linux.

    Raises:
        OSError: the system does not say.
    """
    if sys.platform != "linux":
        return None
    told = (ctypes.c_long * 32)()  # struct statfs has 120 bytes, and f_type is the first of its words
    if _libc().fstatfs(descriptor, ctypes.byref(told)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(told[0]) & 0xFFFFFFFF


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


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
        LocksRefused: the file system is not known to keep locks.
        OSError: it cannot be opened.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDONLY) if opened is None else opened()
        try:
            _require_locks(descriptor, path)
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
