"""Whether sidecar and windows are of one stream: the first tokens of every row, encoded again, are those of its window.

Of a text a beginning is encoded, which is enough where its first tokens agree. Only where they do not, the whole text
is: a cut may change the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everytoken.reflections.errors import ReflectionError
from everytoken.tokens.encoding import DocumentEncoder

FIRST_TOKENS = 32

_CHARACTERS = 8 * FIRST_TOKENS
_AGAIN = "Sidecar and windows are not of one stream, or one is damaged: run tokenization again"


def check_first_tokens(
    encoder: DocumentEncoder, first: int, texts: Sequence[str | None], windows: np.ndarray, lengths: np.ndarray
) -> None:
    """Compare the texts of rows with their windows.

    Args:
        first: number of the first row.
        texts: of the documents, whole.
        windows: (n, window).
        lengths: content tokens of each window, (n,).

    Raises:
        ReflectionError: names the row, expected and found ids.
    """
    whole = [text or "" for text in texts]
    begun = _ids(encoder, [text[:_CHARACTERS] for text in whole])
    for number, ids in enumerate(begun):
        found = windows[number, : min(FIRST_TOKENS, int(lengths[number]))]
        if _begins_with(ids, found) and (len(found) or not len(ids)):
            continue
        (expected,) = _ids(encoder, [whole[number]])
        if not _begins_with(expected, found) or (len(expected) and not len(found)):
            raise ReflectionError(
                f"row {first + number:,} of the sidecar has a text with the first ids "
                f"{expected[: max(len(found), 8)].tolist()}, its window begins with {found.tolist()}. {_AGAIN}"
            )


def check_token_lengths(first: int, said: np.ndarray, lengths: np.ndarray) -> None:
    """Compare ``token_length`` of sidecar rows, (n,), with the lengths of their windows, (n,).

    Raises:
        ReflectionError: names the first row that differs.
    """
    if (wrong := said != lengths).any():
        number = int(np.argmax(wrong))
        raise ReflectionError(
            f"row {first + number:,} of the sidecar has the token_length {said[number]}, its window {lengths[number]}. "
            f"{_AGAIN}"
        )


def _ids(encoder: DocumentEncoder, texts: Sequence[str]) -> list[np.ndarray]:
    made = encoder.encode(texts)
    spans = zip(made.offsets.tolist(), made.full_lengths.tolist(), strict=False)
    return [made.values[start : start + min(size, FIRST_TOKENS)] for start, size in spans]


def _begins_with(ids: np.ndarray, found: np.ndarray) -> bool:
    return len(ids) >= len(found) and bool((ids[: len(found)] == found).all())
