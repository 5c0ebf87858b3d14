"""A check of what is stored: what must hold, how it came out, and the one runner of lists of checks.

A list of checks has (name, function) for each. A function gets what is checked, returns what it found, and raises what
is wrong; None: it does not apply here. Only declared errors become failed checks: a fault of this program stays one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from everytoken.shards import ShardsError

_TOLD = (ShardsError, OSError, pa.ArrowException)
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError, MemoryError)
READ_FAULTS: tuple[type[Exception], ...] = (*_TOLD, *_DAMAGE, zlib.error, struct.error)
"""What readers raise for damaged bytes, in addition to the errors of their own package."""

_NAMED = 5
_ENTRIES = 1 << 20

Subject = TypeVar("Subject")
Needed = TypeVar("Needed")
Found = str | Mapping[str, int]
Checks = Iterable[tuple[str, Callable[[Subject], Found | None]]]


class Faults(ShardsError):
    """Several things are wrong; ``missing`` are the files among them that do not exist."""

    def __init__(self, faults: Sequence[str], missing: Iterable[Path] = ()) -> None:
        more = [f"and {len(faults) - _NAMED:,} more"] if len(faults) > _NAMED else []
        super().__init__("; ".join([*faults[:_NAMED], *more]))
        self.missing = tuple(missing)


class Mismatch(ShardsError):
    """Something stored is not what it must be; ``more`` are lines that say more."""

    def __init__(self, place: str, expected: str, found: str, remedy: str = "", more: str = "") -> None:
        said = f"{place}: expected {expected}, found {found}" + (f": {remedy}" if remedy else "")
        super().__init__("\n".join(filter(None, [said, more])))
        self.parts: dict[str, Any] = {"place": place, "expected": expected, "found": found, "remedy": remedy}


class NotMadeError(Exception):
    """A check cannot be made because of what another check names; the message says which."""


@dataclass(frozen=True)
class Check:
    """How one thing that must hold came out.

    Attributes:
        name: ``sizes``, ``windows``, ``digests``...
        outcome: ``not made`` where what another check names, or data that is gone, leaves nothing to compare.
        text: what was found, what is wrong, or why the check was not made.
        covers: what was checked, where several things are.
        numbers: what was found, by what it counts.
        place: of a difference, as the next three: where it is.
    """

    name: str
    outcome: Literal["passed", "failed", "not made"]
    text: str
    covers: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    place: str = ""
    expected: str = ""
    found: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is known to be wrong."""
        return self.outcome != "failed"

    @property
    def fault(self) -> str:
        """What is wrong; empty when it is ``ok``."""
        return "" if self.ok else self.text


def run_checks(
    checks: Checks[Subject],
    subject: Subject,
    faults: tuple[type[Exception], ...],
    *,
    covers: str = "",
    missing: dict[Path, str] | None = None,
) -> Iterator[Check]:
    """Make checks, one after the other.

    Args:
        faults: errors that are failed checks; others are raised.
        covers: what is checked, in words.
        missing: files that do not exist, by the check that names them; is added to. A later check that fails for one
            of them is not made: one missing file is one fault. None: each check names it.
    """
    for name, function in checks:
        try:
            found = function(subject)
        except NotMadeError as error:
            yield Check(name, "not made", f"not checked: {error}", covers)
        except faults as error:
            lost = [one for one in _causes(error) if isinstance(one, FileNotFoundError)]
            known = [path for path in missing or () if any(str(path) in f"{one} {one.filename}" for one in lost)]
            if missing is not None and known:
                yield Check(name, "not made", f"not checked: {known[0]} is missing, see {missing[known[0]]}", covers)
                continue
            if missing is not None:
                paths = [Path(one.filename) for one in lost if one.filename is not None]
                missing.update(dict.fromkeys([*paths, *getattr(error, "missing", ())], name))
            check = Check(name, "failed", fault_text(error), covers)
            yield replace(check, **error.parts) if isinstance(error, Mismatch) else check
        else:
            if isinstance(found, str):
                yield Check(name, "passed", found, covers)
            elif found is not None:
                said = ", ".join(f"{count:,} {what}" for what, count in found.items())
                yield Check(name, "passed", said, covers, found)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def fault_text(error: BaseException) -> str:
    """Return what an error says; of a reader that met damaged bytes, also which error it is."""
    if isinstance(error, _TOLD) or not isinstance(error, READ_FAULTS):
        return str(error)
    return f"it is damaged so that it cannot be read ({type(error).__name__}: {error})"


def made_by(check: str, value: Needed | None) -> Needed:
    """Return what an earlier check opened; `NotMadeError` where it could not."""
    if value is None:
        raise NotMadeError(f"see {check}")
    return value


def require_none(faults: Sequence[str], missing: Iterable[Path] = ()) -> None:
    """Raise the first `Faults` in one error, where there is one."""
    if faults:
        raise Faults(faults, missing)


def require_equal(place: str, found: Any, expected: Any) -> None:
    """Raise a `Mismatch` when two values differ."""
    if found != expected:
        raise Mismatch(place, _shown(expected), _shown(found))


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def first_difference(found: np.ndarray, expected: np.ndarray) -> int | None:
    """Return the first entry in which two arrays of one length, (n,), differ; they are read 2**20 at a time."""
    for start in range(0, len(expected), _ENTRIES):
        wrong = found[start : start + _ENTRIES] != expected[start : start + _ENTRIES]
        if wrong.any():
            return start + int(np.argmax(wrong))
    return None
