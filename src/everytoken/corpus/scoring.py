"""Safety scores: six classes 0 (harmless) to 5, one score an id, the same whatever else is in the batch.

Rows of a part that share an ``id`` share the score of the first of them, **also when their texts differ**: an
upstream whose ids repeat across different texts gives all of them the score of one. The statistic
``same_id_other_text`` counts these rows; a source where it is not 0 wants other ``id_columns``. The empty string is an
id like any other; a null id is never a duplicate of another null id.

The embedded scorer needs no download: alt-profanity-check gives p(offensive), a linear model over TF-IDF of single
words. It is **lexical**: it knows words, not meaning ("the screw is a mechanism" scores above average, a polite
threat does not), long texts dilute what a sentence says, and its classes are a stand-in that lets the whole pipeline
run, not a safety judgement. The probability becomes classes by an ordinal logistic with five increasing thresholds
(proportional odds, McCullagh 1980): ``P(class >= k) = sigmoid(slope * (logit(p) - threshold_k))``, class
probabilities by differences.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
from collections import Counter
from collections.abc import Callable, Container, Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, field_validator

from everytoken.corpus.documents import N_CLASSES, SCORE_FIELDS, with_fields
from everytoken.corpus.errors import ScoringError
from everytoken.shards import Part, Rows, versioned

_PACKAGE = "alt-profanity-check"
_Threshold = FiniteFloat


class EmbeddedScorer(BaseModel):
    """The scorer that comes with the project.

    Attributes:
        version: of alt-profanity-check, whose installed version must be this one: another model, other scores.
        max_chars: characters of a text that are read; the rest has no influence. The vectoriser holds about 30 bytes a
            character of the longest batch.
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


_Id = tuple[str | None, str | None]  # with its type: the number 1 and the string "1" are two ids
_NO_ID: _Id = (None, None)


def offensive_probabilities(texts: Sequence[str], scorer: EmbeddedScorer) -> npt.NDArray[np.float64]:
    """Return p(offensive) of each text, float64 of shape (n,); each depends on its own text alone."""
    if not texts:
        return np.empty(0, dtype=np.float64)
    predict = _embedded_model(scorer.version)
    return np.asarray(predict([text[: scorer.max_chars] for text in texts]), dtype=np.float64)


def class_probabilities(p: npt.NDArray[np.float64], scorer: EmbeddedScorer) -> npt.NDArray[np.float32]:
    """Return the class probabilities, float32 of shape (n, 6), by the ordinal logistic of the module docstring.

    ``p`` of exactly 0 or 1 gives class 0 or 5 with probability 1.
    """
    from scipy.special import expit, logit  # imported here: not every user of the corpus package scores

    # (n, 1) - (5,) -> (n, 5): P(class >= 1) ... P(class >= 5), non-increasing along the axis
    at_least = expit(scorer.slope * (logit(p)[:, None] - np.asarray(scorer.thresholds)))
    edges = np.concatenate([np.ones((len(p), 1)), at_least, np.zeros((len(p), 1))], axis=1)
    return np.asarray(edges[:, :-1] - edges[:, 1:], dtype=np.float32)


@versioned(3)
def score_part(part: Part, *, scorer: EmbeddedScorer) -> Rows:
    """Append ``safety_score`` (int8, the most probable class, the lower of equals) and ``safety_probs`` (6 float32).

    Every row of the input is a row of the output, in order, with its columns unchanged. Memory: one batch, and about
    350 bytes for each distinct id of the part (ids of 36 characters).

    Args:
        part: documents of schema `DOCUMENTS`.
        scorer: which scorer, with its parameters.

    Returns:
        Rows with the two columns appended. Statistics: ``rows``, ``scored`` (rows whose text was scored: distinct ids
        and null ids), ``null_ids``, ``same_id_other_text`` (rows with the score of an earlier row of their id whose
        text is another one), ``truncated`` (scored texts of over ``max_chars``), and by source the classes over all
        rows (``rows_by_class``) and over the scored ones (``scored_by_class``): two distributions, never the same where
        upstream repeats documents.
    """
    schema = with_fields(part.schema, SCORE_FIELDS)
    return Rows(schema, _scored_batches(part, scorer, schema))


def _scored_batches(
    part: Part, scorer: EmbeddedScorer, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    known: dict[_Id, tuple[float, bytes]] = {}  # of each id the probability and the digest of its first text
    counts: Counter[str] = Counter(rows=0, scored=0, null_ids=0, same_id_other_text=0, truncated=0)
    by_source: dict[str, dict[str, Counter[str]]] = {}
    for batch in part.batches():
        ids = list(zip(batch.column("id").to_pylist(), batch.column("id_type").to_pylist(), strict=True))
        new = _first_rows(ids, known)
        texts, digests = batch.column("text").to_pylist(), batch.column("text_sha256").to_pylist()
        new_texts = [texts[row] for row in new]
        p = np.empty(len(ids), dtype=np.float64)
        p[new] = offensive_probabilities(new_texts, scorer)
        known.update((ids[row], (float(p[row]), digests[row])) for row in new if ids[row] != _NO_ID)
        for row in set(range(len(ids))).difference(new):
            p[row], first_text = known[ids[row]]
            counts["same_id_other_text"] += first_text != digests[row]
        probabilities = class_probabilities(p, scorer)
        scores = np.argmax(probabilities, axis=1).astype(np.int8)
        counts.update(rows=len(ids), scored=len(new), null_ids=ids.count(_NO_ID))
        counts["truncated"] += sum(len(text) > scorer.max_chars for text in new_texts)
        _count_classes(by_source, batch.column("source").to_pylist(), scores, new)
        offsets = np.arange(len(ids) + 1, dtype=np.int32) * N_CLASSES
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(probabilities.ravel()))
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(scores), lists], schema=schema)
    classes = [str(k) for k in range(N_CLASSES)]
    return {
        **counts,
        "by_source": {
            source: {kind: {k: by_kind[kind][k] for k in classes} for kind in sorted(by_kind)}
            for source, by_kind in sorted(by_source.items())
        },
    }


def _first_rows(ids: Sequence[_Id], known: Container[_Id]) -> list[int]:
    """Return the rows that must be scored: null ids, and the first row of each id that is not known yet."""
    met: set[_Id] = set()
    rows = []
    for row, identifier in enumerate(ids):
        if identifier == _NO_ID:
            rows.append(row)
        elif identifier not in known and identifier not in met:
            met.add(identifier)
            rows.append(row)
    return rows


def _count_classes(
    by_source: dict[str, dict[str, Counter[str]]], sources: list[str], scores: npt.NDArray[np.int8], new: list[int]
) -> None:
    classes = [str(score) for score in scores.tolist()]
    for source, score in zip(sources, classes, strict=True):
        by_source.setdefault(source, {"rows_by_class": Counter(), "scored_by_class": Counter()})
        by_source[source]["rows_by_class"][score] += 1
    for row in new:
        by_source[sources[row]]["scored_by_class"][classes[row]] += 1


@functools.cache
def _embedded_model(version: str) -> Callable[[list[str]], Any]:
    """Load the model once a process; importing the package does it."""
    try:
        installed = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ScoringError(f"{_PACKAGE} is not installed: pip install {_PACKAGE}=={version}.") from None
    if installed != version:
        raise ScoringError(
            f"the parameters pin {_PACKAGE} {version}, installed is {installed}; another version scores differently. "
            f"Install the pinned one, or set scorer.version to {installed} and score again."
        )
    from profanity_check import predict_prob

    return predict_prob  # type: ignore[no-any-return]
