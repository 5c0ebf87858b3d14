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
    ends = np.cumsum(lengths.astype(np.int64) + 1)
    last = flat[ends - 1]
    eos_id = last[0]
    if (last != eos_id).any():
        raise StreamError(f"documents end in the ids {sorted(set(last.tolist()))[:5]}; all must end in one EOS")
    windows = np.full((len(lengths), window), eos_id, flat.dtype)
    start = 0
    for row, end in zip(windows, ends.tolist(), strict=True):
        row[: end - start] = flat[start:end]
        start = end
    return windows, int(eos_id)
