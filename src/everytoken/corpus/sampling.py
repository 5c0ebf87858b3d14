r"""Stratified subsampling: which documents get annotations, which stay without, in matched amounts. The formulas.

Estimated tokens of a row: ``t = min(len_codepoints(text) / chars_per_token, max_tokens_per_document)`` in float64. A
row is *above* when ``safety_score >= annotation_threshold``, else *below*. With a_p and b_p the sums of t over the
rows of part p above and below, and A = sum a_p, B = sum b_p, T = A + B::

    matched          = min(A, B)
    annotation_ratio = (A + matched) / T
    scale            = target_tokens / T   if target_tokens is given and smaller than T, else 1
    below_p          = matched * scale * (b_p / B)          (0 when B is 0)
    annotated_p      = a_p * scale + below_p
    unannotated_p    = b_p * scale - below_p

Every part then draws its rows with its own generator, see `draw_rows`. Token counts are estimates; row counts are
exact. Held-out rows are set aside before all this: they are in no sum and in no draw.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from everytoken.corpus.documents import N_CLASSES
from everytoken.corpus.errors import SamplingError
from everytoken.seeds import numpy_generator, uniform_hash

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class EstimateParameters(BaseModel):
    """What the first pass and the held-out split read.

    Attributes:
        annotation_threshold: lowest safety score of a row above.
        chars_per_token: characters (code points) of one estimated token.
        max_tokens_per_document: cap of the estimate of one document.
        held_out_seed: of the held-out split; not the seed of the draw, so that other draws keep the same held-out
            documents.
        held_out_share: share of the documents that are held out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    annotation_threshold: Annotated[int, Field(ge=0, lt=N_CLASSES)]
    chars_per_token: Annotated[FiniteFloat, Field(gt=0)]
    max_tokens_per_document: Annotated[FiniteFloat, Field(gt=0)]
    held_out_seed: int
    held_out_share: Annotated[float, Field(ge=0, lt=1)]


class SubsamplingParameters(EstimateParameters):
    """Parameters of the subsampling.

    Attributes:
        seed: of the draw of every part.
        target_tokens: estimated tokens wanted over both splits, or null for everything.
    """

    seed: Annotated[int, Field(ge=0)]
    target_tokens: Annotated[FiniteFloat, Field(gt=0)] | None

    @property
    def estimate(self) -> EstimateParameters:
        """The parameters without those of the draw: what does not read these is not made again when they change."""
        return EstimateParameters(**{name: getattr(self, name) for name in EstimateParameters.model_fields})


class PartEstimate(TypedDict):
    """What the first pass says about one part; estimated tokens in float64, rows exact."""

    above_tokens: float
    below_tokens: float
    above_rows: int
    below_rows: int
    held_out_tokens: float
    held_out_rows: int


class Totals(TypedDict):
    """The globals of a dataset: A, B, T and what follows from them (see the module docstring)."""

    above_tokens: float
    below_tokens: float
    total_tokens: float
    matched_tokens: float
    annotation_ratio: float
    target_tokens: float
    scale: float
    target_below_sample: float
    rows: int
    held_out_tokens: float
    held_out_rows: int


class PartBudget(TypedDict):
    """Estimated tokens that one part gives to the two splits; ``below`` is contained in ``annotated``."""

    below: float
    annotated: float
    unannotated: float


def estimated_tokens(lengths: Integers, parameters: EstimateParameters) -> Floats:
    """Return ``min(length / chars_per_token, max_tokens_per_document)`` of each row, float64 of shape (rows,)."""
    return np.minimum(lengths / parameters.chars_per_token, parameters.max_tokens_per_document)


def sum_tokens(tokens: Floats) -> float:
    """Return the sum in Arrow's order (pairwise over blocks of 16), which the published budgets were summed in.

    Numpy's ``sum`` adds in another order and differs in the last bit.
    """
    return float(pc.sum(pa.array(tokens), min_count=0).as_py())


def is_held_out(source: str, shard_index: int, row: int, parameters: EstimateParameters) -> bool:
    """Tell whether the document of this address is held out: its own hash decides, whatever else is in the corpus."""
    return uniform_hash(parameters.held_out_seed, source, shard_index, row) < parameters.held_out_share


def part_estimate(
    lengths: Integers, scores: npt.NDArray[np.int8], held_out: npt.NDArray[np.bool_], parameters: EstimateParameters
) -> PartEstimate:
    """Return the sums of one part, each taken at once over the part's rows in order: batches cannot change it.

    Args:
        lengths: code points of each row's text, shape (rows,).
        scores: safety scores, shape (rows,).
        held_out: rows that take no part, shape (rows,).
        parameters: threshold and the estimate's constants.
    """
    tokens = estimated_tokens(lengths, parameters)
    above = (scores >= parameters.annotation_threshold) & ~held_out
    below = (scores < parameters.annotation_threshold) & ~held_out
    return PartEstimate(
        above_tokens=sum_tokens(tokens[above]),
        below_tokens=sum_tokens(tokens[below]),
        above_rows=int(np.count_nonzero(above)),
        below_rows=int(np.count_nonzero(below)),
        held_out_tokens=sum_tokens(tokens[held_out]),
        held_out_rows=int(np.count_nonzero(held_out)),
    )


def totals_of(estimates: Sequence[PartEstimate], parameters: SubsamplingParameters) -> Totals:
    """Return the globals, summed over the parts in part order (see the module docstring for the formulas).

    An empty corpus (T = 0) has annotation_ratio 0. ``target_tokens`` is T where no smaller target is given.
    """
    above = sum((part["above_tokens"] for part in estimates), 0.0)
    below = sum((part["below_tokens"] for part in estimates), 0.0)
    total = above + below
    matched = min(above, below)
    target = parameters.target_tokens
    if target is None or target >= total:
        target, scale = total, 1.0
    else:
        scale = target / total
    return Totals(
        above_tokens=above,
        below_tokens=below,
        total_tokens=total,
        matched_tokens=matched,
        annotation_ratio=(above + matched) / total if total else 0.0,
        target_tokens=target,
        scale=scale,
        target_below_sample=matched * scale,
        rows=sum(part["above_rows"] + part["below_rows"] for part in estimates),
        held_out_tokens=sum((part["held_out_tokens"] for part in estimates), 0.0),
        held_out_rows=sum(part["held_out_rows"] for part in estimates),
    )


def part_budget(estimate: PartEstimate, totals: Totals) -> PartBudget:
    """Return ``below_p``, ``annotated_p`` and ``unannotated_p`` of the module docstring for one part."""
    scale = totals["scale"]
    share = estimate["below_tokens"] / totals["below_tokens"] if totals["below_tokens"] else 0.0
    below = totals["target_below_sample"] * share
    return PartBudget(
        below=below,
        annotated=estimate["above_tokens"] * scale + below,
        unannotated=estimate["below_tokens"] * scale - below,
    )


def budgets(estimates: Sequence[PartEstimate], parameters: SubsamplingParameters) -> tuple[Totals, list[PartBudget]]:
    """Return the globals and the budget of every part, in part order."""
    totals = totals_of(estimates, parameters)
    return totals, [part_budget(estimate, totals) for estimate in estimates]


def draw_rows(
    tokens: Floats,
    scores: npt.NDArray[np.int8],
    held_out: npt.NDArray[np.bool_],
    budget: PartBudget,
    part_index: int,
    parameters: SubsamplingParameters,
) -> tuple[Integers, Integers]:
    """Draw the rows of one part: ``(annotated rows, unannotated rows)``, each in increasing order, sharing no row.

    One generator ``default_rng((seed, part_index))`` shuffles the row numbers above, then those below. *fill(pool,
    budget)* is the shortest prefix of a shuffled pool whose estimated tokens reach the budget (the whole pool when they
    do not, nothing when the budget is not positive). Annotated: fill(above, annotated budget), then fill(below, what
    those leave of it). Unannotated: fill(the below rows not taken, in shuffled order, unannotated budget).

    Args:
        tokens: estimated tokens of each row, shape (rows,).
        scores: safety scores, shape (rows,).
        held_out: rows that take no part, shape (rows,).
        budget: of this part, from `part_budget`.
        part_index: number of the part, the generator's key.
        parameters: seed and threshold.
    """
    generator = numpy_generator(parameters.seed, part_index)
    is_above = scores >= parameters.annotation_threshold
    above = np.where(is_above & ~held_out)[0].astype(np.int64)
    below = np.where(~is_above & ~held_out)[0].astype(np.int64)
    generator.shuffle(above)
    generator.shuffle(below)
    taken_above = _fill(above, tokens, budget["annotated"])
    left = budget["annotated"] - sum_tokens(tokens[taken_above])
    taken_below = _fill(below, tokens, left)
    unannotated = _fill(below[len(taken_below) :], tokens, budget["unannotated"])
    return np.sort(np.concatenate([taken_above, taken_below])), np.sort(unannotated)


def metadata(
    parameters: SubsamplingParameters,
    totals: Totals,
    estimates: Sequence[PartEstimate],
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Return what a reader needs to check the draw: every parameter and global, counts of each split, versions.

    Args:
        parameters: of the run.
        totals: from `totals_of`.
        estimates: of the parts, in part order.
        splits: for each split the statistics of its parts, in part order (see `splits.select_split`).
    """
    return {
        "parameters": parameters.model_dump(mode="json"),
        "globals": dict(totals),
        "token_counts": "estimates: min(code points / chars_per_token, max_tokens_per_document); row counts are exact",
        "splits": {
            split: {
                "rows": sum(part["rows"] for part in parts),
                "estimated_tokens": sum((part["estimated_tokens"] for part in parts), 0.0),
                "rows_by_part": [part["rows"] for part in parts],
            }
            for split, parts in sorted(splits.items())
        },
        "budgets": [dict(budget) for budget in budgets(estimates, parameters)[1]],
        "estimates": [dict(estimate) for estimate in estimates],
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }


def require_scores(scores: npt.NDArray[np.float64] | npt.NDArray[np.int8], nulls: int, part_name: str) -> None:
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


def _fill(pool: Integers, tokens: Floats, budget: float) -> Integers:
    if len(pool) == 0 or budget <= 0:
        return pool[:0]
    reached = np.searchsorted(np.cumsum(tokens[pool]), budget, side="left") + 1
    return pool[: min(int(reached), len(pool))]
