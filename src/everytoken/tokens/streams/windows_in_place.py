"""Files with a row for each window, whose rows several processes write where they belong: a ``.bin``, arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.shards import fsync_file
from everytoken.tokens.streams.megatron import stored_dtype, stored_ids, with_name, write_window_index


@dataclass(frozen=True)
class WindowsInPlace:
    """The windows of ``prefix.bin`` and arrays next to it, for any process.

    Attributes:
        arrays: int32 (windows,), files by name.
    """

    prefix: Path
    window: int
    dtype: np.dtype[Any]
    arrays: tuple[str, ...]

    def write(self, first: int, windows: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Write the windows ``first``, ``first + 1``, ..., (n, window), and their values in each array, (n,).

        Raises:
            StreamError: an id that the stored type cannot hold.
        """
        stored = stored_ids(self.prefix, windows, self.dtype)
        self._write(with_name(self.prefix, ".bin"), first * self.window * self.dtype.itemsize, stored)
        for name in self.arrays:
            path = self.prefix.with_name(name)
            self._write(path, _header_bytes(path) + first * 4, np.ascontiguousarray(values[name], "<i4"))

    def _write(self, path: Path, offset: int, rows: np.ndarray) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(rows.data)


@contextmanager
def open_windows_in_place(
    prefix: Path, window: int, dtype: Any, count: int, arrays: tuple[str, ...]
) -> Iterator[WindowsInPlace]:
    """Give the rows of ``count`` windows to write; when the block ends, write ``prefix.idx``. All files are fsynced.

    Args:
        window: tokens of a window.
        dtype: uint16 or uint32, that of the ids.
        arrays: names of the arrays next to the stream.
    """
    stored, path = stored_dtype(dtype), with_name(prefix, ".bin")
    with path.open("wb") as file:
        file.truncate(count * window * stored.itemsize)
    for name in arrays:
        with prefix.with_name(name).open("wb") as file:
            header = {"descr": "<i4", "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * 4)
    yield WindowsInPlace(prefix, window, stored, arrays)
    for written in (path, *(prefix.with_name(name) for name in arrays)):
        fsync_file(written)
    write_window_index(prefix, count, window, stored)


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return file.tell()
