"""What must hold for the tokens of a stream, window by window: ids are ids, and padding is where the lengths say.

In a padded window of W tokens with length L, 0 <= L < W: tokens 0..L-1 are content, token L is EOS, and every token
after it is EOS. So no content lies where the loss mask is zero, and no padding where it is one. These functions look
at windows that they are given; `scan` gives all windows of a file in bounded memory and its SHA-256 in the same pass,
`sampled` some of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.seeds import numpy_generator
from everytoken.tokens.errors import StreamError

SAMPLED = 32
_BLOCK_BYTES = 8 << 20
_SAMPLE_SEED = 0  # of what is looked at when a stream is opened: it decides no byte of any output


@dataclass
class Seen:
    """What is counted while windows pass.

    Attributes:
        eos: tokens that are EOS, also those of padding; 0 while no EOS is known.
    """

    largest: int = -1
    eos: int = 0


def scan(
    path: Path, dtype: np.dtype[Any], window: int, digest: Any
) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    """Yield numbers, int64 (n,), and tokens, (n, window), of the windows of a file in order, in blocks.

    Args:
        path: a file of tokens alone.
        dtype: their type in the file.
        window: tokens of a window; what is left at the end comes as no window.
        digest: a hash object, updated with all bytes while the caller looks at them.
    """
    size = window * dtype.itemsize
    block = np.empty(max(1, _BLOCK_BYTES // size) * size, np.uint8)
    view = block.data
    first = 0
    with path.open("rb") as file, ThreadPoolExecutor(1) as thread:
        while read := file.readinto(view):
            hashed = thread.submit(digest.update, view[:read])
            count = read // size
            yield np.arange(first, first + count), block[: count * size].view(dtype).reshape(count, window)
            hashed.result()
            first += count


def sampled(windows: np.ndarray) -> np.ndarray:
    """Return numbers of windows to look at: the first, the last, and a seeded sample, in order, int64 (k,)."""
    count = len(windows)
    if count <= SAMPLED:
        return np.arange(count)
    drawn = numpy_generator(_SAMPLE_SEED, count).integers(0, count, SAMPLED - 2)
    return np.unique(np.concatenate([[0], drawn, [count - 1]]))


def check_ids(
    where: Path, numbers: np.ndarray, tokens: np.ndarray, vocab_size: int | None, eos_id: int | None, seen: Seen
) -> None:
    """Check that ids of windows, (n, window), are at least 0 and below ``vocab_size``, and add them to ``seen``.

    ``vocab_size`` and ``eos_id`` are None where they are not known.

    Raises:
        StreamError: names ``where`` (the stream), window, position, what was expected and found.
    """
    if not tokens.size:
        return
    low, high = int(tokens.min()) if tokens.dtype.kind == "i" else 0, int(tokens.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        wrong = tokens < 0 if vocab_size is None else (tokens < 0) | (tokens >= vocab_size)
        row, position = np.unravel_index(int(np.argmax(wrong)), tokens.shape)
        most = "" if vocab_size is None else f" and below the vocabulary's {vocab_size:,}"
        raise StreamError(
            f"{where} window {numbers[row]:,} position {position:,}: expected an id of at least 0{most}, found "
            f"{int(tokens[row, position])}"
        )
    seen.largest = max(seen.largest, high)
    if eos_id is not None:
        seen.eos += int(np.count_nonzero(tokens == eos_id))


def check_window_lengths(where: Path, numbers: np.ndarray, lengths: np.ndarray, window: int) -> None:
    """Check that lengths, (n,), leave room for EOS: 0 <= length < window.

    Raises:
        StreamError: names the first window whose length does not.
    """
    wrong = (lengths < 0) | (lengths >= window)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise StreamError(
            f"{where} window {numbers[i]:,}: expected a length from 0 to {window - 1:,}, found {int(lengths[i])}"
        )


def check_padding(where: Path, numbers: np.ndarray, tokens: np.ndarray, lengths: np.ndarray, eos_id: int) -> None:
    """Check windows, (n, window), for EOS at the length of each, (n,) in range, and nothing but EOS after it.

    Raises:
        StreamError: names ``where`` (the stream), window, position, what was expected and found.
    """
    rows = np.arange(len(tokens))
    at_length = tokens[rows, lengths]
    content = tokens != eos_id
    # The last token that is not EOS: argmax stops at the first True from the end, so only padding is looked through.
    last = tokens.shape[1] - 1 - np.argmax(content[:, ::-1], axis=1)
    wrong = (at_length != eos_id) | ((last > lengths) & content[rows, last])
    if not wrong.any():
        return
    i = int(np.argmax(wrong))
    window, length = int(numbers[i]), int(lengths[i])
    if int(at_length[i]) != eos_id:
        raise StreamError(
            f"{where} window {window:,} position {length:,}, where its token_length says that content ends: expected "
            f"EOS {eos_id}, found {int(at_length[i])}"
        )
    position = length + 1 + int(np.argmax(content[i, length + 1 :]))
    raise StreamError(
        f"{where} window {window:,} position {position:,}, after its token_length {length:,}: expected padding "
        f"{eos_id}, found {int(tokens[i, position])}"
    )


def new_digest() -> Any:
    """Return a SHA-256 to give to `scan`."""
    return hashlib.sha256()
