"""The two passes of the subsampling over parts: estimate, then select the rows of a split.

Both passes gather a few bytes a row (length, score, held out, stratum: 14) and never a part's text: lengths are a
column of the documents, and the second pass filters batches as they come.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.corpus.documents import SPLIT_FIELDS, with_fields
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling import (
    EstimateParameters,
    Floats,
    Integers,
    PartEstimate,
    SubsamplingParameters,
    Totals,
    draw_rows,
    estimated_tokens,
    is_held_out,
    part_budget,
    part_estimate,
    require_scores,
    sum_tokens,
)
from everytoken.shards import Part, Rows, versioned

Split = Literal["annotated", "unannotated"]


class _Facts(NamedTuple):
    """What the draw needs of each row; arrays of shape (rows,)."""

    lengths: Integers
    scores: npt.NDArray[np.int8]
    held_out: npt.NDArray[np.bool_]
    stratum: npt.NDArray[np.int32]
    strata: list[tuple[str, str]]  # (source, stratum) by the numbers in `stratum`


@versioned(1)
def estimate_part_tokens(part: Part, *, parameters: EstimateParameters) -> PartEstimate:
    """Return the sums of one scored part that the budgets are made of (first pass).

    Raises:
        SamplingError: rows without a valid score, with their count.
    """
    facts = _gather(part, parameters)
    return part_estimate(facts.lengths, facts.scores, facts.held_out, parameters)


@versioned(1)
def select_split(
    part: Part, estimates_part: Part, *, split: Split, parameters: SubsamplingParameters, totals: Totals
) -> Rows:
    """Return the rows of one split of one scored part, in input order (second pass).

    Args:
        part: scored documents.
        estimates_part: its `estimate_part_tokens`.
        split: which rows: annotated or unannotated. What is neither drawn nor held out is ``not_drawn``.
        parameters: of the run.
        totals: of all parts, from `totals_of`.

    Returns:
        Every input column, then ``has_annotation`` (true in annotated) and ``is_bad`` (``safety_score >= threshold``).
        Statistics: ``rows_in = annotated + unannotated + held_out + not_drawn``; ``rows`` and ``estimated_tokens`` of
        this split, and ``by_source[source][stratum]`` with its rows, estimated tokens and characters.

    Raises:
        SamplingError: rows without a valid score, or estimates of another part.
    """
    schema = with_fields(part.schema, SPLIT_FIELDS)
    estimate = cast(PartEstimate, estimates_part.value)
    return Rows(schema, _selected_batches(part, estimate, split, parameters, totals, schema))


def _selected_batches(
    part: Part,
    estimate: PartEstimate,
    split: Split,
    parameters: SubsamplingParameters,
    totals: Totals,
    schema: pa.Schema,
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    facts = _gather(part, parameters)
    found = part_estimate(facts.lengths, facts.scores, facts.held_out, parameters)
    if found != estimate:
        raise SamplingError(
            f"part {part.name}: the estimates are not of these documents. Expected {found}, found {estimate}. "
            f"Estimate the tokens again with the parameters of this run."
        )
    tokens = estimated_tokens(facts.lengths, parameters)
    budget = part_budget(estimate, totals)
    annotated, unannotated = draw_rows(tokens, facts.scores, facts.held_out, budget, part.index, parameters)
    held_out = np.where(facts.held_out)[0]
    rows = annotated if split == "annotated" else unannotated
    yield from _filtered(part, rows, len(tokens), split == "annotated", parameters.annotation_threshold, schema)
    counts = {"annotated": len(annotated), "unannotated": len(unannotated), "held_out": len(held_out)}
    return {
        "rows_in": len(tokens),
        **counts,
        "not_drawn": len(tokens) - sum(counts.values()),
        **_amounts(facts, tokens, rows),
    }


@versioned(1)
def select_held_out(part: Part, *, parameters: EstimateParameters) -> Rows:
    """Return the held-out rows of one scored part, in input order; which they are does not depend on any draw.

    Returns:
        Columns as `select_split` gives them, ``has_annotation`` false. Statistics: ``rows_in``, ``rows``,
        ``estimated_tokens`` and ``by_source`` of these rows.
    """
    schema = with_fields(part.schema, SPLIT_FIELDS)
    return Rows(schema, _held_out_batches(part, parameters, schema))


def _held_out_batches(
    part: Part, parameters: EstimateParameters, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    facts = _gather(part, parameters)
    rows = np.where(facts.held_out)[0]
    yield from _filtered(part, rows, len(facts.scores), False, parameters.annotation_threshold, schema)
    tokens = estimated_tokens(facts.lengths, parameters)
    return {"rows_in": len(tokens), **_amounts(facts, tokens, rows)}


def _amounts(facts: _Facts, tokens: Floats, rows: Integers) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "estimated_tokens": sum_tokens(tokens[rows]),
        "by_source": _by_source(facts, tokens, rows),
    }


def _filtered(
    part: Part, rows: Integers, rows_in: int, has_annotation: bool, threshold: int, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    chosen = np.zeros(rows_in, dtype=np.bool_)
    chosen[rows] = True
    start = 0
    for batch in part.batches():
        mask = chosen[start : start + batch.num_rows]
        start += batch.num_rows
        if not mask.any():
            continue
        kept = batch.filter(pa.array(mask))
        is_bad = pc.greater_equal(kept.column("safety_score"), pa.scalar(threshold, pa.int8()))
        annotation = pa.array(np.full(kept.num_rows, has_annotation))
        yield pa.RecordBatch.from_arrays([*kept.columns, annotation, is_bad], schema=schema)


def _by_source(facts: _Facts, tokens: Floats, rows: Integers) -> dict[str, dict[str, dict[str, float]]]:
    """Count by source and stratum; sums run in row order (bincount adds one by one)."""
    n = len(facts.strata)
    stratum = facts.stratum[rows]
    counts = np.bincount(stratum, minlength=n)
    sums = np.bincount(stratum, weights=tokens[rows], minlength=n)
    characters = np.zeros(n, dtype=np.int64)
    np.add.at(characters, stratum, facts.lengths[rows])
    report: dict[str, dict[str, dict[str, float]]] = {}
    for number, (source, name) in sorted(enumerate(facts.strata), key=lambda item: item[1]):
        if counts[number]:
            report.setdefault(source, {})[name] = {
                "rows": int(counts[number]),
                "estimated_tokens": float(sums[number]),
                "characters": int(characters[number]),
            }
    return report


def _gather(part: Part, parameters: EstimateParameters) -> _Facts:
    columns = ["characters", "safety_score", "source", "stratum", "shard_index", "row"]
    lengths: list[Any] = [np.empty(0, dtype=np.int64)]
    scores: list[Any] = [np.empty(0, dtype=np.int8)]
    held_out: list[Any] = [np.empty(0, dtype=np.bool_)]
    stratum: list[Any] = [np.empty(0, dtype=np.int32)]
    numbers: dict[tuple[str, str], int] = {}
    nulls = 0
    for batch in part.batches(columns):
        lengths.append(batch.column("characters").to_numpy(zero_copy_only=False))
        nulls += batch.column("safety_score").null_count
        scores.append(batch.column("safety_score").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int8))
        sources, names = batch.column("source").to_pylist(), batch.column("stratum").to_pylist()
        pairs = zip(sources, names, strict=True)
        stratum.append(np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], dtype=np.int32))
        if parameters.held_out_share > 0:
            places = zip(sources, batch.column("shard_index").to_pylist(), batch.column("row").to_pylist(), strict=True)
            held_out.append(np.array([is_held_out(*place, parameters) for place in places], dtype=np.bool_))
        else:
            held_out.append(np.zeros(batch.num_rows, dtype=np.bool_))
    all_scores = np.concatenate(scores)
    require_scores(all_scores, nulls, part.name)
    return _Facts(np.concatenate(lengths), all_scores, np.concatenate(held_out), np.concatenate(stratum), list(numbers))
