r"""Mixtures: how much of each source, which documents that takes, and in which order they are mixed. The formulas.

Source i of weight w_i (the weights sum to 1) has a budget of ``T_i = w_i * target_total_tokens`` tokens, rounded by
largest remainder so that the budgets sum to the target. The ``unit`` says what a token is:

- ``estimated``: characters (code points) over ``chars_per_token`` of the source. A document counts its characters, and
  the budget is ``ceil(T_i * chars_per_token_i)`` of them.
- ``tokens``: those that the tokenizer of the job gives, EOS included. A document counts its tokens, and the budget is
  ``T_i`` of them. Every use of a repeated document counts again.

All arithmetic is exact: a number of the parameters means the decimal that is written there (4.068 is 1017/250). So no
rounding can depend on the order of an addition. The *amount* of a document is its characters or its tokens.

*Spending*: the documents of a source are taken in plan order while their amount is less than the budget's, so the
document that reaches the budget is the last one. A source that runs dry is an error, unless ``allow_repeat`` lets its
documents be used again, in the same order.

*Interleaving*: with tokens s of each document, shares v_i and T the tokens of the mixed corpus so far, source i may
have the next document when it is not ahead of its share, ``given_i <= v_i * T``, and of those that may, the one is
taken whose document is due first: least ``(given_i + s) / v_i``. This is worst-case fair queueing (Bennett and Zhang
1996, WF2Q), for documents of one size the chairman assignment (Tijdeman 1980). After every document, with L the
largest size,

    given_i - v_i * T <= (1 - v_i) * s < L         since it was not ahead before its last document
    v_i * T - given_i <= L                          since each document ends at most L after it is due

The shares of `interleave` are those of what was taken (each source's tokens over all tokens), so all sources end
together and the bound holds to the last document. They differ from the weights by the last document of each source.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeFloat, PositiveInt, model_validator

from everytoken.arrays import Integers
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.statistics import as_written
from everytoken.shards import UNRECORDED_DEFAULT

Positive = Annotated[FiniteFloat, Field(gt=0)]

_SUM_TOLERANCE = 1e-9


class MixtureParameters(BaseModel):
    """A mixture recipe.

    Attributes:
        weights: share of the tokens by source; they sum to 1.
        target_total_tokens: tokens of the whole mixture, in ``unit``.
        unit: ``estimated``, or ``tokens`` of the job's tokenizer, which must then exist before the job.
        chars_per_token: code points of one estimated token, by source, or one number for all; of ``estimated`` alone.
        allow_repeat: how many times in all the documents of a source may be used; once where it is not named.
        tolerance: highest relative difference of a realised weight from the intended one without a warning.
        documents_per_part: documents in a part of the mixed corpus.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: Annotated[dict[str, Positive], Field(min_length=1)]
    target_total_tokens: PositiveInt
    unit: Annotated[Literal["estimated", "tokens"], UNRECORDED_DEFAULT] = "estimated"
    chars_per_token: dict[str, Positive] | Positive | None = None
    allow_repeat: dict[str, PositiveInt] = {}
    tolerance: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
    documents_per_part: PositiveInt

    @model_validator(mode="after")
    def _consistent(self) -> MixtureParameters:
        total = sum(map(as_written, self.weights.values()), Fraction(0))
        if abs(total - 1) > _SUM_TOLERANCE:
            raise ValueError(
                f"the weights sum to {float(total)!r}, expected 1 (within {_SUM_TOLERANCE:g}): {self.weights}. "
                "Change them so that they do; nothing is scaled for you"
            )
        if self.unit == "tokens" and self.chars_per_token is not None:
            raise ValueError(
                f"unit is tokens, which are counted, and chars_per_token = {self.chars_per_token} estimates them: "
                "remove chars_per_token (or set it to null), or set unit to estimated"
            )
        if self.unit == "estimated" and self.chars_per_token is None:
            raise ValueError(
                "unit is estimated, and chars_per_token is not given: give the characters of a token, a number for "
                "all sources or one for each, or set unit to tokens"
            )
        if isinstance(self.chars_per_token, dict) and set(self.chars_per_token) != set(self.weights):
            raise ValueError(
                f"chars_per_token is given for {sorted(self.chars_per_token)}, expected one for each of "
                f"{sorted(self.weights)}, or one number"
            )
        if unknown := sorted(set(self.allow_repeat) - set(self.weights)):
            raise ValueError(
                f"allow_repeat names {unknown}, which have no weight; expected some of {sorted(self.weights)}"
            )
        return self

    def among(self, sources: Collection[str]) -> MixtureParameters:
        """Return the mixture of some of its sources: each weight over the sum of theirs, and the same target."""

        def kept(by_source: Mapping[str, Any]) -> dict[str, Any]:
            return {source: value for source, value in by_source.items() if source in sources}

        exact = {source: as_written(weight) for source, weight in kept(self.weights).items()}
        whole = sum(exact.values(), Fraction(0))
        changed = {
            "weights": {source: float(weight / whole) for source, weight in exact.items()},
            "allow_repeat": kept(self.allow_repeat),
        }
        if isinstance(self.chars_per_token, dict):
            changed["chars_per_token"] = kept(self.chars_per_token)
        return MixtureParameters.model_validate({**self.model_dump(), **changed})

    def exact_chars_per_token(self, source: str) -> Fraction:
        """Return the code points of one estimated token of a source, exact."""
        given = self.chars_per_token
        assert given is not None, "estimated tokens need it, and the model has checked that"
        return as_written(given[source] if isinstance(given, dict) else given)

    def amount_per_token(self, source: str) -> Fraction:
        """Return the amount of one token of a source, exact: its characters, or 1 where tokens are counted."""
        return Fraction(1) if self.unit == "tokens" else self.exact_chars_per_token(source)


class SourceBudget(NamedTuple):
    """What a source gives: tokens, and the least amount (characters, or tokens) that reaches them."""

    tokens: int
    amount: int


class Used(NamedTuple):
    """What a source gave: documents, uses of them (more when some are repeated), the amount of all uses."""

    documents: int
    uses: int
    amount: int


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divide ``total`` into whole numbers in proportion to ``weights``: they sum to it, each within one of its share.

    Every share is rounded down; the units that are left go to the largest remainders, on a tie to the earlier one.

    >>> largest_remainder([0.5, 0.3, 0.2], 9)
    [4, 3, 2]

    Raises:
        SelectionError: no weight, one that is negative, or a sum of 0.
    """
    exact = [as_written(weight) for weight in weights]
    if not exact or min(exact) < 0 or sum(exact) == 0:
        raise SelectionError(f"the weights are {list(weights)}; expected none below 0 and a sum above 0")
    shares = [weight * total / sum(exact) for weight in exact]
    counts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def budgets(parameters: MixtureParameters) -> dict[str, SourceBudget]:
    """Return the budget of each source; the tokens sum to ``target_total_tokens``."""
    tokens = largest_remainder(list(parameters.weights.values()), parameters.target_total_tokens)
    return {
        source: SourceBudget(count, math.ceil(count * parameters.amount_per_token(source)))
        for source, count in zip(parameters.weights, tokens, strict=True)
    }


def documents_until(amounts: Integers, needed: int) -> int:
    """Return how many documents are taken until the amount ``needed`` is reached; all of them when it never is."""
    if needed <= 0:
        return 0
    return min(int(np.searchsorted(np.cumsum(amounts), needed, side="left")) + 1, len(amounts))


def passes(source: str, there: int, needed: int, parameters: MixtureParameters) -> tuple[int, int]:
    """Return how often all documents of a source are used, and which amount the use after that must reach.

    Args:
        there: amount of all its documents.
        needed: amount of its budget.

    Raises:
        SelectionError: the source runs dry.
    """
    allowed = parameters.allow_repeat.get(source, 1)
    if there * allowed < needed:
        enough = (
            f"or set mixture.allow_repeat.{source} to at least {-(-needed // there)}" if there else "it has no text"
        )
        raise SelectionError(
            f"source {source!r} runs dry: {_budget_and_documents(source, needed, there, parameters)} and may be used "
            f"{allowed} time(s). Read more of its shards, raise its max_text_bytes if it has one, lower its weight or "
            f"mixture.target_total_tokens, {enough}."
        )
    whole = (needed - 1) // there if needed else 0
    return whole, needed - whole * there


def _budget_and_documents(source: str, needed: int, there: int, parameters: MixtureParameters) -> str:
    if parameters.unit == "tokens":
        return f"its budget is {needed:,} tokens, its documents have {there:,}"
    per_token = parameters.exact_chars_per_token(source)
    return (
        f"its budget is {math.ceil(needed / per_token):,} estimated tokens ({needed:,} characters), its documents "
        f"have {math.floor(there / per_token):,} ({there:,} characters)"
    )


def interleave(sizes: Sequence[Iterable[int]], shares: Sequence[int]) -> Iterator[int]:
    """Yield which source each next document of a mixed corpus comes from; see the module docstring for rule and bound.

    Args:
        sizes: for each source the sizes of its documents in order, 0 or more, in a unit that all share. Read as needed.
        shares: for each source its share, in any unit: a positive integer. Where these are the sums of ``sizes``, the
            bound holds for every prefix; otherwise up to the end of the first source that ends, and the others
            go on in the order in which their documents are due.
    """
    left = [iter(source) for source in sizes]
    common = math.gcd(*shares)
    share = [value // common for value in shares]
    whole = sum(share)
    total = 0  # T
    scaled = [0] * len(left)  # given_i * whole: not ahead is scaled_i <= share_i * total
    due = [0] * len(left)  # given_i + s of its next document
    active = []
    for i, source in enumerate(left):
        size = next(source, None)
        if size is not None:
            due[i] = size
            active.append(i)
    while active:
        best = -1
        for i in active:
            if scaled[i] <= share[i] * total and (best < 0 or due[i] * share[best] < due[best] * share[i]):
                best = i
        if best < 0:  # all are ahead: only after a source has ended
            best = min(active, key=lambda i: Fraction(due[i], share[i]))
        yield best
        given = due[best]
        total += given - scaled[best] // whole
        scaled[best] = given * whole
        size = next(left[best], None)
        if size is None:
            active.remove(best)
        else:
            due[best] = given + size


def common_unit(parameters: MixtureParameters) -> dict[str, int]:
    """Return for each source what its amount counts in a unit in which the tokens of all are whole."""
    per_token = {source: parameters.amount_per_token(source) for source in parameters.weights}
    unit = math.lcm(*(ratio.numerator for ratio in per_token.values()))
    return {source: ratio.denominator * unit // ratio.numerator for source, ratio in per_token.items()}


class MixtureRow(TypedDict):
    """A source of `mixture_table`; ``characters`` where tokens are estimated by them."""

    source: str
    weight: float
    budget_tokens: int
    documents: int
    uses: int
    characters: NotRequired[int]
    tokens: int
    realised_weight: float
    relative_difference: float


def mixture_table(parameters: MixtureParameters, used: Mapping[str, Used]) -> list[MixtureRow]:
    """Return intended against realised, one entry a source in the order of the recipe.

    ``tokens`` that are estimates are rounded down; ``relative_difference`` is realised weight / weight - 1.
    """
    exact = {source: used[source].amount / parameters.amount_per_token(source) for source in parameters.weights}
    total = sum(exact.values())
    wanted = budgets(parameters)
    table: list[MixtureRow] = []
    for source, weight in parameters.weights.items():
        realised = exact[source] / total if total else Fraction(0)
        row = MixtureRow(
            source=source,
            weight=weight,
            budget_tokens=wanted[source].tokens,
            documents=used[source].documents,
            uses=used[source].uses,
            characters=used[source].amount,
            tokens=math.floor(exact[source]),
            realised_weight=float(realised),
            relative_difference=float(realised / as_written(weight) - 1),
        )
        if parameters.unit == "tokens":
            del row["characters"]
        table.append(row)
    return table


def beyond_tolerance(table: Iterable[MixtureRow], tolerance: float) -> list[str]:
    """Return a sentence for each source of `mixture_table` whose realised weight is too far from the intended one."""
    return [
        f"source {row['source']!r} has a realised weight of {row['realised_weight']:.6f}, intended {row['weight']:.6f} "
        f"({row['relative_difference']:+.2%}, tolerance {tolerance:.2%}): {row['tokens']:,} "
        f"{'estimated ' if 'characters' in row else ''}tokens for a budget of {row['budget_tokens']:,}. Its documents "
        f"are large for its budget: raise target_total_tokens, or lower its max_characters."
        for row in table
        if abs(row["relative_difference"]) > tolerance
    ]
