"""What is tried again, how often, and how long is waited in between.

Work comes in as many pieces as the network likes: an attempt that brought something starts the count again, so that
only attempts in a row that brought nothing end in an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from everytoken.redaction import redacted

ATTEMPTS = 6  # in a row that bring nothing; with the waits below half a minute, which a restarted server needs
_LONGEST_BACKOFF = 16.0

pause = time.sleep
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class Transient(Exception):
    """An attempt failed in a way that often passes; ``wait`` is how many seconds the server asks to wait, or None."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        self.reason, self.wait = redacted(reason), wait
        super().__init__(self.reason)


def retried(
    attempt: Callable[[], _T],
    gave_up: Callable[[str], Exception],
    *,
    progress: Callable[[], int] = lambda: 0,
    bearable: Callable[[Transient], float] = lambda error: error.wait or 0.0,
) -> _T:
    """Return what ``attempt`` returns, trying again when it raises `Transient`.

    Args:
        attempt: called again as long as it brings something, and up to `ATTEMPTS` times in a row when it does not.
        gave_up: makes the error that is raised when the last attempt failed too, of the reason.
        progress: how much was brought so far.
        bearable: gives the seconds to wait of those that a server asks for, or raises.
    """
    failures, most = 0, progress()
    while True:
        try:
            return attempt()
        except Transient as error:
            failures = 1 if progress() > most else failures + 1
            most = max(most, progress())
            if failures >= ATTEMPTS:
                raise gave_up(f"{error.reason}, {failures} times in a row") from None
            backoff = min(2.0 ** (failures - 1), _LONGEST_BACKOFF)
            wait = backoff if error.wait is None else bearable(error) + 1.0  # servers round seconds down
            _LOG.warning("%s; trying again in %.0f s (%d of %d)", error.reason, wait, failures, ATTEMPTS - 1)
        pause(wait)
