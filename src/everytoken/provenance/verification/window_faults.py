"""What is wrong inside a window that is not the one that was released: which token, as far as its checksum tells.

A CRC is linear: the checksums of two windows that differ in one token differ by the checksum of that difference alone.
So it can be asked of each position whether a change there explains what was found. By chance a wrong position does so
too in about one window of 43 (2,049 tokens of 16 bits, 49,152 ids): then nothing is said. What is said holds if one
token was changed; only documents that are read again from upstream leave no doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from isal import isal_zlib


@cache
def _tables() -> tuple[list[int], dict[int, int]]:
    """Return the table of the reflected CRC-32 and, by the highest byte of an entry, its number."""
    table = [isal_zlib.crc32(bytes([0xFF ^ number])) ^ 0xFF000000 for number in range(256)]
    return table, {value >> 24: number for number, value in enumerate(table)}


def checksum(window: np.ndarray) -> int:
    """Return the CRC-32 of the bytes of a window."""
    return int(isal_zlib.crc32(np.ascontiguousarray(window).data))


@dataclass(frozen=True)
class Change:
    """A token of a window that is another one; ``note`` says how far that goes, empty where it is all."""

    position: int
    expected: int
    found: int
    note: str = "if one token was changed, as the CRC-32 of the window tells (with --upstream it is certain)"

    @property
    def text(self) -> str:
        """The change in words."""
        return f"position {self.position:,}: expected {self.expected}, found {self.found}"


def single_changes(window: np.ndarray, expected: int, vocab_size: int) -> Iterator[Change]:
    """Yield each change of one token (uint16 or int32) to an id that explains the checksum, last position first."""
    table, number_of = _tables()
    width = window.dtype.itemsize
    state = checksum(window) ^ expected
    for position in range(len(window) - 1, -1, -1):
        for _ in range(width):  # back over one byte of zero difference
            number = number_of[state >> 24]
            state = (((state ^ table[number]) << 8) & 0xFFFFFFFF) | number
        # Before the bytes of the token, a state that fits into them is their difference itself.
        found = int(window[position])
        if 0 < state < 1 << (8 * width) and (told := (found & 0xFFFFFFFF) ^ state) < vocab_size:
            yield Change(position, told, found)


def told_by_checksum(window: np.ndarray, expected: int, vocab_size: int) -> Change | None:
    """Return which token differs if it is one, as far as one position alone explains the checksum."""
    found = list(islice(single_changes(window, expected, vocab_size), 2))
    return found[0] if len(found) == 1 else None


def first_change(expected: np.ndarray, found: np.ndarray) -> Change | None:
    """Return where two windows of the same length, (n,), first differ."""
    wrong = np.flatnonzero(expected != found)
    if not len(wrong):
        return None
    others = f"positions that differ besides: {len(wrong) - 1:,}" if len(wrong) > 1 else ""
    return Change(int(wrong[0]), int(expected[wrong[0]]), int(found[wrong[0]]), others)
