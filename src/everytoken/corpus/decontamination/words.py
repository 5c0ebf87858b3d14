r"""Words and n-grams of words, as decontamination counts them, in vectorised passes over blocks of text.

A *word* is what white space delimits, without case and without punctuation: "a gram" of GPT-3's filter "is a lowercase,
whitespace delimited word with no punctuation" (Brown et al. 2020, Language Models are Few-Shot Learners, appendix C).
On ASCII these are the words of lm-evaluation-harness (``lm_eval/decontamination/janitor.py``): A to Z become a to z,
the 32 characters of ``string.punctuation`` are deleted, what is left is split at white space. Beyond ASCII, the
characters of Unicode's categories ``P*`` are deleted too (quotation marks, dashes), white space is ``str.isspace``, and
case is folded where the folding of a character is one character. So "Don't --- STOP" has the words ``dont stop``.
Classes and folding are those of the Unicode version of the running Python.

Texts that write no spaces (Chinese, Japanese, Thai) have few and long words, and so hardly any n-grams.

A *normalised* text is its words in UTF-8 with one space between; to normalise it again changes nothing. An *n-gram* is
n consecutive words. A `WordBlock` hashes all n-grams of some texts at once. Equal hashes are no proof, `same_bytes` is.
"""

from __future__ import annotations

import functools
import hashlib
import re
import string
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers

Bytes = npt.NDArray[np.uint8]

TEXT_BLOCK_BYTES = 1 << 18  # of texts that are hashed at once: the arrays stay in the processor's cache
PADDING = bytes(8)  # after bytes that are read by eights

_SPACE = 32
_DELETED = 0xFFFFFFFF
_ANY = "surrogatepass"  # half a surrogate pair is a character that no document has
_BEYOND = 0x20000  # no character from here on is punctuation or white space, or has case
_SEPARATOR = ord(".")  # between texts: punctuation, which no word has
_SPARSE = 4  # a text of which this part is beyond ASCII has few characters to look up
_NO_UTF8 = 0xFF  # no byte of UTF-8
_PIECE_BYTES = 1 << 18
_WORD_BYTES = 16  # words of more are few
_WHITE_SPACE = re.compile(rb"[\t-\r\x1c-\x20]")

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, 2**64 over the golden ratio
_FACTOR = np.uint64(_MULTIPLIER)
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
_LONG_WORD = 64  # bytes; longer ones are hashed one by one
_LONG_RANGE = 4_096


def folded(character: str) -> str:
    """Return a character without case, always one character."""
    for other in (character.casefold(), character.lower()):
        if len(other) == 1:
            return other
    return character


def is_punctuation(character: str) -> bool:
    """Return whether a character is deleted from words."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def normalised(text: bytes) -> bytes:
    """Return the words of a text in UTF-8, with one space between them."""
    return b" ".join(_folded([text]).split())


def _folded(texts: Sequence[bytes]) -> bytes:
    """Return texts in UTF-8, without case and punctuation, with spaces for white space, and `_SEPARATOR` between."""
    # translate changes ASCII characters alone; what is beyond is looked up for many texts at once
    joined = b" . ".join([text.translate(_ASCII, _ASCII_DELETED) for text in texts])
    return joined if joined.isascii() else _fold_beyond_ascii(joined)


def _fold_beyond_ascii(text: bytes) -> bytes:
    """Fold the characters beyond ASCII of a text, in place where they are few."""
    data = np.frombuffer(text, np.uint8)
    beyond = np.flatnonzero(data & 0x80)
    if _SPARSE * len(beyond) > len(data):
        return _fold_points(text)
    few = data[beyond]
    points = _code_points(few.tobytes())
    folds = _folding_beyond_ascii().take(points)
    changed = np.flatnonzero(folds != points)
    firsts = np.flatnonzero(few >= 0xC0)  # bytes that begin a character
    sizes, folds = np.diff(firsts, append=len(few))[changed], folds[changed]
    new_sizes = np.where(folds == _DELETED, 0, 1 + (folds >= 0x80) + (folds >= 0x800) + (folds >= 0x10000))
    if (new_sizes > sizes).any():
        return _fold_points(text)
    places = beyond[firsts[changed]]
    encoded = np.frombuffer(_utf8(folds[folds != _DELETED]), np.uint8)
    starts = np.cumsum(new_sizes) - new_sizes
    made = data.copy()
    for byte in range(4):
        written = np.flatnonzero(new_sizes > byte)
        made[places[written] + byte] = encoded[starts[written] + byte]
        made[places[(new_sizes <= byte) & (sizes > byte)] + byte] = _NO_UTF8
    return made.tobytes().translate(None, bytes([_NO_UTF8]))


def _fold_points(text: bytes) -> bytes:
    folds = _folding_beyond_ascii().take(_code_points(text))
    return _utf8(folds[folds != _DELETED])


def _code_points(text: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.decode("utf-8", _ANY).encode("utf-32-le", _ANY), "<u4")


def _utf8(points: npt.NDArray[np.uint32]) -> bytes:
    return bytes(points.astype("<u4", copy=False).tobytes().decode("utf-32-le", _ANY).encode("utf-8", _ANY))


def _map(point: int) -> int:
    character = chr(point)
    if character.isspace():
        return _SPACE
    return _DELETED if is_punctuation(character) else ord(folded(character))


_ASCII = bytes(_map(point) & 0xFF if point < 128 else point for point in range(256))
_ASCII_DELETED = bytes(point for point in range(128) if _map(point) == _DELETED)


@functools.cache
def _folding() -> npt.NDArray[np.uint32]:
    """Return what each code point becomes, uint32 (1,114,112,); made once a process."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    table[:_BEYOND] = np.fromiter(map(_map, range(_BEYOND)), np.uint32, _BEYOND)
    return table


@functools.cache
def _folding_beyond_ascii() -> npt.NDArray[np.uint32]:
    table = _folding().copy()
    table[:128] = np.arange(128)
    return table


def _pieces(text: bytes) -> Iterator[bytes]:
    """Cut a text in UTF-8 at ASCII white space, into pieces of about 256 KiB; one with a longer word is longer."""
    start = 0
    while len(text) - start > _PIECE_BYTES:
        space = _WHITE_SPACE.search(text, start + _PIECE_BYTES)
        if space is None:
            break
        yield text[start : space.end()]
        start = space.end()
    yield text[start:] if start else text


def runs(text: bytes, n: int) -> Iterator[tuple[int, bytes]]:
    """Cut a text into runs that hold each of its n-grams once; memory follows the run.

    Args:
        text: in UTF-8.
        n: words of an n-gram; a run begins with the last n - 1 words before it, fewer when there are not so many.

    Yields:
        The number of these words, and the run.
    """
    if len(text) <= _PIECE_BYTES:
        yield 0, text
        return
    carried: list[bytes] = []
    for piece in _pieces(text):
        yield len(carried), b" ".join([*carried, piece])
        carried = _last_words(carried, piece, n - 1)


def _last_words(before: list[bytes], piece: bytes, count: int) -> list[bytes]:
    """Return the last words of a piece, of which only the end is looked at; and of those before it when it has few."""
    size = _WORD_BYTES * count
    while size < len(piece):
        space = _WHITE_SPACE.search(piece, len(piece) - size)
        found = normalised(piece[space.end() :]).split() if space else []
        if len(found) >= count:
            return found[-count:]
        size *= 4
    return [*before, *normalised(piece).split()][-count:]


def word_spans(text: bytes, words: Integers) -> tuple[Integers, Integers]:
    """Return where words of a text begin and end, in code points of the text, int64 (k,) each.

    Punctuation around a word is no part of its span.

    Args:
        text: in UTF-8.
        words: their numbers in the text, int64 (k,), in any order.
    """
    order = np.argsort(words, kind="stable")
    wanted = words[order]
    starts, ends = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    first = offset = 0
    for piece in _pieces(text):
        points = _folding().take(_code_points(piece))
        spaces = points == _SPACE
        kept = np.flatnonzero(~spaces & (points != _DELETED))
        before = np.cumsum(spaces)[kept]  # white space before each character: it grows from word to word
        changes = np.flatnonzero(before[1:] != before[:-1]) + 1
        begins = kept[np.concatenate([[0], changes])] if len(kept) else kept
        stops = kept[np.concatenate([changes, [len(kept)]]) - 1] + 1 if len(kept) else kept
        low, high = np.searchsorted(wanted, (first, first + len(begins)))
        here = wanted[low:high] - first
        starts[order[low:high]] = offset + begins[here]
        ends[order[low:high]] = offset + stops[here]
        first, offset = first + len(begins), offset + len(points)
    return starts, ends


class WordBlock:
    """The words of texts side by side, with the hash of every n-gram.

    Attributes:
        bytes: of the words, uint8, with one space or more and a separator between, and `PADDING` after them.
        starts, lengths: of each word in ``bytes``, int64 (words,); what stands between two texts counts as a word.
        first_words: number of the first word of each text, int64 (texts,).
        hashes: of the n-gram that begins at each word, uint64 (words - n + 1,) or (0,).
    """

    def __init__(self, texts: Sequence[bytes], n: int) -> None:
        self._n = n
        joined = _folded(texts)
        self.bytes: Bytes = np.frombuffer(joined + PADDING, np.uint8)
        spaces = np.flatnonzero(self.bytes[: len(joined)] == _SPACE)
        starts = np.concatenate([[0], spaces + 1])
        lengths = np.concatenate([spaces, [len(joined)]]) - starts
        words = np.flatnonzero(lengths)
        self.starts: Integers = starts[words]
        self.lengths: Integers = lengths[words]
        between = np.flatnonzero(self.bytes[self.starts] == _SEPARATOR)
        self.first_words: Integers = np.concatenate([[0], between + 1])
        self.hashes = _ngram_hashes(_word_hashes(self.bytes, self.starts, self.lengths), n)

    def words_of_texts(self) -> Integers:
        """Return the number of words of each text, int64 (texts,)."""
        return np.diff(self.first_words, append=len(self.starts) + 1) - 1

    def locate(self, ngrams: Integers) -> tuple[Integers, Integers, Integers]:
        """Return of n-grams those that lie within one text: their numbers, texts and first words in the text."""
        texts = np.searchsorted(self.first_words, ngrams, side="right") - 1
        after = np.append(self.first_words[1:] - 1, len(self.starts))
        inside = ngrams + self._n <= after[texts]
        ngrams, texts = ngrams[inside], texts[inside]
        return ngrams, texts, ngrams - self.first_words[texts]

    def sizes(self, ngrams: Integers) -> Integers:
        """Return how many bytes n-grams have in a normalised text."""
        before = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        return np.asarray(before[ngrams + self._n] - before[ngrams] - 1)


def _word_hashes(data: Bytes, starts: Integers, lengths: Integers) -> Hashes:
    """Return the hash of each word, uint64 (words,), from its bytes by eights."""
    eights = _eights(data)
    hashes: Hashes = (eights[starts] & _MASKS[np.minimum(lengths, 8)]) * _FACTOR
    hashes ^= hashes >> np.uint64(29)
    left = np.flatnonzero(lengths > 8)
    for done in range(8, _LONG_WORD, 8):
        left = left[lengths[left] > done]
        if not len(left):
            return hashes
        some = eights[starts[left] + done] & _MASKS[np.minimum(lengths[left] - done, 8)]
        some = (hashes[left] + some) * _FACTOR
        hashes[left] = some ^ (some >> np.uint64(29))
    for word in left[lengths[left] > _LONG_WORD].tolist():
        whole = data[starts[word] : starts[word] + lengths[word]].tobytes()
        hashes[word] = int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest(), "little")
    return hashes


def _ngram_hashes(words: Hashes, n: int) -> Hashes:
    """Return sum_i words[k + i] * F**(n - 1 - i) mod 2**64 for every k, mixed; by doubling, log2(n) passes."""
    if len(words) < n:
        return np.empty(0, np.uint64)
    hashes, length = words, 1
    for bit in f"{n:b}"[1:]:
        hashes = hashes[:-length] * _power(length) + hashes[length:]
        length *= 2
        if bit == "1":
            hashes = hashes[:-1] * _FACTOR + words[length:]
            length += 1
    hashes = hashes ^ (hashes >> np.uint64(32))
    return hashes * _FACTOR


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(_MULTIPLIER, exponent, 1 << 64))


def same_bytes(
    data: Bytes, begins: Integers, other: Bytes, other_begins: Integers, lengths: Integers
) -> npt.NDArray[np.bool_]:
    """Return whether ``data[begins : begins + lengths]`` is the same as that of ``other``, bool (k,).

    Both have `PADDING` after what is compared.
    """
    same = np.ones(len(lengths), np.bool_)
    short = np.flatnonzero(lengths <= _LONG_RANGE)
    eights, other_eights = _eights(data), _eights(other)
    done = 0
    while len(short):
        differ = eights[begins[short] + done] ^ other_eights[other_begins[short] + done]
        equal = (differ & _MASKS[np.minimum(lengths[short] - done, 8)]) == 0
        same[short[~equal]] = False
        done += 8
        short = short[equal & (lengths[short] > done)]
    for k in np.flatnonzero(lengths > _LONG_RANGE).tolist():
        one = data[begins[k] : begins[k] + lengths[k]]
        same[k] = np.array_equal(one, other[other_begins[k] : other_begins[k] + lengths[k]])
    return same


def _eights(data: Bytes) -> npt.NDArray[Any]:
    """Return the eight bytes from each byte on as one little-endian number, of bytes that stay where they are."""
    return np.ndarray((len(data) - 7,), "<u8", buffer=data.data, strides=(1,))
