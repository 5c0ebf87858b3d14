"""A check: one thing that must hold, with the numbers that were found or the fault by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from everytoken.shards import ShardsError
from everytoken.tokens.errors import StreamError, TokensError

Level = Literal["sizes", "sampled", "full"]
_FAULTS = (TokensError, ShardsError, OSError, pa.ArrowException)


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        name: ``sizes``, ``windows``, ``digests``...
        ok: whether it holds.
        numbers: what was found, by what it counts.
        fault: what is wrong; empty when ``ok``.
    """

    name: str
    ok: bool
    numbers: Mapping[str, int]
    fault: str = ""

    @property
    def text(self) -> str:
        """The fault, or the numbers in words."""
        return self.fault or ", ".join(f"{count:,} {what}" for what, count in self.numbers.items())


def require(checks: list[Check]) -> None:
    """Raise the first fault.

    Raises:
        StreamError: a check does not hold.
    """
    for check in checks:
        if not check.ok:
            raise StreamError(check.fault)


def checked(name: str, run: Callable[[], Mapping[str, int]]) -> Check:
    """Run what returns numbers, or raises what is wrong."""
    try:
        return Check(name, True, run())
    except _FAULTS as error:
        return Check(name, False, {}, str(error))
    except Exception as error:  # bytes that are anything can raise anything; the other checks still run
        return Check(name, False, {}, f"it is damaged so that it cannot be read ({type(error).__name__}: {error})")
