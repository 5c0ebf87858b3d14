"""The memory that Python and numpy take for a piece of work."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Literal, TypeVar

import cloudpickle

T = TypeVar("T")

START_METHOD: Literal["spawn", "fork"] = "spawn"
"""How the process begins in which work is measured."""


def traced_peak(work: Callable[[], T]) -> tuple[T, int]:
    """Return what ``work`` returns, and the most bytes that it took.

    It runs in a process of its own. In this one, and in a fork of it, the peak also has what other threads take, and
    what Python takes to enlarge the tables that the tests before have filled.
    """
    receiver, sender = get_context(START_METHOD).Pipe(duplex=False)
    child = get_context(START_METHOD).Process(target=_trace, args=(cloudpickle.dumps(work), sender))
    child.start()
    sender.close()
    try:
        result, peak = receiver.recv()
    finally:
        child.join()
    return result, peak


def _trace(pickled_work: bytes, sender: Connection) -> None:
    work = cloudpickle.loads(pickled_work)
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sender.send((result, peak))
