"""A CRC-32 of every window of a stream: where a stream differs is found window by window, without its bytes.

``window_crc32.npy``, uint32 (windows,): `zlib.crc32` of the bytes of each window in ``.bin``, 4 bytes a window. It
finds accidents and edits; that nobody meant to deceive is for the SHA-256 of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from isal import isal_zlib  # the same CRC-32 as zlib's, several times as fast
from numpy.lib.format import open_memmap

from everytoken.provenance.errors import ProvenanceError

CHECKSUMS_FILE = "window_crc32.npy"

_READ = 4 << 20


def window_checksums(path: Path, window_bytes: int) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the CRC-32 of the windows of a file in order, uint32 (n,) at a time; 4 MiB of it are in memory.

    Args:
        path: ``.bin`` of a stream of windows.

    Raises:
        ProvenanceError: the file does not end where a window ends.
    """
    size = path.stat().st_size
    if size % window_bytes:
        raise ProvenanceError(f"{path} has {size:,} bytes, which are not whole windows of {window_bytes:,} bytes")
    at_once = max(1, _READ // window_bytes) * window_bytes
    buffer = memoryview(bytearray(min(at_once, size)))
    with path.open("rb") as file:
        while read := file.readinto(buffer):
            yield np.fromiter(
                (isal_zlib.crc32(buffer[at : at + window_bytes]) for at in range(0, read, window_bytes)),
                np.uint32,
                read // window_bytes,
            )


def write_window_checksums(stream: Path, window_bytes: int, path: Path) -> None:
    """Write the checksums of the windows of ``stream`` to ``path``, as they are computed.

    Raises:
        ProvenanceError: the file does not end where a window ends.
    """
    checksums = open_memmap(path, "w+", np.dtype("<u4"), (stream.stat().st_size // window_bytes,))
    done = 0
    for some in window_checksums(stream, window_bytes):
        checksums[done : done + len(some)] = some
        done += len(some)
    checksums.flush()
