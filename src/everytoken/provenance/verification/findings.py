"""A finding: the outcome of one check in a sentence, with what was found, or what is wrong and where.

The first line of a fault says what is wrong, where, what was expected and what was found; lines after it say more, as
which documents a window holds. A file that is missing is the fault of one check: others that need it are not made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.corpus import CorpusError
from everytoken.provenance.errors import ProvenanceError
from everytoken.shards import ShardsError
from everytoken.tokens import TokensError
from everytoken.tokens.checks import Check

_FAULTS = (ProvenanceError, CorpusError, TokensError, ShardsError, OSError, pa.ArrowException)
_NAMED = 5
_COLUMNS = 120


@dataclass(frozen=True)
class Finding(Check):
    """A check whose numbers stand in a sentence.

    Attributes:
        said: what was found, when it holds.
        is_made: False: it needs what another check names as its fault, so nothing is known of it.
    """

    said: str = ""
    is_made: bool = True

    @property
    def text(self) -> str:
        """The fault, or what was found."""
        return self.fault or self.said


class NotCheckedError(Exception):
    """A check cannot be made because of a fault that another check names; the message says which."""


def finding(name: str, run: Callable[[], str], missing: Mapping[Path, str] | None = None) -> Finding:
    """Run what returns a sentence, or raises what is wrong; nothing is raised from here.

    Args:
        name: of the check.
        run: the check.
        missing: files that are not there, each with the check that names it: where ``run`` fails for one of them, it is
            no fault again.
    """
    try:
        return Finding(name, True, {}, said=run())
    except NotCheckedError as error:
        return Finding(name, True, {}, said=f"not checked: {error}", is_made=False)
    except _FAULTS as error:
        if (lost := _missing_file(error, missing or {})) is not None:
            said = f"not checked: {lost} is missing, see {(missing or {})[lost]}"
            return Finding(name, True, {}, said=said, is_made=False)
        return Finding(name, False, {}, str(error))
    except Exception as error:  # bytes that are anything can raise anything; the other checks still run
        return Finding(name, False, {}, f"it is damaged so that it cannot be read ({type(error).__name__}: {error})")


def _missing_file(error: BaseException, missing: Mapping[Path, str]) -> Path | None:
    """Return the missing file that an error was raised for, or that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FileNotFoundError):
            said = f"{cause} {cause.filename}"
            return next((path for path in missing if str(path) in said), None)
        cause = cause.__cause__
    return None


def fault_lines(fault: str) -> list[str]:
    """Return a fault in lines of 120 columns, those after its first line indented."""
    first, *more = fault.split("\n")
    lines = _wrapped(first, "FAIL  ", "      ")
    for line in more:
        indent = " " * (6 + len(line) - len(line.lstrip(" ")))
        lines += _wrapped(line.strip(), indent, f"{indent}  ")
    return lines


def _wrapped(line: str, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        line, _COLUMNS, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )


def require_none(faults: Sequence[str]) -> None:
    """Raise the first faults in one error, a line each.

    Raises:
        ProvenanceError: there is one.
    """
    if faults:
        more = [f"and {len(faults) - _NAMED:,} more"] if len(faults) > _NAMED else []
        raise ProvenanceError("\n".join([*faults[:_NAMED], *more]))


def require_equal(what: str, found: Any, expected: Any) -> None:
    """Raise when two values differ.

    Raises:
        ProvenanceError: says ``what`` was expected and found.
    """
    if found != expected:
        raise ProvenanceError(f"{what}: expected {_shown(expected)}, found {_shown(found)}")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
