"""The splits of documents that nobody scored: what is held out, and the others, none of which is annotated.

They have the columns of scored splits, as a document that no score is known of has them: class 0, no probabilities.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.corpus.documents import SCORE_FIELDS, SPLIT_FIELDS
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.exclusion import excluded_addresses, excluded_rows
from everytoken.corpus.sampling.held_out import HeldOutRule
from everytoken.corpus.sampling.splits import DrawnCounts, drawn_counts, gather_unscored
from everytoken.shards import Part, Rows, versioned

UnscoredSplit = Literal["annotated", "unannotated", "held_out"]
_FIELDS = (*SCORE_FIELDS, *SPLIT_FIELDS)


class UnscoredCounts(DrawnCounts):
    """Statistics of `split_unscored`; held-out documents that are ``excluded`` are left out."""

    rows_in: int
    excluded: int


@versioned("split_unscored", 1)
def split_unscored(part: Part, exclusions: Part | None = None, *, split: UnscoredSplit, rule: HeldOutRule) -> Rows:
    """Return the rows of one split of one part, in input order.

    Args:
        part: documents, as `everytoken.corpus.documents.DOCUMENTS` describes them.
        exclusions: its `everytoken.corpus.exclusion.find_excluded`; held-out documents in it are left out. Others
            stay, and tombstones take their places later. None: none.
        split: ``held_out`` has the rows that the rule names, ``unannotated`` every other one, ``annotated`` none.

    Returns:
        Every input column, then ``safety_score`` (0), ``safety_probs`` (null), ``has_annotation`` and ``is_bad`` (both
        false). Statistics: ``rows_in``; ``rows``, ``estimated_tokens``, ``by_source`` and ``by_score`` of the split;
        ``excluded``.
    """
    facts = gather_unscored(part, rule)
    excluded = np.zeros(len(facts.tokens), np.bool_)
    if addresses := excluded_addresses(exclusions):
        excluded = np.concatenate([excluded_rows(batch, addresses) for batch in part.batches(ADDRESS_COLUMNS)])
    is_in = {
        "held_out": facts.is_held_out & ~excluded,
        "unannotated": ~facts.is_held_out,
        "annotated": np.zeros(len(excluded), np.bool_),
    }[split]
    rows = np.flatnonzero(is_in)
    left_out = int(np.count_nonzero(facts.is_held_out & excluded)) if split == "held_out" else 0
    counted = {"rows_in": len(excluded), **drawn_counts(facts, rows), "excluded": left_out}
    made = Rows.extending(part, _FIELDS, _without_scores(len(rows), counted), rows)
    return made.copied() if split == "held_out" else made


def check_split_conservation(documents: int, counts: Mapping[str, UnscoredCounts]) -> None:
    """Check that every document is in one split, or excluded.

    Raises:
        SamplingError: the numbers differ.
    """
    found = sum(counted.get("rows", 0) + counted.get("excluded", 0) for counted in counts.values())
    if found != documents:
        raise SamplingError(
            f"{documents:,} documents came, and {found:,} are in a split or excluded: remove the splits "
            f"({', '.join(counts)}) and run the pipeline splitting again"
        )


def _without_scores(rows: int, counted: dict[str, Any]) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    """Yield the columns that scored splits have for rows without score; return the statistics of the part."""
    false, scores = pa.array(np.zeros(rows, np.bool_)), pa.array(np.zeros(rows, np.int8))
    columns = [scores, pa.nulls(rows, SCORE_FIELDS[1].type), false, false]
    yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(_FIELDS))
    return counted
