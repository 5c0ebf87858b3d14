"""No scorer: documents keep the columns of scored ones, without a score.

Such a document has class 0 and null probabilities, as one that no published table knows. Whatever shows it says that it
was not scored, and no threshold divides such documents.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from everytoken.corpus.documents import SCORE_FIELDS
from everytoken.corpus.scoring.score import ClassCounts
from everytoken.corpus.statistics import ClassesBySource
from everytoken.shards import Built, Part, Rows, versioned


class NoScorer(BaseModel):
    """Documents are not scored, and ``subsampling.annotation_threshold`` is null."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none"]


class UnscoredStatistics(ClassesBySource):
    """Statistics of `leave_unscored`."""

    rows: int
    distinct_without_score: int


@versioned("no_model", 1)
def no_model(folder: Path) -> Built:
    """Record that nothing scores: an artifact without files."""
    return Built({})


@versioned("leave_unscored", 1)
def leave_unscored(part: Part) -> Rows:
    """Append the two columns of scores to the documents of a part: class 0 and null probabilities.

    Returns:
        Statistics: ``rows``; ``distinct_without_score``, the same; ``by_source`` as in
        `everytoken.corpus.scoring.score.score_part`.
    """
    return Rows.extending(part, SCORE_FIELDS, no_scores(part))


def no_scores(part: Part) -> Generator[pa.RecordBatch, None, UnscoredStatistics]:
    """Yield `SCORE_FIELDS` of the documents of a part; return the statistics of `leave_unscored`."""
    classes, rows = ClassCounts(), 0
    for batch in part.batches(["source"]):
        scores = np.zeros(batch.num_rows, np.int8)
        classes.add(batch.column("source"), scores, np.zeros(batch.num_rows, np.bool_))
        rows += batch.num_rows
        nulls = pa.nulls(batch.num_rows, SCORE_FIELDS[1].type)
        yield pa.RecordBatch.from_arrays([pa.array(scores), nulls], schema=pa.schema(SCORE_FIELDS))
    return {"rows": rows, "distinct_without_score": rows, "by_source": classes.by_source()}
