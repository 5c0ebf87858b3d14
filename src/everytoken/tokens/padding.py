"""Documents padded with their EOS to windows of one length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from everytoken.tokens.errors import StreamError


def padded(ids: pa.Array, lengths: np.ndarray, window: int) -> tuple[np.ndarray, int]:
    """Return documents padded with the EOS that they all end in, (n, window), and its id.

    Args:
        ids: content and EOS of each document, lists of at most ``window`` ids, none of them null.
        lengths: content tokens of each document, int32 (n,), n at least 1.
        window: tokens of a window.

    Raises:
        StreamError: the documents do not end in one id.
    """
    flat = ids.flatten().to_numpy()
    sizes = lengths.astype(np.int64) + 1
    ends = np.cumsum(sizes)
    last = flat[ends - 1]
    eos_id = last[0]
    if (last != eos_id).any():
        raise StreamError(f"documents end in the ids {sorted(set(last.tolist()))[:5]}; all must end in one EOS")
    windows = np.full((len(lengths), window), eos_id, flat.dtype)
    # Places of the ids in the flattened windows: where the document's window starts, plus the position in the
    # document.
    shift = np.arange(len(lengths)) * window - (ends - sizes)
    windows.reshape(-1)[np.arange(len(flat)) + np.repeat(shift, sizes)] = flat
    return windows, int(eos_id)
