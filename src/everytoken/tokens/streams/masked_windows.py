"""The loss mask of a compact stream with tombstones (`everytoken.tokens.encoding.tombstones`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from everytoken.tokens.streams.loss_mask import mask_bytes, pack_mask

_COPIED_BYTES = 4 << 20


def spans_in_order(sizes: np.ndarray, permutation: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Return where documents of a part lie among its shuffled tokens: start and end, ascending, int64 (k, 2).

    Args:
        sizes: tokens of each document, EOS included, int64 (n,).
        permutation: document i of the shuffled part is row ``permutation[i]``.
    """
    ends = np.empty(len(sizes), np.int64)
    ends[permutation] = np.cumsum(sizes[permutation])
    chosen = np.asarray(rows, np.int64)
    spans = np.stack([ends[chosen] - sizes[chosen], ends[chosen]], axis=1)
    return spans[np.argsort(spans[:, 0])]


class MaskedWindows:
    """Gathers which tokens of which windows are tombstones, block by block of the shuffle; then writes the mask."""

    def __init__(self, spans: np.ndarray, window: int) -> None:
        """Begin with spans of tokens in the order in which windows are cut, ascending, int64 (k, 2)."""
        self._spans, self._window = spans, window
        self._found: list[tuple[int, int, int]] = []  # window, first and end of its tokens

    def add(self, start: int, position: np.ndarray) -> None:
        """Take a block: window ``start + i`` as cut is window ``start + position[i]`` of the stream."""
        end = (start + len(position)) * self._window
        first = int(np.searchsorted(self._spans[:, 1], start * self._window, side="right"))
        last = int(np.searchsorted(self._spans[:, 0], end, side="left"))
        for a, b in self._spans[first:last].tolist():
            a, b = max(a, start * self._window), min(b, end)
            while a < b:
                cut, at = divmod(a, self._window)
                stop = min(b, (cut + 1) * self._window)
                self._found.append((start + int(position[cut - start]), at, at + stop - a))
                a = stop

    def write(self, path: Path, windows: int) -> int:
        """Write ``loss_mask.npy`` of a stream of so many windows; return how many predictions count."""
        seq_length, size = self._window - 1, mask_bytes(self._window - 1)
        full = pack_mask(np.ones((1, seq_length), bool))
        found, done, counted = sorted(self._found), 0, windows * seq_length
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (windows, size)}
            )
            step = max(1, _COPIED_BYTES // size)
            for start in range(0, windows, step):
                rows = np.repeat(full, min(step, windows - start), axis=0)
                while done < len(found) and found[done][0] < start + len(rows):
                    number, first, end = found[done]
                    cleared = np.zeros(seq_length, bool)
                    cleared[max(first - 1, 0) : end - 1] = True  # prediction t is of token t + 1
                    rows[number - start] &= ~pack_mask(cleared[None])[0]
                    counted -= int(np.count_nonzero(cleared))
                    done += 1
                file.write(rows.data)
            file.flush()
            os.fsync(file.fileno())
        return counted


class MaskStatistics(TypedDict, total=False):
    """What a compact stream with tombstones says of them; ``loss_tokens``: predictions that count."""

    tombstones: dict[str, int]
    loss_tokens: int


def mask_statistics(tombstones: Mapping[str, Sequence[int]], spans: np.ndarray, counted: int) -> MaskStatistics:
    """Return what the ledger of a compact stream says of its tombstones."""
    documents = sum(map(len, tombstones.values()))
    tokens = int((spans[:, 1] - spans[:, 0]).sum())
    return MaskStatistics(tombstones={"documents": documents, "tokens": tokens}, loss_tokens=counted)
