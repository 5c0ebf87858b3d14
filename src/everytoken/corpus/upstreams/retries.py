"""Remote files and listings, asked for again where that may help (`everytoken.shards.remote`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from everytoken.corpus.errors import UpstreamError
from everytoken.redaction import redacted
from everytoken.shards.remote import ATTEMPTS, Transient, retried

LONGEST_WAIT = 310.0  # seconds; the hub counts requests in windows of five minutes and asks to wait for the next one

__all__ = ["ATTEMPTS", "LONGEST_WAIT", "FetchError", "Transient", "bearable", "retrying"]

_T = TypeVar("_T")


class FetchError(UpstreamError):
    """A remote file or listing cannot be had; trying again as things are would not help."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = redacted(reason), redacted(remedy)  # libraries quote URLs with their signatures
        super().__init__(f"{self.reason}. {self.remedy}")

    def __reduce__(self) -> tuple[type[FetchError], tuple[str, str]]:
        return FetchError, (self.reason, self.remedy)


def retrying(attempt: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
    """Return what ``attempt`` returns, trying again when it raises `Transient`.

    Args:
        attempt: called again as long as it brings something, and up to `ATTEMPTS` times in a row when it does not.

    Raises:
        FetchError: the last attempt failed too, or the server asks to wait for longer than `LONGEST_WAIT`.
    """
    return retried(attempt, _gave_up, progress=progress, bearable=bearable)


def _gave_up(reason: str) -> FetchError:
    return FetchError(
        reason, "Check the network and the server's status, then run again: what is there is not fetched again."
    )


def bearable(error: Transient) -> float:
    """Return the wait that a server asks for; one for longer than `LONGEST_WAIT` is a `FetchError`."""
    if error.wait is not None and error.wait > LONGEST_WAIT:
        raise FetchError(
            f"{error.reason} and asks to wait {error.wait:,.0f} s, where this waits up to {LONGEST_WAIT:,.0f} s",
            "Run again after that time (what is there is not fetched again), or with fewer workers.",
        ) from None
    return error.wait or 0.0
