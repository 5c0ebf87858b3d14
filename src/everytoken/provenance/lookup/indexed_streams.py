"""A stream that is gone, known by its index alone: which documents its windows held, not which ids.

A take-down writes the streams again, and keeps the indexes of those that were before
(`everytoken.provenance.lookup.dataset_locations.Places.indexes`). What a run read of a document then follows as
before: the order of samples needs the sizes of the streams, and where a document was says the index. Which predictions
counted follows from the lengths of the documents, but for chats, whose mask was beside the windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import CHATS, PADDED, REFLECTED, StreamIndex
from everytoken.tokens.order import WindowStream


@dataclass(frozen=True, eq=False)
class IndexedStream(WindowStream):
    """A stream of which only the index is there; it has windows and documents, and no tokens."""

    index: StreamIndex

    @property
    def counts_known(self) -> bool:
        """Whether the index tells which predictions count."""
        return self.index.kind != CHATS

    def __len__(self) -> int:
        """Return the number of windows."""
        return self.index.windows

    def tokens(self, numbers: np.ndarray) -> np.ndarray:
        """Raise the error: they are gone."""
        raise ProvenanceError(
            f"the stream {self.name} with the digest {self.index.stream[:16]} is gone, only its index is here: which "
            f"ids its windows had, as {len(numbers):,} are asked for, is not known"
        )

    def clear(self, mask: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Clear what did not count, by the lengths of the documents; see `WindowStream.clear`."""
        if self.index.kind not in (PADDED, REFLECTED):
            return
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            spans = self.index.spans(number)  # none where a window is masked
            mask[row, spans[-1].until - 1 if spans else 0 :] = False


def indexed_stream(name: str, index: StreamIndex) -> IndexedStream:
    """Return the stream of an index, which a run knows as ``name``."""
    return IndexedStream(name, np.empty((0, index.window), np.int64), None, None, index)
