"""Tries of one request, and the pauses between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count

from everytoken.reflections.generators.asking import RawReply, RequestFailed
from everytoken.seeds import python_random

_TRIES = 5
_TRIES_OF = {"rate_limit": 8, "timeout": 8, "refused_request": 1, "context": 1}


def pause_before_retry(number: int, first: float, seed: int) -> float:
    """Return the seconds to wait after try ``number``, counted from 1: ``first`` doubles, times 0.5 to 1.5."""
    return float(first * 2 ** (number - 1) * (0.5 + python_random(seed, "pause", number).random()))


async def with_retries(
    once: Callable[[], Awaitable[RawReply]], *, first_pause: float, seed: int, failures: Counter[str]
) -> RawReply:
    """Return what ``once`` gives: 5 tries, 8 where the last one was limited or took too long.

    Args:
        first_pause: seconds, about, before the second try.
        seed: of the pauses.
        failures: gets a count for each try that failed.

    Raises:
        RequestFailed: as the last try.
    """
    for number in count(1):
        try:
            return await once()
        except RequestFailed as failure:
            failures[failure.kind] += 1
            if number >= _TRIES_OF.get(failure.kind, _TRIES):
                raise
        await asyncio.sleep(pause_before_retry(number, first_pause, seed))
    raise AssertionError("a loop without end")
