"""Arrays that are written piece by piece, or by several processes, and read by memory map: the files of an index.

A file is what `numpy.save` writes of a one-dimensional array. It is mapped without read-ahead: a question looks at a
few places that are far apart, and pages between them would count as memory.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.shards import is_here
from everytoken.shards.remote import map_npy
from everytoken.system_errors import raise_trouble

_CHUNK = 1 << 20  # entries that are converted at a time


def smallest_type(most: int) -> np.dtype[Any]:
    """Return the smallest unsigned little-endian type of two bytes or more that holds 0..``most``."""
    return np.dtype("<u2" if most < 1 << 16 else "<u4" if most < 1 << 32 else "<u8")


class ArrayWriter:
    """Writes a ``.npy`` file by appending; a context manager. The file is fsynced when the block ends."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.count = 0
        self._path, self._dtype = path, dtype
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b")
        self._write_header()
        return self

    def append(self, values: np.ndarray) -> None:
        """Append values, (n,), which the type must hold."""
        assert self._file is not None, "use it in a with statement"
        for start in range(0, len(values), _CHUNK):
            self._file.write(np.ascontiguousarray(values[start : start + _CHUNK], self._dtype).data)
        self.count += len(values)

    def _write_header(self) -> None:
        assert self._file is not None
        _write_header(self._file, self._dtype, self.count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with self._file as file:
            file.seek(0)
            self._write_header()
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class ArrayInPlace:
    """A ``.npy`` file of ``count`` entries, which several processes write where they belong."""

    path: Path
    dtype: np.dtype[Any]

    @staticmethod
    def make(path: Path, dtype: np.dtype[Any], count: int) -> ArrayInPlace:
        """Make the file, with zeros."""
        with path.open("wb") as file:
            _write_header(file, dtype, count)
            file.truncate(file.tell() + count * dtype.itemsize)
        return ArrayInPlace(path, dtype)

    def write(self, first: int, values: np.ndarray) -> None:
        """Write the entries ``first``, ``first + 1``, ..., (n,), which the type must hold."""
        with self.path.open("r+b") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            file.seek(first * self.dtype.itemsize, os.SEEK_CUR)
            file.write(np.ascontiguousarray(values, self.dtype).data)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)  # leaves room for any number of entries


def write_permutation(permutation: np.ndarray, forward: ArrayWriter, backward: ArrayWriter, first: int = 0) -> None:
    """Append ``first + permutation`` to one file and ``first`` + its inverse to another.

    Args:
        permutation: of 0..n-1, (n,); beside it, one array of n entries of the type of ``backward`` is held.
        first: what is added to each.
    """
    count = len(permutation)
    inverse = np.empty(count, smallest_type(max(0, count - 1)))
    for start in range(0, count, _CHUNK):
        piece = permutation[start : start + _CHUNK]
        inverse[piece] = np.arange(start, start + len(piece))
        forward.append(piece + first)
    for start in range(0, count, _CHUNK):
        backward.append(inverse[start : start + _CHUNK].astype(np.int64) + first)


_TYPES = ("<u2", "<u4", "<u8")


def map_array(path: Path, expected: int) -> np.ndarray:
    """Return the array of a ``.npy`` file, mapped, (expected,).

    Raises:
        ProvenanceError: there is no such file, it is not whole, or has another number or type of entries.
    """
    try:
        if not path.is_file() and is_here(path):
            held = map_npy(path, expected)
            _require_entries(len(held), held.dtype, expected)
            return held
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            (count,), _, dtype = np.lib.format.read_array_header_1_0(file)
            _require_entries(count, dtype, expected)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
            if size != offset + count * dtype.itemsize:
                raise ValueError(f"it has {size} bytes, its {count} entries need {offset + count * dtype.itemsize}")
            if not count:
                return np.empty(0, dtype)  # an empty range cannot be mapped
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except Exception as error:  # a damaged header raises what the parser of Python raises
        raise_trouble(error)
        raise ProvenanceError(
            f"{path} is no file of an index ({error}); run the pipeline that makes it again"
        ) from None
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype, count, offset)


def _require_entries(count: int, dtype: np.dtype[Any], expected: int) -> None:
    if count != expected or dtype.str not in _TYPES:
        raise ValueError(f"it has {count:,} entries of {dtype}, expected {expected:,} of {', '.join(_TYPES)}")
