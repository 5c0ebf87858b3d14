"""A finding: the outcome of one check in a sentence, with what was found, or what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everytoken.corpus.errors import CorpusError
from everytoken.provenance.errors import ProvenanceError
from everytoken.shards import ShardsError
from everytoken.tokens.checks import Check
from everytoken.tokens.errors import TokensError

_FAULTS = (ProvenanceError, CorpusError, TokensError, ShardsError, OSError, pa.ArrowException)
_NAMED = 5


@dataclass(frozen=True)
class Finding(Check):
    """A check whose numbers stand in a sentence.

    Attributes:
        said: what was found, when it holds.
    """

    said: str = ""

    @property
    def text(self) -> str:
        """The fault, or what was found."""
        return self.fault or self.said


def finding(name: str, run: Callable[[], str]) -> Finding:
    """Run what returns a sentence, or raises what is wrong; nothing is raised from here."""
    try:
        return Finding(name, True, {}, said=run())
    except _FAULTS as error:
        return Finding(name, False, {}, str(error))
    except Exception as error:  # bytes that are anything can raise anything; the other checks still run
        return Finding(name, False, {}, f"it is damaged so that it cannot be read ({type(error).__name__}: {error})")


def require_none(faults: Sequence[str]) -> None:
    """Raise the first faults in one error.

    Raises:
        ProvenanceError: there is one.
    """
    if faults:
        more = f"; and {len(faults) - _NAMED:,} more" if len(faults) > _NAMED else ""
        raise ProvenanceError("; ".join(faults[:_NAMED]) + more)


def require_equal(what: str, found: Any, expected: Any) -> None:
    """Raise when two values differ.

    Raises:
        ProvenanceError: says ``what`` was expected and found.
    """
    if found != expected:
        raise ProvenanceError(f"{what}: expected {_shown(expected)}, found {_shown(found)}")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
