"""Records sorted by 64-bit keys in bounded memory.

While records fit into memory, one sort orders them. When they do not, each goes to the file of a bucket, by a byte of
its keys (an MSD radix sort); then bucket after bucket is read back, and one that does not fit is distributed by the
first byte in which its records differ. Records whose keys are all alike need no order, and stream through.

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
import numpy.typing as npt

_BUCKETS = 256


class ExternalSort:
    """Give all records in any pieces with `add`, then go through `sorted` once."""

    def __init__(self, dtype: np.dtype[Any], memory: int, scratch: Path, keys: int = 2, level: int = 0) -> None:
        """Prepare for records.

        Args:
            dtype: of a record, a structure whose first fields are uint64.
            memory: bytes.
            scratch: an existing folder; temporary files in it are gone when all is sorted.
            keys: number of the first fields that it is sorted by, the first before the second.
            level: the first byte of the keys that is not the same in all records.
        """
        self._dtype, self._memory, self._scratch, self._level = dtype, memory, scratch, level
        assert dtype.names is not None
        self._keys = dtype.names[:keys]
        self._most = max(1, memory // (2 * dtype.itemsize + 24))  # its copy, and what sorting needs
        self._held: list[np.ndarray] = []
        self._count = 0
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._files: dict[int, BinaryIO] = {}
        self._some = np.empty(_BUCKETS, dtype)  # a record of each bucket
        self._differ = np.zeros((keys, _BUCKETS), np.uint64)  # bits in which others differ from it

    def add(self, records: np.ndarray) -> None:
        """Take records, (n,)."""
        for start in range(0, len(records), self._most):
            piece = records[start : start + self._most]
            if self._count + len(piece) > self._most:
                self._distribute()
            self._held.append(piece)
            self._count += len(piece)

    def sorted(self) -> Iterator[np.ndarray]:
        """Yield all records in order, in arrays of bounded size, (n,)."""
        if self._folder is None:
            if self._held:
                records = np.concatenate(self._held)
                self._held = []
                yield records[_order([records[key] for key in self._keys])]
            return
        with self._stack:
            self._distribute()
            for file in self._files.values():
                file.close()
            for bucket in sorted(self._files):
                yield from self._sorted_bucket(bucket, self._folder / str(bucket))

    def _sorted_bucket(self, bucket: int, path: Path) -> Iterator[np.ndarray]:
        pieces = _pieces(path, self._dtype, self._most)
        level = _first_byte(self._differ[:, bucket].tolist())
        if level is None:
            yield from pieces
            path.unlink()
            return
        part = ExternalSort(self._dtype, self._memory, self._scratch, len(self._keys), level)
        for piece in pieces:
            part.add(piece)
        path.unlink()
        yield from part.sorted()

    def _distribute(self) -> None:
        """Append what is held to the files of its buckets."""
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="sort-", dir=self._scratch)))
        key, shift = self._keys[self._level // 8], np.uint64(56 - 8 * (self._level % 8))
        held, self._held, self._count = self._held, [], 0
        records = np.concatenate(held)
        del held
        digits = (records[key] >> shift).astype(np.uint8)
        order = np.argsort(digits, kind="stable")
        digits, records = digits[order], records[order]
        starts = np.flatnonzero(np.diff(digits, prepend=~digits[:1]))
        buckets = digits[starts]
        new = [bucket not in self._files for bucket in buckets.tolist()]
        self._some[buckets[new]] = records[starts[new]]
        for differ, name in zip(self._differ, self._keys, strict=True):
            differ[buckets] |= np.bitwise_or.reduceat(records[name] ^ self._some[name][digits], starts)
        for bucket, some in zip(buckets.tolist(), np.split(records, starts[1:]), strict=True):
            self._file(bucket).write(some.tobytes())

    def _file(self, bucket: int) -> BinaryIO:
        if bucket not in self._files:
            assert self._folder is not None
            self._files[bucket] = self._stack.enter_context((self._folder / str(bucket)).open("wb"))
        return self._files[bucket]


def _first_byte(differ: list[int]) -> int | None:
    """Return the number of the first byte of all keys that is not 0."""
    for key, bits in enumerate(differ):
        if bits:
            return 8 * key + (64 - bits.bit_length()) // 8
    return None


def _order(keys: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.int64]:
    """Return the order by all keys; those after the first are looked at where it is alike."""
    order = np.argsort(keys[0], kind="stable")
    first = keys[0][order]
    again = first[1:] == first[:-1]
    alike = np.flatnonzero(np.append(again, False) | np.insert(again, 0, False))
    rows = order[alike]
    order[alike] = rows[np.lexsort([key[rows] for key in reversed(keys)])]
    return order


def _pieces(path: Path, dtype: np.dtype[Any], count: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while piece := file.read(count * dtype.itemsize):
            yield np.frombuffer(piece, dtype)
