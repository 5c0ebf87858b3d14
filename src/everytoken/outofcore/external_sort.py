"""Records sorted by two 64-bit keys in bounded memory.

While records fit into memory, one sort orders them. When they do not, each goes to the file of a bucket, by the most
significant byte of its keys (an MSD radix sort); then bucket after bucket is read back, and one that does not fit is
distributed by the next byte. What comes out depends on the records alone where no two have both keys alike.

Cost. Memory: ``memory`` bytes. Disk: in ``scratch`` as much as the records take; each is written once and read once a
level, and one level sorts up to about ``memory * 80`` bytes of keys that are hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

_BUCKETS = 256
_LEVELS = 16  # bytes of both keys


class ExternalSort:
    """Give all records in any pieces with `add`, then go through `sorted` once."""

    def __init__(self, dtype: np.dtype[Any], memory: int, scratch: Path, level: int = 0) -> None:
        """Prepare for records.

        Args:
            dtype: of a record, a structure whose first two fields are uint64: it is sorted by the first, and where that
                is alike by the second.
            memory: bytes.
            scratch: an existing folder; temporary files in it are gone when all is sorted.
            level: the first byte of the keys that is not the same in all records.
        """
        self._dtype, self._memory, self._scratch, self._level = dtype, memory, scratch, level
        assert dtype.names is not None
        self._first, self._second = dtype.names[:2]
        self._most = max(1, memory // (2 * dtype.itemsize + 24))  # its copy, and what `lexsort` needs
        self._held: list[np.ndarray] = []
        self._count = 0
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._files: dict[int, BinaryIO] = {}

    def add(self, records: np.ndarray) -> None:
        """Take records, (n,)."""
        for start in range(0, len(records), self._most):
            piece = records[start : start + self._most]
            if self._count + len(piece) > self._most and self._level < _LEVELS:
                self._distribute()
            self._held.append(piece)
            self._count += len(piece)

    def sorted(self) -> Iterator[np.ndarray]:
        """Yield all records in order, in arrays of bounded size, (n,)."""
        if self._folder is None:
            if self._held:
                records = np.concatenate(self._held)
                self._held = []
                yield records[_order(records[self._first], records[self._second])]
            return
        with self._stack:
            self._distribute()
            for file in self._files.values():
                file.close()
            for bucket in sorted(self._files):
                path = self._folder / str(bucket)
                part = ExternalSort(self._dtype, self._memory, self._scratch, self._level + 1)
                for piece in _pieces(path, self._dtype, self._most):
                    part.add(piece)
                path.unlink()
                yield from part.sorted()

    def _distribute(self) -> None:
        """Append what is held to the files of its buckets."""
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="sort-", dir=self._scratch)))
        for records in self._held:
            field = self._first if self._level < 8 else self._second
            digits = (records[field] >> np.uint64(56 - 8 * (self._level % 8))).astype(np.uint8)
            ordered = records[np.argsort(digits, kind="stable")]
            ends = np.cumsum(np.bincount(digits, minlength=_BUCKETS)).tolist()
            for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if start < end:
                    self._file(bucket).write(ordered[start:end].tobytes())
        self._held, self._count = [], 0

    def _file(self, bucket: int) -> BinaryIO:
        if bucket not in self._files:
            assert self._folder is not None
            self._files[bucket] = self._stack.enter_context((self._folder / str(bucket)).open("wb"))
        return self._files[bucket]


def _order(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the order by two keys; the second is looked at where it is needed, which takes twice the time."""
    order = np.argsort(first)
    ordered = first[order]
    return np.lexsort((second, first)) if (ordered[1:] == ordered[:-1]).any() else order


def _pieces(path: Path, dtype: np.dtype[Any], count: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while piece := file.read(count * dtype.itemsize):
            yield np.frombuffer(piece, dtype)
