"""The memory that Python and numpy take for a piece of work."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


def traced_peak(work: Callable[[], T]) -> tuple[T, int]:
    """Return what ``work`` returns, and the most bytes that it took.

    It runs in a fork: in this process, what threads of other tests take would be counted too.
    """
    receiver, sender = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_trace, args=(work, sender))
    child.start()
    sender.close()
    try:
        result, peak = receiver.recv()
    finally:
        child.join()
    return result, peak


def _trace(work: Callable[[], object], sender: Connection) -> None:
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sender.send((result, peak))
