"""Quality rules: which documents are not worth reading, by counts of their characters.

A text is rejected for the first of these reasons that holds, in this order (spec: seed recipe's *clean* stage):

===================  ===================================================================================
empty                no character but white space
too_short, too_long  fewer or more code points than the bounds of the source
unique_characters    distinct characters / characters < ``min_unique_characters``, over the first 1,000
digits               characters that are digits (``str.isdigit``) / characters > ``max_digits``
punctuation          characters of a Unicode category ``P*`` / characters > ``max_punctuation``
whitespace           characters that are white space (``str.isspace``) / characters > ``max_whitespace``
===================  ===================================================================================

The share of distinct characters is taken over a window of fixed size because it falls with the length of any text:
English has 60 to 100 distinct characters, so over a whole text the rule would reject whatever is longer than about
1,400 characters, however good. `check_keep_rates` is there to see such a rule at once.

The counts come from a table of the class of every code point, read in bulk. The classes (and so the rules) are those of
the Unicode version of the running Python.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from everytoken.corpus.errors import SelectionError
from everytoken.corpus.statistics import RowCounts, as_written

WINDOW = 1_000  # characters over which the share of distinct ones is taken

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class QualityRules(BaseModel):
    """The rules of one source; null turns a rule off (``max_digits`` of a source of code). See the module docstring.

    Attributes:
        drop_empty: whether texts without any character but white space are rejected.
        min_characters: fewest code points of a text.
        max_characters: most code points of a text.
        min_unique_characters: least share of distinct characters among the first 1,000.
        max_digits: highest share of digits.
        max_punctuation: highest share of punctuation.
        max_whitespace: highest share of white space.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    drop_empty: bool = True
    min_characters: NonNegativeInt | None = None
    max_characters: NonNegativeInt | None = None
    min_unique_characters: Share | None = None
    max_digits: Share | None = None
    max_punctuation: Share | None = None
    max_whitespace: Share | None = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> QualityRules:
        least, most = self.min_characters, self.max_characters
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_characters {least} is above max_characters {most}: no document could be kept")
        return self


class CharacterCounts(NamedTuple):
    """How many characters of a text are of each class; no character is of two."""

    digits: int
    punctuation: int
    whitespace: int


def rejection(text: str, rules: QualityRules) -> str | None:
    """Return why a text is rejected (see the module docstring), or None for a text that is kept."""
    characters = len(text)
    if rules.drop_empty and (not text or text.isspace()):
        return "empty"
    if rules.min_characters is not None and characters < rules.min_characters:
        return "too_short"
    if rules.max_characters is not None and characters > rules.max_characters:
        return "too_long"
    if not characters:  # shares of nothing
        return None
    least = rules.min_unique_characters
    if least is not None and _distinct(text[:WINDOW]) / min(characters, WINDOW) < least:
        return "unique_characters"
    if rules.max_digits is None and rules.max_punctuation is None and rules.max_whitespace is None:
        return None
    counts = count_characters(text)
    if rules.max_digits is not None and counts.digits / characters > rules.max_digits:
        return "digits"
    if rules.max_punctuation is not None and counts.punctuation / characters > rules.max_punctuation:
        return "punctuation"
    if rules.max_whitespace is not None and counts.whitespace / characters > rules.max_whitespace:
        return "whitespace"
    return None


def count_characters(text: str) -> CharacterCounts:
    """Count the digits, punctuation and white space of a text."""
    if text.isascii():
        classes = np.frombuffer(text.encode("ascii").translate(_ascii_classes()), np.uint8)
    else:
        classes = _classes(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"))
    digits, punctuation, whitespace = (
        int(np.count_nonzero(classes == kind)) for kind in (_DIGIT, _PUNCTUATION, _WHITESPACE)
    )
    return CharacterCounts(digits, punctuation, whitespace)


def _distinct(window: str) -> int:
    if window.isascii():  # four times as fast as a set
        return int(np.count_nonzero(np.bincount(np.frombuffer(window.encode("ascii"), np.uint8))))
    return len(set(window))


def check_keep_rates(counts: Mapping[str, RowCounts], min_keep_rates: Mapping[str, float | None]) -> None:
    """Stop a run whose rules reject more of a source than its parameters expect.

    Args:
        counts: ``rows_in`` and ``kept`` by source; sources of which no shard was planned are not there.
        min_keep_rates: least share of the rows to be kept by source, or None for a source that may lose any.

    Raises:
        SelectionError: sources under their rate, with the numbers of each; a source whose files have no rows counts
            as one of which none was kept.
    """
    under = []
    for source, least in sorted(min_keep_rates.items()):
        if source not in counts:
            continue
        rows_in, kept = counts[source]["rows_in"], counts[source]["kept"]
        if least and (kept < as_written(least) * rows_in or not rows_in):
            rate = f"{kept / rows_in:.2%}" if rows_in else "nothing"
            under.append(
                f"source {source!r}: {kept:,} of {rows_in:,} rows kept ({rate}), expected at least {least:.2%}"
            )
    if under:
        raise SelectionError(
            "; ".join(under) + ". See by which reason the rows were set aside, then change that rule (or give another "
            "file of this source); lower min_keep_rate when these rows should go."
        )


_DIGIT, _PUNCTUATION, _WHITESPACE = 1, 2, 3
_UNKNOWN = 255


def _class(character: str) -> int:
    if character.isdigit():
        return _DIGIT
    if character.isspace():
        return _WHITESPACE
    return _PUNCTUATION if unicodedata.category(character).startswith("P") else 0


def _classes(points: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the class of each code point; those of all 1,114,112 would take a second, so each is asked for once."""
    known = _known_classes()
    classes = known.take(points)
    if classes.max() == _UNKNOWN:
        new = np.unique(points[classes == _UNKNOWN])
        known[new] = [_class(chr(point)) for point in new.tolist()]
        classes = known.take(points)
    return classes


@functools.cache
def _known_classes() -> npt.NDArray[np.uint8]:
    return np.full(sys.maxunicode + 1, _UNKNOWN, np.uint8)


@functools.cache
def _ascii_classes() -> bytes:
    return bytes(_class(chr(point)) if point < 128 else 0 for point in range(256))
