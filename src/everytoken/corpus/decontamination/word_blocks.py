"""Normalised texts as blocks of words with the hash of every n-gram, in vectorised passes.

An *n-gram* is n consecutive words of one text. Its hash is ``sum_i b[i] * F**i mod 2**64`` over its bytes, mixed: the
difference of two sums over the block. Equal hashes are no proof that n-grams are equal, `same_bytes` is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers
from everytoken.corpus.decontamination.words import SEPARATOR, normalised

_FACTOR = 0x9E3779B97F4A7C15  # odd, 2**64 over the golden ratio
_INVERSE = pow(_FACTOR, -1, 1 << 64)


class Sliced(Protocol):
    """Bytes in memory or in a mapped file."""

    def __getitem__(self, key: slice, /) -> bytes: ...


class WordBlock:
    """Words that follow each other in the normalised texts, and the hash of the n-gram that begins at each.

    Attributes:
        bytes: of the words, each with a space after it.
        starts, ends: of each word in ``bytes``, int64 (words,); a separator is a word.
        separators: the words that end a text, int64 (k,).
        first_word, first_byte, first_text: number of the first of each, over all texts.
        hashes: of what begins at each word, uint64 (words - n + 1,) or (0,); with a separator in it, it is no n-gram.
    """

    def __init__(self, text: bytes, n: int, first_word: int, first_byte: int, first_text: int) -> None:
        self._n, self.first_word, self.first_byte, self.first_text = n, first_word, first_byte, first_text
        self.bytes = text
        data = np.frombuffer(text, np.uint8)
        self.ends: Integers = np.flatnonzero(data == ord(" "))
        self.starts: Integers = np.concatenate([[0], self.ends[:-1] + 1])[: len(self.ends)]
        self._is_separator = data[self.starts] == ord(SEPARATOR)
        self.separators: Integers = np.flatnonzero(self._is_separator)
        starts = self.starts[: max(0, len(self.starts) - n + 1)]
        self.hashes = _ngram_hashes(data, starts, self.ends[n - 1 :])

    def ngrams(self) -> tuple[Integers, Integers]:
        """Return the first word of every n-gram, and the text that it is of, int64 (k,) each."""
        texts = np.concatenate([[0], np.cumsum(self._is_separator)])
        begin, end = texts[: len(self.hashes)], texts[self._n : self._n + len(self.hashes)]
        ngrams = np.flatnonzero(begin == end)
        return ngrams, self.first_text + begin[ngrams]

    def ranges(self, ngrams: Integers) -> tuple[Integers, Integers]:
        """Return where n-grams begin in ``bytes``, and how many bytes they have, int64 (k,) each."""
        starts = self.starts[ngrams]
        return starts, self.ends[ngrams + self._n - 1] - starts


def word_blocks(texts: Iterable[bytes], n: int) -> Iterator[WordBlock]:
    """Yield blocks of the words of texts in UTF-8; each n-gram is in exactly one, and memory follows the block."""
    carried, first_word, first_byte, first_text = b"", 0, 0, 0
    for piece in normalised(texts):
        block = WordBlock(carried + piece, n, first_word, first_byte, first_text)
        yield block
        done = max(0, len(block.starts) - (n - 1))  # later words begin an n-gram of the next block
        byte = int(block.ends[done - 1]) + 1 if done else 0
        carried = block.bytes[byte:]
        first_word, first_byte = first_word + done, first_byte + byte
        first_text += int(np.searchsorted(block.separators, done))


def _ngram_hashes(data: npt.NDArray[np.uint8], starts: Integers, ends: Integers) -> Hashes:
    """Return the hash of each range of bytes, uint64 (k,)."""
    size = 1 << len(data).bit_length()
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(data * _powers(_FACTOR, size)[: len(data)], out=sums[1:])
    hashes: Hashes = (sums[ends] - sums[starts]) * _powers(_INVERSE, size)[starts]
    return (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_FACTOR)


@functools.lru_cache(2)
def _powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def same_bytes(
    data: Sliced, begins: Integers, other: Sliced, other_begins: Integers, sizes: Integers
) -> npt.NDArray[np.bool_]:
    """Return whether ``data[begins : begins + sizes]`` is the same as that of ``other``, bool (k,)."""
    ranges = zip(begins.tolist(), other_begins.tolist(), sizes.tolist(), strict=True)
    return np.array([data[a : a + size] == other[b : b + size] for a, b, size in ranges], np.bool_)
