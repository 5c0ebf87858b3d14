r"""Words, as decontamination counts them: the one normaliser, and where words are in the text.

A *word* is what white space delimits, without case and without punctuation: "a gram" of GPT-3's filter "is a lowercase,
whitespace delimited word with no punctuation" (Brown et al. 2020, Language Models are Few-Shot Learners, appendix C).
On ASCII these are the words of lm-evaluation-harness (``lm_eval/decontamination/janitor.py``): A to Z become a to z,
the 32 characters of ``string.punctuation`` are deleted, what is left is split at white space. Beyond ASCII, the
characters of Unicode's categories ``P*`` are deleted too (quotation marks, dashes), white space is ``str.isspace``, and
case is folded where the folding of a character is one character. So "Don't --- STOP" has the words ``dont stop``.
Classes and folding are those of the Unicode version of the running Python.

Texts that write no spaces (Chinese, Japanese, Thai) have few and long words, and so hardly any n-grams.

Normalised, each word is UTF-8, followed by one space, and each text ends with the word `SEPARATOR`, which no
text has: it is punctuation.
"""

from __future__ import annotations

import functools
import string
import sys
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Integers

SEPARATOR = b"."

_PIECE_BYTES = 1 << 17  # the arrays of a piece stay in the processor's cache
_SPACE = 32
_DELETED = 0xFFFFFFFF
_ANY = "surrogatepass"  # half a surrogate pair is a character that no document has
_BEYOND = 0x20000  # no character from here on is punctuation or white space, or has case

Points = npt.NDArray[np.uint32]


def folded(character: str) -> str:
    """Return a character without case, always one character."""
    for other in (character.casefold(), character.lower()):
        if len(other) == 1:
            return other
    return character


def is_punctuation(character: str) -> bool:
    """Return whether a character is deleted from words."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _map(point: int) -> int:
    character = chr(point)
    if character.isspace():
        return _SPACE
    return _DELETED if is_punctuation(character) else ord(folded(character))


_ASCII = bytes(_map(point) & 0xFF if point < 128 else point for point in range(256))
_ASCII_DELETED = bytes(point for point in range(128) if _map(point) == _DELETED)


@functools.cache
def _folding() -> Points:
    """Return what each code point becomes, uint32 (1,114,112,); made once a process."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    table[:_BEYOND] = np.fromiter(map(_map, range(_BEYOND)), np.uint32, _BEYOND)
    return table


@functools.cache
def _folding_but_separator() -> Points:
    table = _folding().copy()
    table[ord(SEPARATOR)] = ord(SEPARATOR)
    return table


def _code_points(text: bytes) -> Points:
    return np.frombuffer(text.decode("utf-8", _ANY).encode("utf-32-le", _ANY), "<u4")


def normalised(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the words of texts in UTF-8, normalised, in pieces of about 128 KiB; a longer word makes a longer piece."""
    held = bytearray()
    for text in texts:
        held += text.translate(_ASCII, _ASCII_DELETED) + b" . "
        while end := held.find(b" ", _PIECE_BYTES) + 1:
            yield _single_spaced(_fold_beyond_ascii(bytes(held[:end])))
            del held[:end]
    yield _single_spaced(_fold_beyond_ascii(bytes(held)))


def _fold_beyond_ascii(text: bytes) -> bytes:
    if text.isascii():
        return text
    folds = _folding_but_separator().take(_code_points(text))
    kept = folds[folds != _DELETED]
    return bytes(kept.astype("<u4", copy=False).tobytes().decode("utf-32-le", _ANY).encode("utf-8", _ANY))


def _single_spaced(text: bytes) -> bytes:
    data = np.frombuffer(b" " + text, np.uint8)
    spaces = data == _SPACE
    return bytes(data[1:][~(spaces[1:] & spaces[:-1])])


def word_spans(text: str, words: Integers) -> tuple[Integers, Integers]:
    """Return where words of a text begin and end, in code points of the text, int64 (k,) each.

    Punctuation around a word is no part of its span.

    Args:
        text: not normalised.
        words: their numbers in the text, int64 (k,), in any order.
    """
    order = np.argsort(words)
    spans = np.empty((2, len(words)), np.int64)
    first = offset = 0
    for piece in _pieces(text):
        folds = _folding().take(_code_points(piece.encode("utf-8", _ANY)))
        spaces = folds == _SPACE
        kept = np.flatnonzero(~spaces & (folds != _DELETED))
        before = np.cumsum(spaces)[kept]  # white space before each character: it grows from word to word
        stops = np.flatnonzero(np.diff(before, append=-1))
        begins = np.append(0, stops + 1)[: len(stops)]
        low, high = np.searchsorted(words, (first, first + len(stops)), sorter=order)
        here = words[order[low:high]] - first
        spans[:, order[low:high]] = offset + kept[begins[here]], offset + kept[stops[here]] + 1
        first, offset = first + len(stops), offset + len(piece)
    return spans[0], spans[1]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while end := text.find(" ", start + _PIECE_BYTES) + 1:
        yield text[start:end]
        start = end
    yield text[start:]
