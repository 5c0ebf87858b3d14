"""A small disk that can become full: a tmpfs, where this user may mount one, else only a limit for each file."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOMY = 4 << 30


class Disk:
    """The file system of a folder.

    Attributes:
        can_be_full: whether it is a disk of its own, so that `fill` works.
    """

    def __init__(self, folder: Path, *, can_be_full: bool) -> None:
        self._folder, self.can_be_full = folder, can_be_full

    def fill(self, left: int) -> None:
        """Leave so many bytes free."""
        self._resize(shutil.disk_usage(self._folder).used + left)

    def make_room(self) -> None:
        """Make it as large as it was."""
        if self.can_be_full:
            self._resize(_ROOMY)

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self._folder)], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Give an empty disk at a folder that exists, and unmount it at the end."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_ROOMY}", "soak", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield Disk(folder, can_be_full=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def limit_files(process: int, size: int) -> None:
    """Let no file that a running process writes, or one that it starts later, be longer than ``size`` bytes."""
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
