"""The distinct documents of a part: which rows have the same id, and one score for each id.

Rows of a part that share an ``id`` share the score of the first of them, **also when their texts differ**: an
upstream whose ids repeat across different texts gives all of them the score of one. The statistic
``same_id_other_text`` counts these rows; a source where it is not 0 wants other ``id_columns``. The empty string is an
id like any other; a null id is never a duplicate of another null id.

A part is read three times: its ids, to see which rows are the first of theirs; the texts of these, which are scored in
whatever order the scorer finds fast; and all columns, beside which the scores are put. At most 32 bytes a row and
about 350 bytes a distinct id are held, and the texts that the scorer has in hand.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everytoken.arrays import Integers, SingleFloats
from everytoken.corpus.documents import N_CLASSES
from everytoken.corpus.errors import ScoringError
from everytoken.shards import Part, rows_done


class Scored(NamedTuple):
    """Scores of some texts: their numbers, int64 (n,), and class probabilities, float32 (n, classes)."""

    numbers: Integers
    probabilities: SingleFloats


class TextScorer(Protocol):
    """Scores texts in bounded memory; the probabilities of a text depend on that text alone."""

    def score(self, texts: Iterable[tuple[int, str]]) -> Generator[Scored, None, ScorerCounts]:
        """Yield the scores of numbered texts, each once, in any order; return counts for the part's statistics."""


class ScorerCounts(TypedDict, total=False):
    """What a scorer counted, if it does: ``truncated``, texts that it did not read to their end; ``tokens`` that it
    read, ``padded_tokens`` that went through it; ``words`` that it read, and of these the ``unknown_words``;
    ``scored_with``, texts by what ran.
    """

    truncated: int
    tokens: int
    padded_tokens: int
    words: int
    unknown_words: int
    scored_with: dict[str, int]


class DistinctRows(NamedTuple):
    """Which rows of a part have the same id."""

    of_row: Integers  # (rows,): number of the row's id; ids are numbered as they come, each null id for itself
    ids: int  # how many
    null_ids: int
    same_id_other_text: int  # rows that are not the first of their id, and have another text than that one


def distinct_rows(part: Part) -> DistinctRows:
    """Number the ids of a part; an id is known by its text and its JSON type: the number 1 is not the string "1"."""
    numbers: dict[tuple[str, str], tuple[int, bytes]] = {}  # and the digest of its first text
    of_row: list[Integers] = [np.empty(0, np.int64)]
    count = null_ids = other_text = 0
    for batch in part.batches(["id", "id_type", "text_sha256"]):
        here = np.empty(batch.num_rows, np.int64)
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for row, (identifier, kind, digest) in enumerate(rows):
            if identifier is None:
                null_ids += 1
                here[row] = count
                count += 1
                continue
            number, first_text = numbers.setdefault((identifier, kind), (count, digest))
            here[row] = number
            if number == count:
                count += 1
            elif digest != first_text:
                other_text += 1
        of_row.append(here)
    return DistinctRows(np.concatenate(of_row), count, null_ids, other_text)


def first_of_ids(of_row: Integers) -> npt.NDArray[np.bool_]:
    """Return which rows are the first of their id, bool (rows,)."""
    is_first = np.zeros(len(of_row), np.bool_)
    is_first[np.unique(of_row, return_index=True)[1]] = True
    return is_first


def first_texts(part: Part, of_row: Integers) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of the first row of each id, in order."""
    is_first = first_of_ids(of_row)
    start = 0
    for batch in part.batches(["text"]):
        rows = start + np.flatnonzero(is_first[start : start + batch.num_rows])
        texts = batch.column(0).take(pa.array(rows - start)).to_pylist()
        yield from zip(of_row[rows].tolist(), texts, strict=True)
        start += batch.num_rows


def score_distinct(
    part: Part, distinct: DistinctRows, scorer: TextScorer, classes: int = N_CLASSES
) -> tuple[SingleFloats, ScorerCounts]:
    """Return the class probabilities of each id's first text, float32 (distinct, classes), and the scorer's counts.

    Args:
        classes: how many the scorer tells; what it gives of one is a number, and no probability.

    Raises:
        ScoringError: the scorer left a text out, scored one twice, or gave a probability that is none.
    """
    probabilities = np.empty((distinct.ids, classes), np.float32)
    times = np.zeros(distinct.ids, np.int8)
    texts = 0
    scored = scorer.score(first_texts(part, distinct.of_row))
    while True:
        try:
            some = next(scored)
        except StopIteration as stop:
            counts = stop.value
            break
        probabilities[some.numbers] = some.probabilities
        np.add.at(times, some.numbers, 1)
        texts += len(some.numbers)
        rows_done(len(distinct.of_row) * texts // distinct.ids)
    if (times != 1).any():
        raise ScoringError(f"{part.name}: {np.count_nonzero(times != 1):,} texts were not scored exactly once")
    is_told = (probabilities >= 0) & (probabilities <= 1) if classes > 1 else np.isfinite(probabilities)
    strange = ~is_told.all(axis=1)  # NaN compares false
    if strange.any():
        number = int(np.flatnonzero(strange)[0])
        row = int(np.flatnonzero(distinct.of_row == number)[0])
        raise ScoringError(
            f"{part.name}: {np.count_nonzero(strange):,} texts have no probabilities; the first is row {row}: "
            f"{probabilities[number].tolist()}. The model gives numbers that are not finite: try float32, or another."
        )
    return probabilities, counts
