"""Which predictions of a window count in the loss, where no length can say it: ``loss_mask.npy`` beside a stream.

Row i belongs to window i of ``seq_length + 1`` tokens and has a bit for each of its ``seq_length`` predictions: bit t
(of byte t // 8, the lowest bit first) is prediction t, which sees tokens 0..t and predicts token t + 1. uint8,
(windows, ceil(seq_length / 8)); bits from ``seq_length`` on are 0. After the last prediction that counts a window holds
nothing but EOS: its padding, or a tombstone (`everytoken.tokens.encoding.tombstones`); a window in which nothing
counts holds nothing but EOS after its first token.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everytoken.shards.remote import map_npy
from everytoken.tokens.errors import StreamError

LOSS_MASK_FILE = "loss_mask.npy"


def mask_bytes(seq_length: int) -> int:
    """Return the bytes of a row: ceil(seq_length / 8)."""
    return -(-seq_length // 8)


def pack_mask(counted: np.ndarray) -> np.ndarray:
    """Return the rows of the file, uint8 (n, ceil(seq_length / 8)), for bool (n, seq_length)."""
    return np.packbits(counted, axis=1, bitorder="little")


def unpack_mask(rows: np.ndarray, seq_length: int) -> np.ndarray:
    """Return bool (n, seq_length) for rows of the file."""
    return np.unpackbits(rows, axis=1, count=seq_length, bitorder="little").view(bool)


def open_loss_mask(path: Path, windows: int, seq_length: int) -> np.ndarray:
    """Map ``loss_mask.npy``, uint8 (windows, ceil(seq_length / 8)).

    Raises:
        StreamError: it is no such array.
    """
    try:
        rows = map_npy(path, windows)
    except Exception as error:  # a damaged header raises what the parser of Python raises
        raise StreamError(f"{path} is no array of NumPy, or is truncated ({error}); write the stream again") from error
    expected = (windows, mask_bytes(seq_length))
    if rows.shape != expected or rows.dtype != np.uint8:
        raise StreamError(f"{path} holds {rows.dtype} {rows.shape}, expected uint8 {expected}: a bit for a prediction")
    return rows


def check_masks(
    where: Path,
    numbers: np.ndarray,
    tokens: np.ndarray,
    rows: np.ndarray,
    eos_id: int | None,
    *,
    clears_eos_alone: bool = False,
) -> int:
    """Check masks with their windows; return how many predictions count.

    Args:
        where: the stream, for the message.
        numbers: of the windows, int64 (n,).
        tokens: of the windows, (n, seq_length + 1).
        rows: of the mask, uint8 (n, ceil(seq_length / 8)).
        eos_id: EOS, which pads; None: not known, then padding is not looked at.
        clears_eos_alone: whether every prediction that does not count must be of EOS (tombstones).

    Raises:
        StreamError: no prediction of a window with content counts, a bit stands beyond the predictions, content follows
            the last prediction that counts, or content is cleared that may not be; names the window, and the position.
    """
    seq_length = tokens.shape[1] - 1
    every = np.unpackbits(rows, axis=1, bitorder="little").view(bool)
    counted = every[:, :seq_length]
    if (wrong := every[:, seq_length:].any(axis=1)).any():
        raise StreamError(
            f"{where} window {numbers[int(np.argmax(wrong))]:,}: its {LOSS_MASK_FILE} has a bit beyond the "
            f"{seq_length:,} predictions, expected 0 there"
        )
    nothing = ~counted.any(axis=1)
    if (wrong := nothing & (tokens[:, 1:] != tokens[:, -1:]).any(axis=1)).any():
        raise StreamError(
            f"{where} window {numbers[int(np.argmax(wrong))]:,}: no prediction counts, expected at least one"
        )
    if eos_id is None or not len(tokens):
        return int(np.count_nonzero(counted))
    last = np.where(nothing, 0, seq_length - np.argmax(counted[:, ::-1], axis=1))  # the last token that is learned
    beyond = (tokens != eos_id) & (np.arange(seq_length + 1) > last[:, None])
    if beyond.any():
        row, position = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
        raise StreamError(
            f"{where} window {numbers[row]:,} position {position:,}, after the last prediction that counts: "
            f"expected padding {eos_id}, found {int(tokens[row, position])}"
        )
    if clears_eos_alone and (wrong := ~counted & (tokens[:, 1:] != eos_id)).any():
        row, prediction = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise StreamError(
            f"{where} window {numbers[row]:,} position {prediction + 1:,}, whose prediction does not count: expected "
            f"EOS {eos_id} of an excluded document, found {int(tokens[row, prediction + 1])}"
        )
    return int(np.count_nonzero(counted))
