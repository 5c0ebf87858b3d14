"""The two passes of the subsampling over parts: estimate, then select the rows of a split.

Both passes gather a few bytes a row (lengths, scores, numbers of source and stratum: about 40) and never a part's text:
lengths are a column of the documents. What is drawn is stored as numbers of rows, so its text stays where it is; what
is held out is little, read alone, and copied.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.arrays import Flags, Floats, Integers
from everytoken.corpus.documents import N_CLASSES, SPLIT_FIELDS
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.exclusion import excluded_addresses, excluded_rows
from everytoken.corpus.languages import LANGUAGE
from everytoken.corpus.sampling.formulas import (
    Amounts,
    EstimateParameters,
    PartEstimate,
    SampledRows,
    ScoreBounds,
    SubsamplingParameters,
    Totals,
    draw_rows,
    estimated_tokens,
    part_budgets,
    part_estimate,
    require_scores,
    sum_tokens,
)
from everytoken.corpus.sampling.held_out import HeldOutParameters, HeldOutRule, held_out_rows
from everytoken.corpus.sampling.strata import EVERYTHING, Strata
from everytoken.shards import Part, Rows, versioned

Split = Literal["annotated", "unannotated"]
_SPLITS: tuple[Split, ...] = ("annotated", "unannotated")  # in the order of `draw_rows`
IdNumbers = npt.NDArray[np.int32]

_COLUMNS = ("characters", "stratum", *ADDRESS_COLUMNS)


class RowFacts(NamedTuple):
    """What is read of each row of a part; arrays of shape (rows,)."""

    lengths: Integers
    tokens: Floats  # estimated
    scores: npt.NDArray[np.int8]
    is_held_out: Flags
    is_outside: Flags  # of the bounds of a second score, and not held out
    source: IdNumbers
    sources: list[str]  # by the numbers in `source`
    stratum: IdNumbers
    strata: list[str]


class SizedAmounts(Amounts):
    """Amounts, and the code points of the documents."""

    characters: int


class DrawnCounts(TypedDict):
    """Statistics of the documents of a part that are in a split: by source and stratum, by source and safety score."""

    rows: int
    estimated_tokens: float
    by_source: dict[str, dict[str, SizedAmounts]]
    by_score: dict[str, dict[str, Amounts]]


class EstimatedTokens(TypedDict, total=False):
    """What a split says of its tokens; one that a replay restored says nothing, since nothing was estimated."""

    estimated_tokens: float


class StratumCounts(TypedDict, total=False):
    """What is in a split, and what is not drawn, by name of the stratum; nothing without strata or bounds."""

    by_stratum: dict[str, Amounts]
    not_drawn_by_stratum: dict[str, Amounts]
    outside_score_bounds: int  # of what is not drawn, where there are any


class SplitStatistics(DrawnCounts, StratumCounts):
    """Statistics of `select_split`: ``rows_in = annotated + unannotated + held_out + not_drawn``."""

    rows_in: int
    annotated: int
    unannotated: int
    held_out: int
    not_drawn: int
    not_drawn_by_score: dict[str, dict[str, Amounts]]


class ExcludedCounts(TypedDict, total=False):
    """Held-out documents that are left out, where there are any."""

    excluded: int
    excluded_by_score: dict[str, dict[str, Amounts]]


class HeldOutStatistics(DrawnCounts, ExcludedCounts):
    """Statistics of `select_held_out`."""

    rows_in: int


@versioned("estimate_part_tokens", 2)
def estimate_part_tokens(part: Part, languages: Part | None = None, *, parameters: EstimateParameters) -> PartEstimate:
    """Return the sums of one scored part that the budgets are made of, by stratum (first pass).

    Args:
        languages: of its documents, where they are the strata.

    Raises:
        SamplingError: rows without a valid score, with their count; or languages of other documents.
    """
    facts = _bounded(part, _gather(part, parameters), parameters.score_bounds)
    return part_estimate(_sampled(facts, parameters, _languages_of(part, languages)))


@versioned("select_split", 3)
def select_split(
    part: Part,
    estimates_part: Part,
    languages: Part | None = None,
    *,
    split: Split,
    parameters: SubsamplingParameters,
    totals: Totals,
) -> Rows:
    """Return the rows of one split of one scored part, in input order (second pass).

    Args:
        languages: of its documents, where they are the strata.
        split: which rows: annotated or unannotated. What is neither drawn nor held out is ``not_drawn``.

    Returns:
        Every input column, then ``has_annotation`` (true in annotated) and ``is_bad`` (``safety_score >= threshold``).
        Statistics: ``rows_in = annotated + unannotated + held_out + not_drawn``; of this split ``rows``,
        ``estimated_tokens``, ``by_source[source][stratum]`` with its rows, estimated tokens and characters,
        ``by_score[source][score]`` with rows and estimated tokens; the same of what is not drawn as
        ``not_drawn_by_score``; and with strata both also by name of the stratum.

    Raises:
        SamplingError: rows without a valid score; estimates of another part, or languages of other documents.
    """
    facts = _bounded(part, _gather(part, parameters), parameters.score_bounds)
    sampled = _sampled(facts, parameters, _languages_of(part, languages))
    estimate = cast(PartEstimate, estimates_part.value)
    if (found := part_estimate(sampled)) != estimate:
        raise SamplingError(
            f"part {part.name}: the estimates are not of these documents. Expected {found}, found {estimate}. "
            f"Estimate the tokens again with the parameters of this run."
        )
    drawn = draw_rows(sampled, part_budgets(estimate, totals), part.index, parameters.seed)
    rows = drawn[_SPLITS.index(split)]
    counted = _split_statistics(facts, sampled, drawn, rows, with_strata=parameters.strata is not None)
    return Rows.extending(part, SPLIT_FIELDS, _flags(facts, rows, parameters, split, counted), rows)


def _split_statistics(
    facts: RowFacts, sampled: SampledRows, drawn: tuple[Integers, Integers], rows: Integers, with_strata: bool
) -> SplitStatistics:
    is_left = ~facts.is_held_out
    for of_split in drawn:
        is_left[of_split] = False
    left = np.where(is_left)[0]
    by_stratum: StratumCounts = {}
    if outside := int(np.count_nonzero(facts.is_outside)):
        by_stratum["outside_score_bounds"] = outside
    if with_strata:
        by_stratum |= {
            "by_stratum": _amounts(facts.tokens, sampled.stratum, sampled.strata, rows),
            "not_drawn_by_stratum": _amounts(facts.tokens, sampled.stratum, sampled.strata, left),
        }
    return {
        "rows_in": len(facts.tokens),
        "annotated": len(drawn[0]),
        "unannotated": len(drawn[1]),
        "held_out": int(np.count_nonzero(facts.is_held_out)),
        "not_drawn": len(left),
        **drawn_counts(facts, rows),
        "not_drawn_by_score": _by_score(facts, left),
        **by_stratum,
    }


@versioned("select_held_out", 2)
def select_held_out(part: Part, exclusions: Part | None = None, *, parameters: HeldOutParameters) -> Rows:
    """Return the held-out rows of one scored part, in input order; which they are does not depend on any draw.

    Args:
        exclusions: its `everytoken.corpus.exclusion.find_excluded`; held-out documents in it are left out. None: none.

    Returns:
        Columns as `select_split` gives them, copied, ``has_annotation`` false. Statistics: ``rows_in``, ``rows``,
        ``estimated_tokens``, ``by_source`` and ``by_score`` of these rows; of those left out, where there are any,
        ``excluded`` and ``excluded_by_score``.

    Raises:
        SamplingError: rows without a valid score.
    """
    facts = _gather(part, parameters)
    excluded = excluded_addresses(exclusions)
    is_excluded = np.zeros(len(facts.tokens), np.bool_)
    if excluded:
        batches = part.batches(ADDRESS_COLUMNS)
        is_excluded = np.concatenate([is_excluded[:0], *(excluded_rows(batch, excluded) for batch in batches)])
    rows = np.where(facts.is_held_out & ~is_excluded)[0]
    left_out = np.where(facts.is_held_out & is_excluded)[0]

    held_out = drawn_counts(facts, rows)
    counted = HeldOutStatistics(
        rows_in=len(facts.tokens),
        rows=held_out["rows"],
        estimated_tokens=held_out["estimated_tokens"],
        by_source=held_out["by_source"],
        by_score=held_out["by_score"],
    )
    if len(left_out):
        counted |= {"excluded": len(left_out), "excluded_by_score": _by_score(facts, left_out)}
    return Rows.extending(part, SPLIT_FIELDS, _flags(facts, rows, parameters, "held_out", counted), rows).copied()


def _flags(
    facts: RowFacts,
    rows: Integers,
    parameters: HeldOutParameters,
    split: Split | Literal["held_out"],
    counted: Mapping[str, Any],
) -> Generator[pa.RecordBatch, None, Mapping[str, Any]]:
    """Yield `SPLIT_FIELDS` of drawn rows; return the statistics of the part."""
    annotation = pa.array(np.full(len(rows), split == "annotated"))
    bad = pa.array(parameters.is_above(facts.scores[rows]))
    yield pa.RecordBatch.from_arrays([annotation, bad], schema=pa.schema(SPLIT_FIELDS))
    return counted


def _gather(part: Part, parameters: HeldOutParameters) -> RowFacts:
    scores: list[Any] = [np.empty(0, np.int64)]
    nulls = 0
    for batch in part.batches(["safety_score"]):
        score = batch.column("safety_score")
        nulls += score.null_count
        scores.append((score.fill_null(0) if score.null_count else score).to_numpy(zero_copy_only=False))
    all_scores = np.concatenate(scores)
    require_scores(all_scores, nulls, part.name)
    return gather_unscored(part, parameters)._replace(scores=all_scores.astype(np.int8))


def _bounded(part: Part, facts: RowFacts, bounds: Mapping[str, ScoreBounds]) -> RowFacts:
    """Return the facts with what the bounds of second scores leave out."""
    if not bounds:
        return facts
    if missing := sorted(set(bounds) - set(part.schema.names)):
        raise SamplingError(
            f"part {part.name}: the documents have no score {missing[0]!r}, which subsampling.score_bounds names. Add "
            f"it to annotation.second_scores and score the documents again."
        )
    outside = [np.empty(0, np.bool_)]
    for batch in part.batches(list(bounds)):
        within = np.ones(batch.num_rows, np.bool_)
        for name, bound in bounds.items():
            within &= bound.holds(batch.column(name).to_numpy().astype(np.float64))
        outside.append(~within)
    return facts._replace(is_outside=np.concatenate(outside) & ~facts.is_held_out)


def gather_unscored(part: Part, rule: HeldOutRule) -> RowFacts:
    """Return what splits need of the rows of a part of documents; all scores are 0."""
    lengths: list[Any] = [np.empty(0, np.int64)]
    held_out: list[Any] = [np.empty(0, np.bool_)]
    source: list[Any] = [np.empty(0, np.int32)]
    stratum: list[Any] = [np.empty(0, np.int32)]
    sources: dict[str, int] = {}
    strata: dict[str, int] = {}
    for batch in part.batches(_COLUMNS):
        lengths.append(batch.column("characters").to_numpy(zero_copy_only=False))
        held_out.append(held_out_rows(batch, rule))
        source.append(_numbered(batch.column("source"), sources))
        stratum.append(_numbered(batch.column("stratum"), strata))
    all_lengths = np.concatenate(lengths)
    return RowFacts(
        all_lengths,
        estimated_tokens(all_lengths, rule),
        np.zeros(len(all_lengths), np.int8),
        np.concatenate(held_out),
        np.zeros(len(all_lengths), np.bool_),
        np.concatenate(source),
        list(sources),
        np.concatenate(stratum),
        list(strata),
    )


def _numbered(names: pa.Array, numbers: dict[str, int]) -> IdNumbers:
    """Return the number of each name, shape (rows,); new names get the next ones."""
    encoded = names.dictionary_encode()
    of_entry = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
    numbered: IdNumbers = np.array(of_entry, np.int32)[encoded.indices.to_numpy(zero_copy_only=False)]
    return numbered


def _languages_of(part: Part, languages: Part | None) -> tuple[IdNumbers, list[str]] | None:
    """Return the number of each row's language, and the languages by number; None where they are no strata."""
    if languages is None:
        return None
    addresses, of_languages = (one.table(ADDRESS_COLUMNS) for one in (part, languages))
    if not all(addresses.column(name).equals(of_languages.column(name)) for name in ADDRESS_COLUMNS):
        raise SamplingError(
            f"part {part.name}: the languages are those of other documents ({languages.rows:,} rows, expected "
            f"{part.rows:,}, or other addresses). Identify them again: kedro run --pipelines languages"
        )
    numbers: dict[str, int] = {}
    found = [_numbered(batch.column(0), numbers) for batch in languages.batches([LANGUAGE])]
    return np.concatenate([np.empty(0, np.int32), *found]), list(numbers)


def _sampled(
    facts: RowFacts, parameters: EstimateParameters, languages: tuple[IdNumbers, list[str]] | None
) -> SampledRows:
    stratum, strata = _strata(facts, parameters.strata, languages)
    above = parameters.is_above(facts.scores)
    return SampledRows(facts.tokens, above, facts.is_held_out, facts.is_outside, stratum, strata)


def _strata(
    facts: RowFacts, strata: Strata | None, languages: tuple[IdNumbers, list[str]] | None
) -> tuple[IdNumbers, list[str]]:
    """Return the number of each row's stratum, and the names by number, sorted."""
    if strata is None:
        return np.zeros(len(facts.tokens), np.int32), [EVERYTHING]
    if strata.key == "length_band":
        numbers, names = strata.band_numbers(facts.lengths), list(strata.bands)
    elif strata.key == "source":
        numbers, names = facts.source, facts.sources
    elif strata.key == "language":
        if languages is None:
            raise SamplingError("strata of languages need the languages of the documents; zip them with the parts")
        numbers, names = languages[0], [strata.of_language(language) for language in languages[1]]
    else:
        numbers, names = facts.stratum, facts.strata
    ordered = sorted(set(names))
    place = {name: number for number, name in enumerate(ordered)}
    return np.array([place[name] for name in names], np.int32)[numbers], ordered


def drawn_counts(facts: RowFacts, rows: Integers) -> DrawnCounts:
    """Return the statistics of the rows of a split, by their numbers in the part."""
    return {
        "rows": len(rows),
        "estimated_tokens": sum_tokens(facts.tokens[rows]),
        "by_source": _by_source(facts, rows),
        "by_score": _by_score(facts, rows),
    }


def _by_source(facts: RowFacts, rows: Integers) -> dict[str, dict[str, SizedAmounts]]:
    """Count by source and stratum."""
    pairs = facts.source[rows].astype(np.int64) * len(facts.strata) + facts.stratum[rows]
    found, numbers = np.unique(pairs, return_inverse=True)
    counts, sums = _counted(facts.tokens, numbers, len(found), rows)
    characters = np.zeros(len(found), np.int64)
    np.add.at(characters, numbers, facts.lengths[rows])
    report: dict[str, dict[str, SizedAmounts]] = {}
    for pair, count, total, length in zip(found.tolist(), counts, sums, characters.tolist(), strict=True):
        source, stratum = divmod(pair, len(facts.strata))
        report.setdefault(facts.sources[source], {})[facts.strata[stratum]] = SizedAmounts(
            rows=count, estimated_tokens=total, characters=length
        )
    return {source: dict(sorted(strata.items())) for source, strata in sorted(report.items())}


def _by_score(facts: RowFacts, rows: Integers) -> dict[str, dict[str, Amounts]]:
    """Count by source and safety score."""
    numbers = facts.source * N_CLASSES + facts.scores
    counted = _amounts(facts.tokens, numbers, range(len(facts.sources) * N_CLASSES), rows)
    report: dict[str, dict[str, Amounts]] = {}
    for number, amounts in counted.items():
        source, score = divmod(number, N_CLASSES)
        report.setdefault(facts.sources[source], {})[str(score)] = amounts
    return dict(sorted(report.items()))


def _amounts(tokens: Floats, numbers: IdNumbers, names: Sequence[Any], rows: Integers) -> dict[Any, Amounts]:
    """Return rows and estimated tokens by name, of the names that have rows."""
    counts, sums = _counted(tokens, numbers[rows], len(names), rows)
    return {
        name: {"rows": count, "estimated_tokens": total}
        for name, count, total in zip(names, counts, sums, strict=True)
        if count
    }


def _counted(tokens: Floats, numbers: npt.NDArray[np.integer], n: int, rows: Integers) -> tuple[list[int], list[float]]:
    """Return rows and estimated tokens of each number; sums run in row order (bincount adds one by one)."""
    counts = np.bincount(numbers, minlength=n)
    return counts.tolist(), np.bincount(numbers, weights=tokens[rows], minlength=n).tolist()
