"""Strata beside the score: which stratum a document is in, and how much of each is drawn. The formulas.

With A_k and B_k the estimated tokens above and below of stratum k (see `everytoken.corpus.sampling.formulas`), T_k =
A_k + B_k, and shares w_k that sum to 1::

    budget  = target_tokens if given, but at most min over w_k > 0 of T_k / w_k, which is the most that the shares allow
    scale_k = w_k * budget / T_k          (0 where w_k is 0, at most 1)

Without shares every stratum has the scale of the whole corpus, so the corpus keeps its own shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, model_validator

from everytoken.corpus.errors import SamplingError
from everytoken.corpus.statistics import as_written
from everytoken.shards import UNRECORDED_DEFAULT

_SUM_TOLERANCE = 1e-9

EVERYTHING = "all"
"""The name of the one stratum that there is where the parameters give no strata."""

OTHER = "other"
"""The stratum of languages that are not named, where some are."""


def _all_languages(languages: tuple[str, ...] | None) -> bool:
    return languages is None


class Strata(BaseModel):
    """What documents are divided by, beside their score.

    Attributes:
        key: the column ``source`` or ``stratum`` of the documents; ``length_band``: the band of its code points; or
            ``language``: what `everytoken.corpus.languages` found.
        length_bands: first length of each band but the shortest, increasing: ``[1000, 10000]`` makes the bands
            ``0-999``, ``1000-9999`` and ``10000-``. Only for ``length_band``, null for the other keys.
        languages: those that are strata of their own, all others are the stratum ``other``. Only for ``language``; null
            makes a stratum of each.
        shares: share of each stratum in the estimated tokens of both splits together; they sum to 1, and a share of 0
            leaves a stratum out. Null keeps the shares of the corpus.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Literal["source", "stratum", "length_band", "language"]
    length_bands: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    languages: Annotated[tuple[str, ...] | None, UNRECORDED_DEFAULT] = Field(
        default=None, min_length=1, exclude_if=_all_languages
    )
    shares: Annotated[dict[str, Annotated[FiniteFloat, Field(ge=0)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Strata:
        if (self.key == "length_band") != (self.length_bands is not None):
            raise ValueError(
                f"strata.length_bands is {self.length_bands} and strata.key is {self.key!r}; give the bands for "
                f"length_band, and null for any other key"
            )
        if self.languages is not None and (self.key != "language" or OTHER in self.languages):
            raise ValueError(
                f"strata.languages is {list(self.languages)} and strata.key is {self.key!r}; name languages for the "
                f"key language alone, and not {OTHER!r}, which has all that are not named"
            )
        if self.length_bands is not None and any(np.diff(self.length_bands) <= 0):
            raise ValueError(f"strata.length_bands is {list(self.length_bands)}; give increasing lengths")
        if self.shares is not None:
            total = sum(map(as_written, self.shares.values()), Fraction(0))
            if abs(total - 1) > _SUM_TOLERANCE:
                raise ValueError(
                    f"strata.shares sum to {float(total):.12g} instead of 1; change the share of one of "
                    f"{sorted(self.shares)}"
                )
            if self.length_bands is not None and (unknown := sorted(set(self.shares) - set(self.bands))):
                raise ValueError(f"strata.shares names {unknown}; the length bands are {list(self.bands)}")
            if self.languages is not None and (unknown := sorted(set(self.shares) - {*self.languages, OTHER})):
                raise ValueError(f"strata.shares names {unknown}; the strata are {[*self.languages, OTHER]}")
        return self

    @property
    def bands(self) -> tuple[str, ...]:
        """Names of the length bands, from short to long."""
        edges = [0, *(self.length_bands or ())]
        closed = (f"{first}-{after - 1}" for first, after in pairwise(edges))
        return (*closed, f"{edges[-1]}-")

    def of_language(self, language: str) -> str:
        """Return the name of the stratum of a language."""
        return language if self.languages is None or language in self.languages else OTHER

    def band_numbers(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the number of the band of each length in code points, shape (rows,)."""
        return np.searchsorted(np.array(self.length_bands or ()), lengths, side="right").astype(np.int32)


class Shortfall(TypedDict):
    """A stratum with fewer estimated tokens than its share of the target; None is the whole corpus."""

    stratum: str | None
    tokens: float
    wanted_tokens: float


class Scales(NamedTuple):
    """What is drawn: estimated tokens of both splits together, and of each stratum the scale (0 to 1).

    ``limited_by`` is empty when the budget is what was wanted, else names what is short of it, the scarcest first:
    that one sets the budget.
    """

    budget_tokens: float
    by_stratum: dict[str, float]
    limited_by: list[Shortfall]


def scales_of(tokens: Mapping[str, float], strata: Strata | None, target_tokens: float | None) -> Scales:
    """Return how much of each stratum is drawn (see the module docstring).

    Args:
        tokens: T_k by stratum, estimated tokens of the documents that are not held out.
        strata: with or without shares, or None for one stratum.
        target_tokens: estimated tokens wanted, or None for the most there is.

    Raises:
        SamplingError: a stratum without a share, a share without a stratum, or one of a stratum without tokens.
    """
    if strata is None or strata.shares is None:
        total = sum(tokens.values(), 0.0)
        if target_tokens is None or target_tokens >= total:
            short = target_tokens is not None and target_tokens > total
            limited = [Shortfall(stratum=None, tokens=total, wanted_tokens=target_tokens or 0.0)] if short else []
            return Scales(total, dict.fromkeys(tokens, 1.0), limited)
        return Scales(target_tokens, dict.fromkeys(tokens, target_tokens / total), [])
    shares = strata.shares
    _require_a_share_each(tokens, shares)
    allowed = {name: tokens[name] / share for name, share in shares.items() if share > 0}  # in all, by each stratum
    most = min(allowed.values())
    wanted = most if target_tokens is None else target_tokens
    budget = min(most, wanted)
    limited = [
        Shortfall(stratum=name, tokens=tokens[name], wanted_tokens=shares[name] * wanted)
        for name in sorted(allowed, key=lambda name: (allowed[name], name))
        if allowed[name] < wanted
    ]
    scales = {name: min(1.0, shares[name] * budget / tokens[name]) if shares[name] else 0.0 for name in tokens}
    return Scales(budget, scales, limited)


def _require_a_share_each(tokens: Mapping[str, float], shares: Mapping[str, float]) -> None:
    without = {name: f"{tokens[name]:,.0f} tokens" for name in sorted(set(tokens) - set(shares))}
    absent = {name: shares[name] for name in sorted(set(shares) - set(tokens))}
    empty = {name: shares[name] for name in sorted(set(shares) & set(tokens)) if shares[name] > 0 and not tokens[name]}
    faults = [
        f"{what} {_listed(names)}"
        for what, names in (
            ("no share is given for the strata", without),
            ("the corpus has no documents of", absent),
            ("no document has a token, or all are held out, of", empty),
        )
        if names
    ]
    if faults:
        raise SamplingError(
            f"subsampling.strata.shares does not fit the corpus: {'; '.join(faults)}. "
            f"Give every stratum of the corpus a share and no other one; a share of 0 leaves a stratum out. "
            f"A run with shares: null lists all strata with their amounts in strata_report.csv."
        )


def _listed(amounts: Mapping[str, object]) -> str:
    first = ", ".join(f"{name!r} ({amount})" for name, amount in list(amounts.items())[:20])
    return first if len(amounts) <= 20 else f"{first} and {len(amounts) - 20:,} more"
