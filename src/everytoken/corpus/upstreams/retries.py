"""What is tried again, how often, and how long is waited in between.

A file comes in as many pieces as the network likes: an attempt that brought bytes starts the count anew, so that only
attempts in a row that brought nothing end in an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from everytoken.corpus.errors import UpstreamError
from everytoken.redaction import redacted

ATTEMPTS = 6  # in a row without a byte; with the waits below half a minute, which a restarted server needs
LONGEST_WAIT = 310.0  # seconds; the hub counts requests in windows of five minutes and asks to wait for the next one
_LONGEST_BACKOFF = 16.0

pause = time.sleep
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class FetchError(UpstreamError):
    """A remote file or listing cannot be had; trying again as things are would not help."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = redacted(reason), redacted(remedy)  # libraries quote URLs with their signatures
        super().__init__(f"{self.reason}. {self.remedy}")

    def __reduce__(self) -> tuple[type[FetchError], tuple[str, str]]:
        return FetchError, (self.reason, self.remedy)


class Transient(Exception):
    """An attempt failed in a way that often passes; ``wait`` is how many seconds the server asks to wait, or None."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        self.reason, self.wait = redacted(reason), wait
        super().__init__(self.reason)


def retrying(attempt: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
    """Return what ``attempt`` returns, trying again when it raises `Transient`.

    Args:
        attempt: called again as long as it brings something, and up to `ATTEMPTS` times in a row when it does not.

    Raises:
        FetchError: the last attempt failed too, or the server asks to wait for longer than `LONGEST_WAIT`.
    """
    failures, most = 0, progress()
    while True:
        try:
            return attempt()
        except Transient as error:
            failures = 1 if progress() > most else failures + 1
            most = max(most, progress())
            if failures >= ATTEMPTS:
                raise FetchError(
                    f"{error.reason}, {failures} times in a row",
                    "Check the network and the server's status, then run again: what is there is not fetched again.",
                ) from None
            backoff = min(2.0 ** (failures - 1), _LONGEST_BACKOFF)
            wait = backoff if error.wait is None else bearable(error) + 1.0  # servers round seconds down
            _LOG.warning("%s; trying again in %.0f s (%d of %d)", error.reason, wait, failures, ATTEMPTS - 1)
        pause(wait)


def bearable(error: Transient) -> float:
    """Return the wait that a server asks for; one for longer than `LONGEST_WAIT` is a `FetchError`."""
    if error.wait is not None and error.wait > LONGEST_WAIT:
        raise FetchError(
            f"{error.reason} and asks to wait {error.wait:,.0f} s, where this waits up to {LONGEST_WAIT:,.0f} s",
            "Run again after that time (what is there is not fetched again), or with fewer workers.",
        ) from None
    return error.wait or 0.0
