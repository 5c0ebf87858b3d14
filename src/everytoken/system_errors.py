"""Errors of the operating system in words: what happened, where, and what to do about it.

A full disk or a missing right can meet any read or write. So they are not caught where they happen, but explained
where a command, a run or a worker ends.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

_OPEN_FILES = 4096
_FOLDERS = "choose another folder (globals.yml: data, or the option of the command)"
_AGAIN = "run the same command again: what is whole is kept"


class SystemTrouble(Exception):
    """The operating system refused something; the message says what, where and what to do."""


def explained(error: BaseException) -> str | None:
    """Return what an error of the operating system means; None for other errors, and where our own message says it.

    Args:
        error: as it was raised; the error of the system may be its cause.
    """
    one: BaseException | None = error
    while one is not None and not type(one).__module__.startswith("everytoken."):
        if (code := _code_of(one)) is not None:
            names = [getattr(one, name, None) for name in ("filename", "filename2")]
            place = " and ".join(str(name) for name in names if name is not None)
            return _told(error, one, code, place)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return None


def raise_trouble(error: BaseException) -> None:
    """Raise an error of the system, which says nothing about what is stored, as it is; return for others.

    Who reads stored data calls it before damage is reported.
    """
    if _code_of(error) is not None:
        raise error


def _code_of(error: BaseException) -> int | None:
    """Return the number of the system's error; libraries that write files themselves say it in words alone."""
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno
    is_library = type(error).__module__.split(".")[0] in ("duckdb", "_duckdb", "pyarrow", "safetensors_rust")
    if isinstance(error, ImportError | OSError) or is_library:
        text = str(error)
        return next((code for code in _REMEDIES if os.strerror(code) in text), None)
    return None


def _told(error: BaseException, cause: BaseException, code: int, place: str) -> str:
    said = [] if error is cause else [str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else ""]
    if not place:
        text = str(cause).splitlines()[0] if str(cause) else ""
        place = "" if text in ("", f"[Errno {code}] {os.strerror(code)}") else text
    what = f"{os.strerror(code)} ([Errno {code}]{'' if not place else f', {place}'})"
    return ". ".join(filter(None, [*said, what, _REMEDIES[code](Path(place) if place.startswith("/") else None)]))


def _rights(place: Path | None) -> str:
    found = existing(place or Path.cwd())
    state = found.stat()
    return (
        f"{found} has the mode {state.st_mode & 0o7777:04o} and the owner {state.st_uid}; this process is user "
        f"{os.getuid()}. Give that user the right to it (chmod, chown), or {_FOLDERS}"
    )


def _open_files(_: Path | None) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    beyond = f", which beyond {hard:,} only the administrator can" if 0 <= hard < _OPEN_FILES else ""
    return (
        f"This process may have {soft:,} files open at a time. Raise that in the shell (ulimit -n {_OPEN_FILES}"
        f"{beyond}), and {_AGAIN}"
    )


def _space(place: Path | None) -> str:
    return f"{_what_is_free(place)}. Free some and {_AGAIN}; or {_FOLDERS}. Temporary files go to where TMPDIR says"


def _what_is_free(place: Path | None) -> str:
    """Name the free bytes and files of the disk of a place; a write that fails does not name its file."""
    if place is None:
        return "The system does not name the file: df -h and df -i show which disk has no bytes or files left"
    found = existing(place)
    return f"{shutil.disk_usage(found).free:,} bytes and {os.statvfs(found).f_favail:,} files are free at {found}"


def existing(place: Path) -> Path:
    """Return the nearest folder or file that this user can look at."""
    for path in (place, *place.absolute().parents):
        try:
            path.stat()
        except OSError:
            continue
        return path
    return Path("/")


_REMEDIES: dict[int, Callable[[Path | None], str]] = {
    errno.EACCES: _rights,
    errno.EPERM: _rights,
    errno.EROFS: lambda _: f"The file system can only be read. Mount it for writing, or {_FOLDERS}",
    errno.EMFILE: _open_files,
    errno.ENFILE: lambda _: (
        "All programs together have as many files open as the system allows (sysctl fs.file-max). End some of them, "
        f"and {_AGAIN}"
    ),
    errno.ENOSPC: _space,
    errno.EDQUOT: lambda _: (
        f"The quota of this user is used up (quota -s). Delete something and {_AGAIN}, or {_FOLDERS}"
    ),
    errno.EFBIG: lambda _: (
        "The file would be longer than this process (ulimit -f) or the file system allows. Raise the limit, and "
        f"{_AGAIN}; or {_FOLDERS}"
    ),
    errno.ENAMETOOLONG: lambda _: f"A name on the path has too many bytes. Shorten it, or {_FOLDERS}",
    errno.EIO: lambda _: (
        f"The disk, or the network that it is behind, fails (see dmesg). Check it, and {_AGAIN}; or {_FOLDERS}"
    ),
}
