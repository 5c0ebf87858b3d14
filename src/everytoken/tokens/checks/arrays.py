"""Arrays of NumPy with an entry for each window, mapped after a look at shape and type."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everytoken.shards.remote import map_npy
from everytoken.system_errors import raise_trouble
from everytoken.tokens.errors import StreamError


def open_array(path: Path, rows: int, dtype: type[np.generic]) -> np.ndarray:
    """Map an array of NumPy, (rows,), as ``token_lengths.npy`` with a length a window.

    Raises:
        StreamError: it is none, or has another shape or type.
    """
    try:
        array = map_npy(path, rows)
    except Exception as error:  # a damaged header raises what the parser of Python raises
        raise_trouble(error)
        raise StreamError(f"{path} is no array of NumPy, or is truncated ({error}); write or copy it again") from error
    if array.shape != (rows,) or array.dtype != dtype:
        raise StreamError(f"{path}: expected {np.dtype(dtype)} ({rows},), found {array.dtype} {array.shape}")
    return array
