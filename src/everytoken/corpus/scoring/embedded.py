"""The scorer that comes with the project: alt-profanity-check gives p(offensive), a linear model over TF-IDF of words.

It is **lexical**: it knows words, not meaning ("the screw is a mechanism" scores above average, a polite threat does
not), long texts dilute what a sentence says, and its classes are a stand-in that lets the whole pipeline run without a
download, not a safety judgement. It knows **English words alone**: of a text in another language it reads what happens
to be spelled as in English, so the words that it does not know are counted. The probability becomes classes by an
ordinal logistic with five increasing thresholds (proportional odds, McCullagh 1980): ``P(class >= k) = sigmoid(slope *
(logit(p) - threshold_k))``, class probabilities by differences.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, field_validator

from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.one_score_per_id import Scored, ScorerCounts, TextScorer
from everytoken.corpus.scoring.word_counts import count_words, same_words, vocabulary_array
from everytoken.shards import Built, file_sha256, versioned

_PACKAGE = "alt-profanity-check"
_BATCH_CHARACTERS = 1 << 21
_Threshold = FiniteFloat


class EmbeddedScorer(BaseModel):
    """The scorer that comes with the project.

    Attributes:
        version: of alt-profanity-check, whose installed version must be this one: another model, other scores.
        max_chars: characters of a text that are read; the rest has no influence.
        slope: how sharp the classes are: larger gives probabilities nearer to 0 and 1.
        thresholds: the values of logit(p) where P(class >= 1), ..., P(class >= 5) are one half.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded"]
    version: str
    max_chars: PositiveInt
    slope: Annotated[FiniteFloat, Field(gt=0)]
    thresholds: tuple[_Threshold, _Threshold, _Threshold, _Threshold, _Threshold]

    @field_validator("thresholds")
    @classmethod
    def _increasing(cls, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        for k, (lower, upper) in enumerate(itertools.pairwise(thresholds), start=1):
            if not lower < upper:
                raise ValueError(
                    f"thresholds must increase strictly: the one of class {k} is {lower}, of class {k + 1} {upper}; "
                    f"else a class would have negative probability"
                )
        return thresholds


class Offensive(NamedTuple):
    """What the model says of texts."""

    probabilities: npt.NDArray[np.float64]  # p(offensive), (n,); each depends on its own text alone
    words: int  # that it read
    unknown_words: int  # of these, neither in its vocabulary nor a stop word


def rate_texts(texts: Sequence[str], scorer: EmbeddedScorer) -> Offensive:
    """Return p(offensive) of each text, and how many of all their words the model knows."""
    if not texts:
        return Offensive(np.empty(0, dtype=np.float64), 0, 0)
    return _embedded_model(scorer.version)([text[: scorer.max_chars] for text in texts])


def class_probabilities(p: npt.NDArray[np.float64], scorer: EmbeddedScorer) -> npt.NDArray[np.float32]:
    """Return the class probabilities, float32 of shape (n, 6), by the ordinal logistic of the module docstring.

    ``p`` of exactly 0 or 1 gives class 0 or 5 with probability 1.
    """
    from scipy.special import expit, logit  # imported here: not every user of the corpus package scores

    # (n, 1) - (5,) -> (n, 5): P(class >= 1) ... P(class >= 5), non-increasing along the axis
    at_least = expit(scorer.slope * (logit(p)[:, None] - np.asarray(scorer.thresholds)))
    edges = np.concatenate([np.ones((len(p), 1)), at_least, np.zeros((len(p), 1))], axis=1)
    return np.asarray(edges[:, :-1] - edges[:, 1:], dtype=np.float32)


def embedded_classes(texts: Sequence[str], scorer: EmbeddedScorer) -> npt.NDArray[np.int64]:
    """Return the most probable class of each text, shape (n,)."""
    return np.asarray(class_probabilities(rate_texts(texts, scorer).probabilities, scorer).argmax(axis=1), np.int64)


class _Embedded:
    def __init__(self, scorer: EmbeddedScorer) -> None:
        self._scorer = scorer

    def score(self, texts: Iterable[tuple[int, str]]) -> Generator[Scored, None, ScorerCounts]:
        scored = truncated = words = unknown_words = 0
        texts = iter(texts)
        while some := list(_until_full(texts)):
            numbers, batch = zip(*some, strict=True)
            scored += len(batch)
            truncated += sum(len(text) > self._scorer.max_chars for text in batch)
            rated = rate_texts(batch, self._scorer)
            words += rated.words
            unknown_words += rated.unknown_words
            yield Scored(np.array(numbers, np.int64), class_probabilities(rated.probabilities, self._scorer))
        with_what = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in (_PACKAGE, "scikit-learn"))
        return {
            "truncated": truncated,
            "words": words,
            "unknown_words": unknown_words,
            "scored_with": {with_what: scored},
        }


def embedded_scorer(scorer: EmbeddedScorer) -> TextScorer:
    """Return the scorer; it counts ``truncated`` (over ``max_chars``), ``words``, ``unknown_words`` and ``scored_with``
    (texts by versions).
    """
    return _Embedded(scorer)


def _until_full(texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield texts until they have enough characters for a batch."""
    characters = 0
    while characters < _BATCH_CHARACTERS and (text := next(texts, None)) is not None:
        characters += len(text[1])
        yield text


class PackagedModel(TypedDict):
    """Statistics of `identify_model`; ``weights``: SHA-256 by name of the file."""

    package: str
    version: str
    weights: dict[str, str]


@versioned("identify_model", 1)
def identify_model(folder: Path, *, version: str) -> Built:
    """Record which model the installed package holds: an artifact without files, with the SHA-256 of the weights.

    Raises:
        ScoringError: the package is not installed, or not in this version.
    """
    require_embedded(version)
    weights = {
        Path(file).name: file_sha256(Path(str(file.locate())))
        for file in importlib.metadata.files(_PACKAGE) or ()
        if file.suffix == ".joblib"
    }
    return Built(PackagedModel(package=_PACKAGE, version=version, weights=dict(sorted(weights.items()))))


@functools.cache
def _embedded_model(version: str) -> Callable[[Sequence[str]], Offensive]:
    """Load the model once a process; importing the package does it. It gives the bits of the package's own function."""
    require_embedded(version)
    from profanity_check.profanity_check import model, vectorizer
    from sklearn.feature_extraction.text import TfidfTransformer

    if not same_words(vectorizer):
        raise ScoringError(f"{_PACKAGE} {version} splits text into other words than 1.9.1 does; install that version.")
    words = vocabulary_array(vectorizer.vocabulary_)
    weights = TfidfTransformer(norm=vectorizer.norm, sublinear_tf=vectorizer.sublinear_tf)
    weights.idf_ = vectorizer.idf_
    stop_words = pa.array(sorted(vectorizer.get_stop_words() or ()), pa.string())

    def rate(texts: Sequence[str]) -> Offensive:
        counted = count_words(texts, words, stop_words)
        p = model.predict_proba(weights.transform(counted.matrix, copy=False))[:, 1]
        return Offensive(np.asarray(p, dtype=np.float64), counted.words, counted.unknown)

    return rate


def require_embedded(version: str) -> None:
    """Check that the package of the model is installed.

    Raises:
        ScoringError: it is not, or not in this version.
    """
    try:
        installed = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ScoringError(f"{_PACKAGE} is not installed: pip install {_PACKAGE}=={version}.") from None
    if installed != version:
        raise ScoringError(
            f"the parameters pin {_PACKAGE} {version}, installed is {installed}; another version scores differently. "
            f"Install the pinned one, or set scorer.version to {installed} and score again."
        )
