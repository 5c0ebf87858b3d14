"""Digests that upstreams tell of their files, and the files that list them (as ``sha256sum`` writes them).

A digest is ``sha256:<hex>`` of the bytes, or ``git-sha1:<hex>``: git's name of a blob, SHA-1 over the word ``blob``,
the size and the bytes, which is all that the hub tells of files it keeps in git itself.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import BinaryIO

from everytoken.corpus.errors import UpstreamError

_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)", re.DOTALL)
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
_READ = 1 << 20


def content_digest(stream: BinaryIO, algorithm: str, size: int) -> str:
    """Return the digest, as ``<algorithm>:<hex>``, of what ``stream`` gives from where it stands.

    Args:
        size: how many bytes there are; git names a blob by it too.
    """
    if algorithm == "git-sha1":
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    elif algorithm == "sha256":
        digest = hashlib.sha256()
    else:
        raise ValueError(f"digest algorithm must be sha256 or git-sha1, found {algorithm!r}")
    while block := stream.read(_READ):
        digest.update(block)
    return f"{algorithm}:{digest.hexdigest()}"


def algorithm_of(digest: str) -> str:
    """Return what stands before the colon."""
    return digest.partition(":")[0]


def parse_checksums(content: bytes, where: str) -> dict[str, str]:
    r"""Return ``sha256:<hex>`` by relative path from lines ``<sha256 hex>  <path>`` or ``<sha256 hex> *<path>``.

    A line that begins with a backslash has ``\\``, ``\n`` and ``\r`` in its path for the characters they mean. A
    leading ``./`` is no part of a path. Lines that begin with ``#`` are comments.

    Raises:
        UpstreamError: a line of another form, a path that is absolute or has ``..``, or a path with two digests.
    """
    found: dict[str, str] = {}
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, raw in enumerate(lines, start=1):
        if raw.startswith(b"#"):
            continue
        try:
            line = _LINE.fullmatch(raw.decode("utf-8"))
        except UnicodeDecodeError:
            line = None
        if line is None:
            raise _malformed(where, number, raw)
        escaped, digest, name = line.groups()
        if escaped:
            if re.search(r"(?<!\\)(\\\\)*\\([^\\nr]|$)", name):
                raise _malformed(where, number, raw)
            name = re.sub(r"\\[\\nr]", lambda escape: _ESCAPES[escape.group()], name)
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or name.endswith("\r"):
            raise _malformed(where, number, raw)
        relative, told = path.as_posix(), f"sha256:{digest.lower()}"
        if found.setdefault(relative, told) != told:
            raise UpstreamError(
                f"{where}, line {number}: {relative} is listed with {told}, an earlier line has {found[relative]}. "
                f"Write the checksum file again (sha256sum), with each path once."
            )
    return found


def _malformed(where: str, number: int, raw: bytes) -> UpstreamError:
    return UpstreamError(
        f"{where}, line {number}: expected 64 hex digits, two spaces (or ' *') and a relative path, as sha256sum "
        f"writes them, with \\n at the end of the line, found {raw[:200]!r}. Write the file again with sha256sum in "
        f"the folder that is the root."
    )
