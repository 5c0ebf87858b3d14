"""What a published account says of a corpus, compared with what a run finds.

Each value is compared at the first node that knows it. One of the level ``fatal`` stops the run where it differs. One
of the level ``compare`` is printed next to what was found, as a corpus that is built again may differ there. No value
decides a byte of any dataset, so none is recorded with one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from everytoken.corpus.errors import ExpectationError

logger = logging.getLogger(__name__)


class ExpectedValues(BaseModel):
    """Values by name; null: nothing is expected.

    Attributes:
        revisions: commit of each source on the hub.
        shards: how many shards the sources have.
        first_shards: the first of the shuffled order of all shards, whatever slice of it is read.
        scored_rows: rows that stand for their id in their part, and have a score.
        scored_ids: distinct ids over all parts that have a score.
        annotated_rows, unannotated_rows: of the splits.
        tokenizer_sha256: of ``tokenizer.json``.
        longest_document: content tokens of the longest annotated document.
        share_at_cap: share of the annotated documents that are as long as the cap allows, as exact as it is written.
        reflection_points: rows of the run ``reflections`` that have a point.
        reflections_usable: rows of it with a reflection in one voice at least.
        reflections_1p: rows of it with one in the first person.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    revisions: dict[str, str] | None = None
    shards: PositiveInt | None = None
    first_shards: tuple[NonNegativeInt, ...] | None = None
    scored_rows: NonNegativeInt | None = None
    scored_ids: NonNegativeInt | None = None
    annotated_rows: NonNegativeInt | None = None
    unannotated_rows: NonNegativeInt | None = None
    tokenizer_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    longest_document: NonNegativeInt | None = None
    share_at_cap: Annotated[float, Field(ge=0, le=1)] | None = None
    reflection_points: NonNegativeInt | None = None
    reflections_usable: NonNegativeInt | None = None
    reflections_1p: NonNegativeInt | None = None


class ExpectParameters(BaseModel):
    """What is expected of a corpus: ``fatal`` stops the run where it differs, ``compare`` is printed.

    ``because``: why values of ``compare`` may differ; it is printed with each one that does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fatal: ExpectedValues | None = None
    compare: ExpectedValues | None = None
    because: str | None = None

    @model_validator(mode="after")
    def _one_level_for_a_value(self) -> ExpectParameters:
        if twice := sorted(_given(self.fatal).keys() & _given(self.compare).keys()):
            raise ValueError(f"{', '.join(twice)} is both in fatal and in compare: choose one level")
        return self

    def expects(self, name: str) -> bool:
        """Return whether a value is expected, of either level."""
        return name in _given(self.fatal) or name in _given(self.compare)

    def check(self, **found: Any) -> None:
        """Compare values by name, and print those of ``compare``.

        Raises:
            ExpectationError: one of ``fatal`` differs; the message names all that do.
        """
        _require(_compared("fatal", self.fatal, found))
        for one in _compared("compare", self.compare, found):
            reason = f". {self.because}" if self.because and not one.agrees else ""
            logger.info("%s%s", one.text, reason)

    def compared(self, found: Mapping[str, Any]) -> list[ComparedFigure]:
        """Return every value that is expected next to the one that was found, in words; one may not be known."""
        return [
            _in_words(_Compared(f"expect.{level}.{name}", found.get(name), expected), name in found)
            for level, values in (("fatal", self.fatal), ("compare", self.compare))
            for name, expected in _given(values).items()
        ]

    def require(self, **found: Any) -> None:
        """Compare values by name, where neither level leaves room for another one, as in a replay.

        Raises:
            ExpectationError: one differs; the message names all that do.
        """
        _require([*_compared("fatal", self.fatal, found), *_compared("compare", self.compare, found)])


class ComparedFigure(NamedTuple):
    """A figure of a published account next to what was found, as texts; ``verdict``: equal, different, not known."""

    name: str
    expected: str
    found: str
    verdict: str


class _Compared(NamedTuple):
    """A value that was found, and the one that ``expect`` names at ``place``."""

    place: str
    found: Any
    expected: Any

    @property
    def agrees(self) -> bool:
        """Whether the values are the same: a share to the places that are written, of an order what is written."""
        found, expected = self.found, self.expected
        if isinstance(expected, float) and isinstance(found, float):
            return round(found, _places(expected)) == expected
        if isinstance(expected, tuple) and isinstance(found, Sequence):
            return tuple(found[: len(expected)]) == expected
        return bool(found == expected)

    @property
    def text(self) -> str:
        """Both values in words."""
        name = self.place.rpartition(".")[2].replace("_", " ")
        found = _shown(self.found, self.expected, 2)
        return f"{name}: {found}, as expected" if self.agrees else f"{name}: found {found}, expected {self._wanted}"

    @property
    def _wanted(self) -> str:
        return _shown(self.expected, self.expected, 0)


def _in_words(one: _Compared, is_known: bool) -> ComparedFigure:
    expected = _shown(one.expected, one.expected, 0)
    name = one.place.rpartition(".")[2].replace("_", " ")
    if not is_known:
        return ComparedFigure(name, expected, "", "not known: its stage is missing or does not record it")
    return ComparedFigure(name, expected, _shown(one.found, one.expected, 2), "equal" if one.agrees else "different")


def _given(values: ExpectedValues | None) -> dict[str, Any]:
    return {} if values is None else {name: value for name, value in values if value is not None}


def _compared(level: str, values: ExpectedValues | None, found: Mapping[str, Any]) -> list[_Compared]:
    expected = _given(values)
    return [_Compared(f"expect.{level}.{name}", found[name], expected[name]) for name in found if name in expected]


def _require(compared: Sequence[_Compared]) -> None:
    if wrong := [one for one in compared if not one.agrees]:
        raise ExpectationError(
            f"this is not the corpus that is expected: {'; '.join(one.text for one in wrong)}. Correct the parameters "
            f"that make it another one, or set {', '.join(one.place for one in wrong)} to null"
        )


def _places(share: float) -> int:
    exponent = Decimal(repr(share)).as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _shown(value: Any, expected: Any, more_places: int) -> str:
    """Return a value in words: a share with more places than the expected one, of an order as many as are expected."""
    match value:
        case None:
            return "none"
        case float():
            return f"{value:.{_places(expected) + more_places}f}"
        case int():
            return f"{value:,}"
        case list() | tuple():
            return str(list(value[: len(expected)]))
    return str(value)


NOTHING_EXPECTED = ExpectParameters()
