"""Where documents lie in shards that are padded at their ends, or that hold only some of the documents.

Documents follow each other without a gap in their *own* positions; among all tokens of the shards the padding of the
shards before comes on top. ``contents.npy`` has the tokens of documents in each shard, uint64 (shards,). Documents
behind the last shard have positions behind its last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from everytoken.provenance.indexes.arrays import map_array
from everytoken.provenance.indexes.spans import require_consistent_index

_CONTENTS_FILE = "contents.npy"


class ShardLayout:
    """Own positions of documents to positions among all tokens of the shards, and back.

    Attributes:
        tokens: in all shards, padding included.
    """

    def __init__(self, contents: np.ndarray, shard_size: int, tokens: int) -> None:
        """Take the tokens of documents in each shard, (shards,); all shards but the last hold ``shard_size``."""
        self.tokens, self._size = tokens, shard_size
        self._ends = np.cumsum(contents, dtype=np.int64)

    @staticmethod
    def open(folder: Path, shards: int, shard_size: int, tokens: int) -> ShardLayout:
        """Map ``contents.npy``.

        Raises:
            ProvenanceError: it contradicts the sizes.
        """
        contents = np.asarray(map_array(folder / _CONTENTS_FILE, shards)).astype(np.int64)
        fits = not len(contents) or (int(contents.min()) >= 0 and int(contents.max()) <= shard_size)
        holds = fits and (shards - 1) * shard_size < tokens <= shards * shard_size if shards else tokens == 0
        what = f"{_CONTENTS_FILE} of {shards:,} shards of {shard_size:,} tokens does not give {tokens:,}"
        require_consistent_index(holds, f"the index {folder}", what)
        return ShardLayout(contents, shard_size, tokens)

    def placed(self, own: int) -> int:
        """Return the position among all tokens of an own position."""
        shard = int(np.searchsorted(self._ends, own, "right"))
        before = int(self._ends[shard - 1]) if shard else 0
        return (self.tokens if shard == len(self._ends) else shard * self._size) + own - before

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield own positions [first, last) in the positions [begin, end), and where the first is, from ``begin``."""
        own_first = own_last = at = 0
        for shard in range(begin // self._size, min(-(-end // self._size), len(self._ends))):
            start = shard * self._size
            before = int(self._ends[shard - 1]) if shard else 0
            first, last = max(begin, start), min(end, start + int(self._ends[shard]) - before)
            if first >= last:
                continue
            own = before + first - start
            if own_first < own_last == own and at + own_last - own_first == first - begin:
                own_last += last - first  # a document may go on in the next shard
                continue
            if own_first < own_last:
                yield own_first, own_last, at
            own_first, own_last, at = own, own + last - first, first - begin
        if own_first < own_last:
            yield own_first, own_last, at


class LayoutWriter:
    """Cuts documents into shards by their sizes, as the shards were cut."""

    def __init__(self, shard_size: int, *, whole: bool, n_shards: int | None) -> None:
        """Prepare; ``whole``: no document crosses a boundary. ``n_shards``: the documents behind are left out."""
        self._size, self._whole, self._most = shard_size, whole, n_shards
        self._contents: list[int] = []
        self._begun = 0
        self.documents = 0

    @property
    def shards(self) -> int:
        """Shards that hold anything."""
        return len(self._contents) + (self._begun > 0)

    @property
    def tokens(self) -> int:
        """Tokens in all shards, padding included; the last one is padded only where it must be full."""
        full = len(self._contents) * self._size
        return full + self._begun

    def append(self, sizes: np.ndarray) -> None:
        """Append documents of these numbers of tokens, EOS included, (n,); no one is longer than a shard if whole."""
        ends, done = np.cumsum(sizes, dtype=np.int64), 0
        last = int(ends[-1]) if len(ends) else 0
        while done < last and not self._is_full:
            stop = min(last, done + self._size - self._begun)
            if self._whole:
                fitting = int(np.searchsorted(ends, stop, "right"))
                stop = max(done, int(ends[fitting - 1])) if fitting else done
            begins = np.searchsorted(ends - sizes, (done, stop), "left")
            self.documents += int(begins[1] - begins[0])
            self._begun += stop - done
            done = stop
            if self._begun == self._size or (self._whole and done < last):
                self._contents.append(self._begun)
                self._begun = 0

    @property
    def _is_full(self) -> bool:
        return self._most is not None and len(self._contents) == self._most

    def write(self, folder: Path) -> None:
        """Write ``contents.npy``."""
        held = [*self._contents, *([self._begun] if self._begun else [])]
        np.save(folder / _CONTENTS_FILE, np.array(held, "<u8"))
