r"""Stratified subsampling: which documents get annotations, which stay without, in matched amounts. The formulas.

Estimated tokens of a row: ``t = min(len_codepoints(text) / chars_per_token, max_tokens_per_document)`` in float64. A
row is *above* when ``safety_score >= annotation_threshold``, else *below*. With a_pk and b_pk the sums of t over the
rows of part p and stratum k above and below, and A_k = sum_p a_pk, B_k = sum_p b_pk, T the sum of all A_k and B_k::

    matched_k        = min(A_k, B_k)
    annotation_ratio = sum_k (A_k + matched_k) / T
    scale_k          = of `everytoken.corpus.sampling.strata`
    below_pk         = matched_k * scale_k * (b_pk / B_k)          (0 when B_k is 0)
    annotated_pk     = a_pk * scale_k + below_pk
    unannotated_pk   = b_pk * scale_k - below_pk

Where the parameters give no strata there is one, with ``scale = target_tokens / T`` if target_tokens is given and
smaller than T, else 1. So the annotated split has as much below the threshold as above it, within every stratum,
when everything is drawn. Of a smaller scale s the rows above still come first (see `draw_rows`): where A_k <= B_k the
annotated split has ``min(1, 2 s) A_k`` above and ``max(0, 2 s - 1) A_k`` below. That is the published procedure.

Every part then draws its rows with its own generator, see `draw_rows`. Token counts are estimates; row counts are
exact. Held-out rows are set aside before all this: they are in no sum and in no draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from everytoken.arrays import Flags, Floats, Integers
from everytoken.corpus.documents import N_CLASSES
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.exclusion import ExclusionParameters
from everytoken.corpus.sampling.held_out import HeldOutParameters, HeldOutRule
from everytoken.corpus.sampling.strata import Shortfall, Strata, scales_of
from everytoken.corpus.statistics import add_statistics
from everytoken.seeds import numpy_generator
from everytoken.shards import UNRECORDED, UNRECORDED_DEFAULT


class ScoreBounds(BaseModel):
    """Which values of a second score the draw takes; both ends are taken, and null is no bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_least: FiniteFloat | None = None
    at_most: FiniteFloat | None = None

    def holds(self, scores: Floats) -> Flags:
        """Return which scores are within the bounds, bool (n,)."""
        low = -np.inf if self.at_least is None else self.at_least
        high = np.inf if self.at_most is None else self.at_most
        return (scores >= low) & (scores <= high)


def _no_bounds(bounds: Mapping[str, ScoreBounds]) -> bool:
    return not bounds


class EstimateParameters(HeldOutParameters):
    """What the first pass reads.

    Attributes:
        strata: what the documents are divided by beside their score, or null for nothing.
        score_bounds: bounds of second scores by name. Documents outside of one are in no draw and in no sum; those
            that are held out stay held out.
    """

    strata: Strata | None = None
    score_bounds: Annotated[dict[str, ScoreBounds], UNRECORDED_DEFAULT] = Field(default={}, exclude_if=_no_bounds)


class SubsamplingParameters(EstimateParameters):
    """Parameters of the subsampling.

    Attributes:
        seed: of the draw of every part.
        target_tokens: estimated tokens wanted over both splits, or null for everything.
        exclude: the list of documents that are taken down, or null for the one in force. No draw reads it: the others
            stay where they are.
    """

    seed: Annotated[int, Field(ge=0)]
    target_tokens: Annotated[FiniteFloat, Field(gt=0)] | None
    exclude: Annotated[ExclusionParameters | None, UNRECORDED] = None

    @property
    def estimate(self) -> EstimateParameters:
        """The parameters without those of the draw: what does not read these is not made again when they change."""
        values = {name: getattr(self, name) for name in EstimateParameters.model_fields}
        key = None if self.strata is None else self.strata.model_copy(update={"shares": None})
        return EstimateParameters(**{**values, "strata": key})

    @property
    def held_out(self) -> HeldOutParameters:
        """The parameters of the held-out split, which no draw and no strata change."""
        return HeldOutParameters(**{name: getattr(self, name) for name in HeldOutParameters.model_fields})

    @property
    def held_out_rule(self) -> HeldOutRule:
        """The parameters of the held-out split of documents without scores."""
        return HeldOutRule(**{name: getattr(self, name) for name in HeldOutRule.model_fields})


class SampledRows(NamedTuple):
    """What the draw needs of the rows of a part; arrays of shape (rows,)."""

    tokens: Floats  # estimated
    is_above: Flags
    is_held_out: Flags
    is_outside: Flags  # of the bounds of a second score, and not held out
    stratum: npt.NDArray[np.int32]  # number in `strata`
    strata: Sequence[str]  # names, sorted


class StratumEstimate(TypedDict):
    """What the first pass says about one stratum of a part; estimated tokens in float64, rows exact."""

    above_tokens: float
    below_tokens: float
    above_rows: int
    below_rows: int
    held_out_tokens: float
    held_out_rows: int
    outside_rows: NotRequired[int]  # only where there are bounds of second scores


class Amounts(TypedDict):
    """Documents, and the tokens that they are estimated to have."""

    rows: int
    estimated_tokens: float


PartEstimate = dict[str, StratumEstimate]
"""By name of stratum, of those that the part has documents of."""


class StratumTotals(StratumEstimate):
    """The globals of one stratum: A_k, B_k and what follows from them."""

    matched_tokens: float
    scale: float
    target_below_sample: float


class Totals(TypedDict):
    """The globals of a dataset, over all strata and of each (see the module docstring), in estimated tokens and rows.

    What is held out is in ``held_out_tokens`` and ``held_out_rows`` alone. ``budget_tokens``: what both splits together
    are to hold, that is the parameter target_tokens, or less where ``limited_by`` names what is short of it.
    """

    above_tokens: float
    below_tokens: float
    total_tokens: float
    matched_tokens: float
    annotation_ratio: float
    budget_tokens: float
    scale: float
    target_below_sample: float
    rows: int
    held_out_tokens: float
    held_out_rows: int
    limited_by: list[Shortfall]
    strata: dict[str, StratumTotals]


class StratumBudget(TypedDict):
    """Estimated tokens that a stratum of a part gives to the two splits; ``below`` is contained in ``annotated``."""

    below: float
    annotated: float
    unannotated: float


def estimated_tokens(lengths: Integers, parameters: HeldOutRule) -> Floats:
    """Return ``min(length / chars_per_token, max_tokens_per_document)`` of each row, float64 of shape (rows,)."""
    return np.minimum(lengths / parameters.chars_per_token, parameters.max_tokens_per_document)


def sum_tokens(tokens: Floats) -> float:
    """Return the sum in Arrow's order (pairwise over blocks of 16), which the published budgets were summed in.

    Numpy's ``sum`` adds in another order and differs in the last bit.
    """
    return float(pc.sum(pa.array(tokens), min_count=0).as_py())


def part_estimate(rows: SampledRows) -> PartEstimate:
    """Return the sums of one part, each taken at once over the part's rows in order: batches cannot change it."""
    estimate: PartEstimate = {}
    for name, of_stratum in _by_stratum(rows):
        tokens, held_out = rows.tokens[of_stratum], rows.is_held_out[of_stratum]
        outside = rows.is_outside[of_stratum]
        above = rows.is_above[of_stratum] & ~(held_out | outside)
        below = ~(above | held_out | outside)
        estimate[name] = StratumEstimate(
            above_tokens=sum_tokens(tokens[above]),
            below_tokens=sum_tokens(tokens[below]),
            above_rows=int(np.count_nonzero(above)),
            below_rows=int(np.count_nonzero(below)),
            held_out_tokens=sum_tokens(tokens[held_out]),
            held_out_rows=int(np.count_nonzero(held_out)),
        )
        if outside.any():
            estimate[name]["outside_rows"] = int(np.count_nonzero(outside))
    return estimate


def totals_of(estimates: Sequence[PartEstimate], parameters: SubsamplingParameters) -> Totals:
    """Return the globals, summed over the parts in part order (see the module docstring for the formulas).

    An empty corpus (T = 0) has annotation_ratio 0 and scale 1.

    Raises:
        SamplingError: the shares of the strata are not those of the corpus.
    """
    summed: dict[str, StratumEstimate] = add_statistics(estimates)
    tokens = {name: sums["above_tokens"] + sums["below_tokens"] for name, sums in summed.items()}
    budget, scales, limited_by = scales_of(tokens, parameters.strata, parameters.target_tokens)
    strata = {name: _stratum_totals(sums, scales[name]) for name, sums in summed.items()}
    above = sum((sums["above_tokens"] for sums in strata.values()), 0.0)
    below = sum((sums["below_tokens"] for sums in strata.values()), 0.0)
    matched = sum((sums["matched_tokens"] for sums in strata.values()), 0.0)
    total = above + below
    return Totals(
        above_tokens=above,
        below_tokens=below,
        total_tokens=total,
        matched_tokens=matched,
        annotation_ratio=(above + matched) / total if total else 0.0,
        budget_tokens=budget,
        scale=budget / total if total else 1.0,
        target_below_sample=sum((sums["target_below_sample"] for sums in strata.values()), 0.0),
        rows=sum(sums["above_rows"] + sums["below_rows"] for sums in strata.values()),
        held_out_tokens=sum((sums["held_out_tokens"] for sums in strata.values()), 0.0),
        held_out_rows=sum(sums["held_out_rows"] for sums in strata.values()),
        limited_by=limited_by,
        strata=strata,
    )


def part_budgets(estimate: PartEstimate, totals: Totals) -> dict[str, StratumBudget]:
    """Return ``below_pk``, ``annotated_pk`` and ``unannotated_pk`` of the module docstring for one part."""
    return {name: _budget(of_part, totals["strata"][name]) for name, of_part in estimate.items()}


def draw_rows(
    rows: SampledRows, budgets: Mapping[str, StratumBudget], part_index: int, seed: int
) -> tuple[Integers, Integers]:
    """Draw the rows of one part: ``(annotated rows, unannotated rows)``, each in increasing order, sharing no row.

    One generator ``default_rng((seed, part_index))`` takes the strata in the order of their names, and of each shuffles
    the row numbers above, then those below. *fill(pool, budget)* is the shortest prefix of a shuffled pool whose
    estimated tokens reach the budget (the whole pool when they do not, nothing when the budget is not positive).
    Annotated: fill(above, annotated budget), then fill(below, what those leave of it). Unannotated: fill(the below rows
    not taken, in shuffled order, unannotated budget). What is left is ``budget - np.sum(tokens in drawn order)``: here
    the published draws use numpy's pairwise sum, and the last bit of it can decide a row where lengths tie.

    Args:
        part_index: number of the part, the generator's key.
    """
    generator = numpy_generator(seed, part_index)
    annotated, unannotated = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, of_stratum in _by_stratum(rows):
        budget = budgets[name]
        drawable = of_stratum[~(rows.is_held_out | rows.is_outside)[of_stratum]]
        is_above = rows.is_above[drawable]
        above, below = drawable[is_above], drawable[~is_above]
        generator.shuffle(above)
        generator.shuffle(below)
        taken_above = _fill(above, rows.tokens, budget["annotated"])
        left = budget["annotated"] - float(np.sum(rows.tokens[taken_above]))  # numpy's order, not Arrow's
        taken_below = _fill(below, rows.tokens, left)
        annotated += [taken_above, taken_below]
        unannotated.append(_fill(below[len(taken_below) :], rows.tokens, budget["unannotated"]))
    return np.sort(np.concatenate(annotated)), np.sort(np.concatenate(unannotated))


def require_scores(scores: npt.NDArray[np.integer], nulls: int, part_name: str) -> None:
    """Refuse rows without a score or with one that is no class.

    Raises:
        SamplingError: with how many rows of the part have which fault.
    """
    strange = int(np.count_nonzero((scores < 0) | (scores >= N_CLASSES)))
    if nulls or strange:
        raise SamplingError(
            f"part {part_name}: {nulls:,} rows have no safety_score and {strange:,} have one outside "
            f"0..{N_CLASSES - 1}; expected none of both. "
            f"Score the documents again: a row without a score is in neither stratum."
        )


def _by_stratum(rows: SampledRows) -> Iterator[tuple[str, Integers]]:
    """Yield name and row numbers, increasing, of every stratum that has rows, by name."""
    if len(rows.tokens) == 0:
        return
    if len(rows.strata) == 1:
        yield rows.strata[0], np.arange(len(rows.tokens), dtype=np.int64)
        return
    order = np.argsort(rows.stratum, kind="stable")
    ends = np.cumsum(np.bincount(rows.stratum, minlength=len(rows.strata)))
    for name, of_stratum in zip(rows.strata, np.split(order, ends[:-1]), strict=True):
        if len(of_stratum):
            yield name, of_stratum


def _stratum_totals(sums: StratumEstimate, scale: float) -> StratumTotals:
    matched = min(sums["above_tokens"], sums["below_tokens"])
    return StratumTotals(**sums, matched_tokens=matched, scale=scale, target_below_sample=matched * scale)


def _budget(of_part: StratumEstimate, totals: StratumTotals) -> StratumBudget:
    share = of_part["below_tokens"] / totals["below_tokens"] if totals["below_tokens"] else 0.0
    below = totals["target_below_sample"] * share
    return StratumBudget(
        below=below,
        annotated=of_part["above_tokens"] * totals["scale"] + below,
        unannotated=of_part["below_tokens"] * totals["scale"] - below,
    )


def _fill(pool: Integers, tokens: Floats, budget: float) -> Integers:
    if len(pool) == 0 or budget <= 0:
        return pool[:0]
    reached = np.searchsorted(np.cumsum(tokens[pool]), budget, side="left") + 1
    return pool[: min(int(reached), len(pool))]
