"""Word counts are those of scikit-learn's vectorizer, and probabilities those of the package, to the bit."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profanity_check.profanity_check import predict_prob, vectorizer
from sklearn.feature_extraction.text import CountVectorizer

from everytoken.corpus.scoring.embedded import rate_texts
from everytoken.corpus.scoring.word_counts import count_words, same_words, vocabulary_array
from tests.corpus.scoring.test_embedded import scorer

# what separates words or belongs to one, cases that change the length, code points of one to four bytes
PIECES = ["a", "ab", "Damn", "damn", "_", "x_1", " ", "\n", "\x00", "'", "-", "é", "É", "ß", "İ", "Σ", "ΑΣ", "ﬁ"]
PIECES += [
    "日本",
    "語",
    "٣٤",
    "x²",
    "ⅷ",
    "\u200d",
    "\u0301",
    "\U0001d518\U0001d52b",
    "😀",
    "\ufeff",
    "\U0010ffff",
    "stupid",
    "idiot",
]
WORDS = [
    "damn",
    "ab",
    "x_1",
    "éa",
    "日本",
    "日本語",
    "٣٤",
    "\u03b1\u03c2a",
    "i̇a",
    "\U0001d518\U0001d52b",
    "idiot",
    "stupid",
]
texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=8)


def same(found, expected):
    assert found.shape == expected.shape
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@settings(max_examples=300, deadline=None)
@given(texts)
def test_counts_are_those_of_scikit_learn(texts):
    expected = CountVectorizer(vocabulary=WORDS, dtype=np.float64).transform(["", *texts])
    counted = count_words(["", *texts], vocabulary_array({word: number for number, word in enumerate(WORDS)}))
    same(counted.matrix, expected)
    split = CountVectorizer().build_analyzer()
    words = [word for text in texts for word in split(text)]
    assert (counted.words, counted.unknown) == (len(words), sum(word not in WORDS for word in words))
    passed = count_words(texts, vocabulary_array({"damn": 0}), vocabulary_array({"idiot": 0, "x_1": 1}))
    assert passed.unknown == sum(word not in ("damn", "idiot", "x_1") for word in words)


def test_every_character_is_of_a_word_or_not_as_in_scikit_learn():
    points = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]
    texts = [
        " ".join(f"x{chr(point)}y" for point in points[first : first + 512]) for first in range(0, len(points), 512)
    ]
    check = CountVectorizer(dtype=np.float64).fit(texts)
    same(count_words(texts, vocabulary_array(check.vocabulary_)).matrix, check.transform(texts))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(texts)
def test_probabilities_are_those_of_the_package(texts):
    assert rate_texts(["", *texts], scorer()).probabilities.tobytes() == predict_prob(["", *texts]).tobytes()


@pytest.mark.parametrize("changes", [{"token_pattern": r"\w+"}, {"lowercase": False}, {"ngram_range": (1, 2)}])
def test_a_vectorizer_with_other_words_is_noticed(changes):
    assert same_words(vectorizer)
    assert not same_words(CountVectorizer(**changes).fit(["damn it"]))


def test_a_stop_word_in_a_vocabulary_is_noticed():
    assert not same_words(CountVectorizer(stop_words=["damn"], vocabulary=["damn"]).fit(["it"]))
