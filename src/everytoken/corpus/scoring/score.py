"""Scored parts: every row of the input is a row of the output, in order, with two columns appended.

``safety_score`` is the most probable class (the lower of equals), ``safety_probs`` the six class probabilities.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everytoken.arrays import SingleFloats
from everytoken.corpus.documents import N_CLASSES, SCORE_FIELDS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.embedded import EmbeddedScorer, embedded_scorer
from everytoken.corpus.scoring.one_score_per_id import (
    ScorerCounts,
    TextScorer,
    distinct_rows,
    first_of_ids,
    score_distinct,
)
from everytoken.corpus.scoring.transformer import TransformersScorer, transformers_scorer
from everytoken.corpus.statistics import ClassesBySource, ScoreCounts
from everytoken.shards import Artifact, Part, Rows, versioned


class ScoredStatistics(ClassesBySource, ScorerCounts):
    """Statistics of `score_part`."""

    rows: int
    scored: int
    null_ids: int
    same_id_other_text: int


@versioned("score_part", 4)
def score_part(part: Part, *, scorer: EmbeddedScorer | TransformersScorer, model: Artifact | None) -> Rows:
    """Append the scores of a model to the documents of a part; the score of an id's first row is copied onto all.

    Args:
        part: documents of schema `DOCUMENTS`.
        model: the files of a transformer, from `everytoken.corpus.scoring.model_files`; None for other scorers.

    Returns:
        Rows with the two columns appended. Statistics: ``rows``; ``scored``, the texts that went through the model
        (distinct ids, and null ids); ``null_ids``; ``same_id_other_text``, the rows with the score of an earlier row of
        their id whose text is another one; what the scorer counts (``truncated``: texts that it did not read to their
        end); ``by_source[source]`` with ``rows_by_class`` and ``distinct_by_class``, see `ClassCounts`.
    """
    return Rows.extending(part, SCORE_FIELDS, part_scores(part, text_scorer(scorer, model)))


def text_scorer(scorer: EmbeddedScorer | TransformersScorer, model: Artifact | None) -> TextScorer:
    """Return what scores texts; a model is loaded once a process."""
    if isinstance(scorer, EmbeddedScorer):
        return embedded_scorer(scorer)
    if model is None:
        raise ScoringError("scorer.kind transformers scores with the files of a model, and none are given.")
    return transformers_scorer(scorer, model)


def part_scores(part: Part, scorer: TextScorer) -> Generator[pa.RecordBatch, None, ScoredStatistics]:
    """Yield `SCORE_FIELDS` of the documents of a part; return the statistics of `score_part`."""
    distinct = distinct_rows(part)
    probabilities, counted = score_distinct(part, distinct, scorer)
    classes = ClassCounts()
    is_first = first_of_ids(distinct.of_row)
    start = 0
    for batch in part.batches(["source"]):
        rows = slice(start, start + batch.num_rows)
        start += batch.num_rows
        columns = score_columns(probabilities[distinct.of_row[rows]])
        classes.add(batch.column("source"), columns[0].to_numpy(), is_first[rows])
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(SCORE_FIELDS))
    return {
        "rows": len(distinct.of_row),
        "scored": distinct.ids,
        "null_ids": distinct.null_ids,
        "same_id_other_text": distinct.same_id_other_text,
        **counted,
        "by_source": classes.by_source(),
    }


def score_columns(probabilities: SingleFloats) -> list[pa.Array]:
    """Return ``safety_score`` and ``safety_probs`` of rows with probabilities (n, 6)."""
    return [pa.array(np.argmax(probabilities, axis=1).astype(np.int8)), probability_lists(probabilities)]


def probability_lists(probabilities: SingleFloats, there: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return lists of 6 float32, of rows (n, 6); null where a row is not ``there``."""
    there = np.ones(len(probabilities), np.bool_) if there is None else there
    ends = np.cumsum(there, dtype=np.int32) * N_CLASSES
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(probabilities[there].ravel()), mask=pa.array(~there))


class ClassCounts:
    """Classes by source: of all rows, and of each id once a part - two distributions that are easily confused.

    A row without a score counts as class 0 among the rows, as it does in the draw, and not at all among the ids.
    """

    def __init__(self) -> None:
        self._rows: dict[str, npt.NDArray[np.int64]] = {}
        self._distinct: dict[str, npt.NDArray[np.int64]] = {}

    def add(self, sources: pa.Array, scores: npt.NDArray[np.int8], is_distinct: npt.NDArray[np.bool_]) -> None:
        """Count rows, and those that stand for an id; all three of shape (rows,)."""
        encoded = sources.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        for number, source in enumerate(encoded.dictionary.to_pylist()):
            of_source = numbers == number
            for counts, rows in ((self._rows, of_source), (self._distinct, of_source & is_distinct)):
                counted = np.bincount(scores[rows], minlength=N_CLASSES)
                counts[source] = counts.get(source, np.zeros(N_CLASSES, np.int64)) + counted

    def by_source(self) -> dict[str, ScoreCounts]:
        """Return counts by source, kind and class, sorted."""
        rows, distinct = ({source: _by_class(of[source]) for source in of} for of in (self._rows, self._distinct))
        return {
            source: ScoreCounts(rows_by_class=rows[source], distinct_by_class=distinct[source])
            for source in sorted(self._rows)
        }


def _by_class(counts: npt.NDArray[np.int64]) -> dict[str, int]:
    return {str(k): n for k, n in enumerate(counts.tolist())}
