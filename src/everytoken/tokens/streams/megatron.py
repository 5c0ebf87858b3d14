r"""Megatron's ``.bin``/``.idx`` pair: tokens one after the other, and where each sequence lies.

``.bin`` is raw little-endian tokens. ``.idx`` is, little-endian: ``MMIDIDX\0\0``, u64 version 1, u8 dtype
code, u64 number of sequences n, u64 number of document boundaries n + 1, int32 lengths (n), int64 byte
pointers (n), int64 document index 0..n. Megatron has no code for uint32, so those ids are stored as int32
with a range check. Our streams have one sequence a window and one document a sequence. Both files are written
and read piece by piece: 4e8 windows have an index of 8 GB.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from everytoken.shards import is_here, size_here
from everytoken.shards.remote import map_values
from everytoken.tokens.errors import StreamError

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size
"""Of an index, before the lengths of its sequences."""

# Megatron's DType codes for the integer types; we write uint16 and int32.
_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_CODES = {np.dtype(kind): code for code, kind in _DTYPES.items()}
_CHUNK = 1 << 20  # entries of the index at a time


def stored_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the type in which ids of ``dtype`` are stored: uint16 for uint16, int32 for uint32.

    Raises:
        StreamError: ids of that type are not written by this project.
    """
    kind = np.dtype(dtype)
    if kind == np.uint16:
        return np.dtype("<u2")
    if kind in (np.uint32, np.int32):
        return np.dtype("<i4")
    raise StreamError(f"tokens of type {kind} cannot be written as a Megatron stream; expected uint16 or uint32")


class WindowWriter:
    """Write windows of one length to ``prefix.bin``, and ``prefix.idx`` when all are there.

    A context manager. The index is written last, and only when the block ends without an error: a ``.bin``
    without ``.idx`` is unfinished. Both files are fsynced.
    """

    def __init__(self, prefix: Path, window: int, dtype: Any) -> None:
        """Prepare for windows of ``window`` tokens; ``dtype`` (uint16 or uint32) is that of the ids."""
        self.windows = 0
        self._prefix, self._window, self._dtype = prefix, window, stored_dtype(dtype)
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = with_name(self._prefix, ".bin").open("w+b")
        return self

    def write(self, windows: np.ndarray) -> None:
        """Append windows, an integer array of shape (n, window).

        Raises:
            StreamError: another shape, or an id that the stored type cannot hold.
        """
        stored = self._stored(windows)
        self._opened().write(stored.data)
        self.windows += len(stored)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise StreamError(f"{self._prefix}: the writer is not open; use it in a with statement")
        return self._file

    def _stored(self, windows: np.ndarray) -> np.ndarray:
        if windows.ndim != 2 or windows.shape[1] != self._window:
            raise StreamError(f"{self._prefix}: windows of shape {windows.shape}, expected (n, {self._window})")
        return stored_ids(self._prefix, windows, self._dtype, f" window {self.windows} or later")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        if kind is None:
            write_window_index(self._prefix, self.windows, self._window, self._dtype)


def stored_ids(prefix: Path, ids: np.ndarray, dtype: np.dtype[Any], where: str = "") -> np.ndarray:
    """Return ids in the type in which they are stored, contiguous.

    Args:
        where: which windows they are, for the message.

    Raises:
        StreamError: the type cannot hold one.
    """
    if ids.size and ids.dtype != np.uint16:
        low, high, most = int(ids.min()), int(ids.max()), int(np.iinfo(dtype).max)
        if low < 0 or high > most:
            raise StreamError(
                f"{prefix}{where}: token id {high if high > most else low} does not fit in {dtype.name} (0 to {most}); "
                "the vocabulary is larger than the stream's type allows"
            )
    return np.ascontiguousarray(ids, dtype)


def index_header(count: int, dtype: np.dtype[Any]) -> bytes:
    """Return the first bytes of an index of ``count`` sequences, each a document; ``dtype`` is that of the stream."""
    return _HEADER.pack(_MAGIC, _VERSION, _CODES[dtype], count, count + 1)


def write_window_index(prefix: Path, count: int, window: int, dtype: np.dtype[Any]) -> None:
    """Write ``prefix.idx`` of ``count`` windows, fsynced; ``dtype`` is that of the stream."""
    with with_name(prefix, ".idx").open("wb") as file:
        file.write(index_header(count, dtype))
        for start, stop in _chunks(count):
            file.write(np.full(stop - start, window, "<i4").data)
        for start, stop in _chunks(count):
            file.write((np.arange(start, stop, dtype="<i8") * (window * dtype.itemsize)).data)
        for start, stop in _chunks(count + 1):
            file.write(np.arange(start, stop, dtype="<i8").data)
        file.flush()
        os.fsync(file.fileno())


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, _CHUNK):
        yield start, min(count, start + _CHUNK)


def with_name(prefix: Path, suffix: str) -> Path:
    """Append ``suffix`` to the name (`Path.with_suffix` would replace what follows a dot in it)."""
    return prefix.with_name(prefix.name + suffix)


@dataclass(frozen=True, eq=False)
class IndexedTokens:
    """A stream on disk, memory-mapped: nothing is read before it is asked for.

    Attributes:
        prefix: path without ``.bin`` / ``.idx``.
        tokens: all tokens, (total,).
        lengths: tokens of each sequence, int32 (n,).
        pointers: byte offset of each sequence, int64 (n,).
        document_index: first sequence of each document, and n: int64 (documents + 1,).
    """

    prefix: Path
    tokens: np.ndarray
    lengths: np.ndarray
    pointers: np.ndarray
    document_index: np.ndarray

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    def __getitem__(self, i: int) -> np.ndarray:
        """Return the tokens of sequence ``i``, a view, (length,)."""
        if not 0 <= i < len(self):
            raise IndexError(f"{self.prefix} has {len(self)} sequences, asked for number {i}")
        start = int(self.pointers[i]) // self.tokens.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[i])]

    def windows(self) -> np.ndarray:
        """Return the tokens as (n, window) when all sequences have one length, a view.

        Only sizes and the first and last entries are looked at: `check` reads the whole index.

        Raises:
            StreamError: the sequences have more than one length.
        """
        window = int(self.lengths[0]) if len(self) else 1
        if len(self.tokens) != len(self) * window or (len(self) and int(self.lengths[-1]) != window):
            raise StreamError(
                f"{self.prefix}.idx: {len(self)} sequences with {len(self.tokens)} tokens; the first has "
                f"{window}, so they have not all one length and are no windows"
            )
        return self.tokens.reshape(len(self), window)

    def check(self) -> None:
        """Read the whole index: sequences follow each other without gaps, document boundaries in order.

        Raises:
            StreamError: names the first entry that is wrong, with what was expected and found.
        """
        expected = 0
        for start, stop in _chunks(len(self)):
            sizes = self.lengths[start:stop].astype(np.int64) * self.tokens.dtype.itemsize
            ends = expected + np.cumsum(sizes)
            wrong = np.flatnonzero((self.pointers[start:stop] != ends - sizes) | (sizes < 0))
            if len(wrong):
                i = int(wrong[0])
                raise StreamError(
                    f"{self.prefix}.idx: sequence {start + i} starts at byte "
                    f"{int(self.pointers[start + i])}, expected {int(ends[i] - sizes[i])}"
                )
            expected = int(ends[-1])
        for start, stop in _chunks(len(self.document_index) - 1):
            wrong = np.flatnonzero(np.diff(self.document_index[start : stop + 1]) < 0)
            if len(wrong):
                raise StreamError(f"{self.prefix}.idx: document boundary {start + int(wrong[0]) + 1} goes backwards")


@dataclass(frozen=True, eq=False)
class MegatronIndex:
    """An ``.idx`` file, memory-mapped, of a stream that may be elsewhere; arrays are those of `IndexedTokens`.

    ``dtype`` is the type of the tokens.
    """

    path: Path
    dtype: np.dtype[Any]
    lengths: np.ndarray
    pointers: np.ndarray
    document_index: np.ndarray

    @property
    def end(self) -> int:
        """Bytes of the ``.bin``."""
        return int(self.pointers[-1]) + int(self.lengths[-1]) * self.dtype.itemsize if len(self.lengths) else 0


def open_megatron_index(path: Path) -> MegatronIndex:
    """Open an ``.idx`` file; sizes and the ends of the document index are checked.

    Raises:
        StreamError: it is truncated, or no index of a stream.
    """
    size = size_here(path) or 0
    header = map_values(path, np.dtype("u1"), 0, min(size, _HEADER.size))[:].tobytes()
    if not header.startswith(_MAGIC):
        raise StreamError(f"{path} does not start with {_MAGIC!r} but with {header[:9]!r}: it is no Megatron index")
    if len(header) < _HEADER.size:
        raise StreamError(f"{path} is truncated: {size} bytes, the header alone has {_HEADER.size}; write it again")
    _, version, code, count, boundaries = _HEADER.unpack(header)
    if version != _VERSION:
        raise StreamError(f"{path} has version {version}, expected {_VERSION}")
    if code not in _DTYPES:
        raise StreamError(f"{path} has dtype code {code}, expected one of {sorted(_DTYPES)} (8 is uint16, 4 is int32)")
    wanted = _HEADER.size + 12 * count + 8 * boundaries
    if size != wanted:
        what = "truncated" if size < wanted else "too long"
        raise StreamError(
            f"{path} is {what}: {size} bytes, {count} sequences and {boundaries} boundaries need {wanted}; write it "
            "again"
        )
    documents = map_values(path, np.dtype("<i8"), _HEADER.size + 12 * count, boundaries)
    if not boundaries or int(documents[0]) != 0 or int(documents[-1]) != count:
        raise StreamError(f"{path}: the document index does not run from 0 to {count}; write the stream again")
    return MegatronIndex(
        path,
        np.dtype(_DTYPES[code]).newbyteorder("<"),
        map_values(path, np.dtype("<i4"), _HEADER.size, count),
        map_values(path, np.dtype("<i8"), _HEADER.size + 4 * count, count),
        documents,
    )


def open_indexed(prefix: Path) -> IndexedTokens:
    """Open ``prefix.bin`` and ``prefix.idx`` and check that they belong together.

    Raises:
        StreamError: a file is missing, truncated or of another kind, or their sizes disagree.
    """
    index_path, bin_path = with_name(prefix, ".idx"), with_name(prefix, ".bin")
    for path in (index_path, bin_path):
        if not is_here(path):
            raise StreamError(f"{path} is missing; a stream is a .bin and an .idx file of one name")
    index = open_megatron_index(index_path)
    found, end = size_here(bin_path) or 0, index.end
    if found != end:
        what = "truncated" if found < end else "too long"
        raise StreamError(f"{bin_path} is {what}: {found} bytes, its index ends at byte {end}; write the stream again")
    tokens = map_values(bin_path, index.dtype, 0, end // index.dtype.itemsize)
    return IndexedTokens(prefix, tokens, index.lengths, index.pointers, index.document_index)
