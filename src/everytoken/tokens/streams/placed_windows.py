"""Windows of a stream that several processes write, each to its place in ``.bin``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from everytoken.outofcore import RowPlaces, plan_places
from everytoken.shards import RangeMap, fsync_file
from everytoken.tokens.streams.megatron import stored_dtype, stored_ids, with_name, write_window_index


@dataclass(frozen=True)
class PlacedWindows:
    """The windows of ``prefix.bin``, for any process; see `everytoken.outofcore.row_places`."""

    prefix: Path
    window: int
    dtype: np.dtype[Any]
    places: RowPlaces

    @property
    def scratch(self) -> Path:
        """A folder for temporary files, which is gone with all in it when the stream is written."""
        return self.places.scratch

    def write(self, first: int, windows: np.ndarray) -> None:
        """Write the windows ``first``, ``first + 1``, ..., an integer array of shape (n, window).

        Raises:
            StreamError: an id that the stored type cannot hold.
        """
        self.places.write(first, stored_ids(self.prefix, windows, self.dtype))

    def write_tokens(self, at: int, tokens: np.ndarray) -> None:
        """Write tokens, (n,), that are the tokens ``at``, ``at + 1``, ... of all windows; those after the last go.

        Raises:
            StreamError: as `write`.
        """
        tokens = tokens[: max(0, self.places.count * self.window - at)]
        first, offset = divmod(at, self.window)
        head, rest = np.split(tokens, [-offset % self.window])
        whole, tail = np.split(rest, [len(rest) - len(rest) % self.window])
        self._write_piece(first, offset, head)
        first += offset > 0
        self.write(first, whole.reshape(-1, self.window))
        self._write_piece(first + len(whole) // self.window, 0, tail)

    def _write_piece(self, window: int, offset: int, tokens: np.ndarray) -> None:
        if len(tokens):
            stored = stored_ids(self.prefix, tokens, self.dtype)
            self.places.write_bytes(window, offset * self.dtype.itemsize, stored)


@contextmanager
def open_placed_windows(
    prefix: Path, window: int, dtype: Any, positions: Iterable[np.ndarray], count: int, *, memory: int, ranges: RangeMap
) -> Iterator[PlacedWindows]:
    """Give windows to write; when the block ends, put them in order and write ``prefix.idx``. Both files are fsynced.

    Args:
        window: tokens of a window.
        dtype: uint16 or uint32, that of the ids.
        positions: the place in the stream of each window, see `plan_places`.
        count: number of windows.
        memory: bytes that windows may take in all processes together.
        ranges: where the block writes the windows.
    """
    stored, path = stored_dtype(dtype), with_name(prefix, ".bin")
    with TemporaryDirectory(prefix="shuffle-", dir=prefix.parent) as scratch:
        places = plan_places(
            path,
            positions,
            count,
            window * stored.itemsize,
            memory=memory,
            workers=ranges.workers,
            scratch=Path(scratch),
        )
        yield PlacedWindows(prefix, window, stored, places)
        for ordered in ranges(places.sort, places.buckets()):
            ordered.unlink()
    fsync_file(path)
    write_window_index(prefix, count, window, stored)
