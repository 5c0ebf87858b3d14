"""The word counts of scikit-learn's ``CountVectorizer``, for many texts at once and several times faster.

Words are runs of letters, digits and underscores (as `re` has them) in the lower-case text. Their bytes are found with
numpy and looked up with Arrow, instead of in a loop over words. A list of words with weights scores texts by them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, field_validator

from everytoken.arrays import Flags, SingleFloats

_SURROGATES = range(0xD800, 0xE000)  # no text in UTF-8 has them
_CODE_POINTS = 0x110000
_WORD = re.compile(r"(?u)\b\w\w+\b")
_PARAMETERS = {
    "analyzer": "word",
    "binary": False,
    "lowercase": True,
    "ngram_range": (1, 1),
    "preprocessor": None,
    "strip_accents": None,
    "token_pattern": r"(?u)\b\w\w+\b",
    "tokenizer": None,
}


class WordsScorer(BaseModel):
    """A list of words with weights as a scorer: how much of it is in a text.

    A score is ``1000 * (sum of the weights of the words of the text, each as often as it is there) / words``, so a
    weight of 1 counts occurrences in a thousand words. A text without words has the score 0.

    Attributes:
        words: the weight of each word, in lower case; below zero it lowers the score.
        max_chars: characters of a text that are read; the rest has no influence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["words"]
    words: Annotated[Mapping[str, FiniteFloat], Field(min_length=1)]
    max_chars: PositiveInt

    @field_validator("words")
    @classmethod
    def _are_words(cls, words: Mapping[str, float]) -> Mapping[str, float]:
        for word in words:
            if _WORD.fullmatch(word) is None or word != word.lower():
                raise ValueError(
                    f"{word!r} is no word as they are counted: two or more letters, digits or underscores, in lower "
                    f"case, without spaces"
                )
        return words


def word_scores(texts: Sequence[str], scorer: WordsScorer) -> SingleFloats:
    """Return the score of each text, float32 (n,); each depends on its own text alone."""
    read = [text[: scorer.max_chars] for text in texts]
    names = sorted(scorer.words)
    counts = count_words(read, vocabulary_array({word: number for number, word in enumerate(names)}))
    sums = counts.matrix @ np.array([scorer.words[word] for word in names])
    words = np.array([len(_WORD.findall(text.lower())) for text in read], np.float64)
    return np.asarray(1_000 * sums / np.maximum(words, 1), np.float32)


def same_words(vectorizer: Any) -> bool:
    """Return whether `count_words` gives the matrix of a fitted ``CountVectorizer``."""
    parameters, vocabulary = vectorizer.get_params(), vectorizer.vocabulary_
    as_here = all(parameters[name] == value for name, value in _PARAMETERS.items())
    return as_here and not set(vectorizer.get_stop_words() or ()) & set(vocabulary)


def vocabulary_array(vocabulary: Mapping[str, int]) -> pa.Array:
    """Return the words of ``vocabulary`` by their number."""
    return pa.array(sorted(vocabulary, key=vocabulary.__getitem__), pa.string())


class WordCounts(NamedTuple):
    """How often texts have words of a vocabulary, and how many words they have in all."""

    matrix: Any  # CSR of float64, shape (texts, words of the vocabulary); columns are sorted within each row
    words: int  # of two characters or more, of all texts
    unknown: int  # of these, neither in the vocabulary nor passed over


def count_words(texts: Sequence[str], vocabulary: pa.Array, passed_over: pa.Array | None = None) -> WordCounts:
    """Count the words of texts.

    Args:
        texts: at most 2**31 bytes together, in UTF-8.
        vocabulary: words of two characters or more.
        passed_over: words that are known without being counted, none of them in ``vocabulary``.
    """
    from scipy.sparse import csr_matrix

    encoded = [text.lower().encode() for text in texts]
    joined = b"\n".join([*encoded, b""])
    edges = np.flatnonzero(np.diff(_is_word_byte(joined), prepend=False)).astype(np.int32).reshape(-1, 2)
    edges = edges[np.subtract(*edges.T[::-1]) >= 2].ravel()  # begin and end of each word
    runs = pa.StringArray.from_buffers(max(0, len(edges) - 1), pa.py_buffer(edges), pa.py_buffer(joined))
    found = pc.fill_null(pc.index_in(runs, value_set=vocabulary), -1).to_numpy()[::2]  # between are no words
    known = np.flatnonzero(found >= 0)
    ends = np.cumsum([len(text) + 1 for text in encoded], dtype=np.int64)
    text_of = np.searchsorted(ends, edges[::2][known], side="right")
    keys, counts = np.unique(text_of * len(vocabulary) + found[known], return_counts=True)
    rows, columns = np.divmod(keys, len(vocabulary))
    begins = np.searchsorted(rows, np.arange(len(texts) + 1))
    matrix = csr_matrix((counts.astype(np.float64), columns, begins), shape=(len(texts), len(vocabulary)))
    words = int(np.count_nonzero(pc.utf8_length(runs).to_numpy()[::2] >= 2))  # a letter may have several bytes
    unknown = words - len(known)
    if passed_over is not None:
        unknown -= int(np.count_nonzero(pc.is_in(runs, value_set=passed_over).to_numpy(zero_copy_only=False)[::2]))
    return WordCounts(matrix, words, unknown)


def _is_word_byte(joined: bytes) -> Flags:
    """Return for each byte whether it is of a character of a word."""
    data = np.frombuffer(joined, np.uint8)
    of_ascii, of_code_point = _word_tables()
    flags = of_ascii[data]
    if not joined.isascii():
        points = np.frombuffer(joined.decode().encode("utf-32-le"), "<u4")
        points = points[points >= 0x80]
        flags[data >= 0x80] = np.repeat(of_code_point[points], 2 + (points >= 0x800) + (points >= 0x10000))
    return flags


@functools.cache
def _word_tables() -> tuple[Flags, Flags]:
    """Return which bytes below 128, of 256, and which code points are of words."""
    flags = np.zeros(_CODE_POINTS, np.bool_)
    for first, end in ((0, _SURROGATES.start), (_SURROGATES.stop, _CODE_POINTS)):
        for match in re.finditer(r"\w+", "".join(map(chr, range(first, end)))):
            flags[first + match.start() : first + match.end()] = True
    of_byte = flags[:256].copy()
    of_byte[128:] = False
    return of_byte, flags
