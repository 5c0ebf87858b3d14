"""Windows with a reflection: ``content[:k]``, the reflection, ``content[k:]``, EOS and padding, as long as before.

Next to such a stream, ``reflection_index.npy`` has k of each window, int32 (windows,), -1 where there is none.
``reflection_lengths.npy`` has the tokens of its reflection, int32 (windows,), a marker before it included, else 0.
"""

from __future__ import annotations

import numpy as np

from everytoken.tokens.errors import StreamError

REFLECTION_INDEX_FILE = "reflection_index.npy"
REFLECTION_LENGTHS_FILE = "reflection_lengths.npy"

NO_REFLECTION = -1


def splice(windows: np.ndarray, lengths: np.ndarray, places: np.ndarray, inserts: list[np.ndarray | None]) -> None:
    """Put tokens into windows, in place; what the last of them lose is padding.

    Args:
        windows: content, EOS and padding of each document, (n, window).
        lengths: content tokens of each, (n,).
        places: content tokens before what is put in, (n,); not looked at where there is nothing.
        inserts: the ids that each window gets, (length,); None: it stays as it is.

    Raises:
        StreamError: a place is not in the content, or there is no room.
    """
    width = windows.shape[1]
    for number, ids in enumerate(inserts):
        if ids is None:
            continue
        length, place, size = int(lengths[number]), int(places[number]), len(ids)
        if not 0 <= place <= length:
            raise StreamError(f"a reflection is to come after token {place:,} of a document of {length:,}")
        if length + size >= width:
            raise StreamError(
                f"a window of {width:,} tokens has no room for a document of {length:,}, {size:,} more and EOS"
            )
        row = windows[number]
        row[place + size : length + size + 1] = row[place : length + 1].copy()
        row[place : place + size] = ids
