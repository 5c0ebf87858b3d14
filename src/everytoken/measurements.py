"""Measured values: how they are formed, and how they reach whoever listens while a long job runs.

A measured value may be unknown (None); it never ends or bends what it measures. An artifact function may run for days:
it calls `announce` now and then, and does not know who listens. The tracking hook does while a Kedro run is open.

>>> rate(6, 0.5), rate(6, 0.0)
(12.0, None)
>>> utilisation(30.0, 60.0), utilisation(90.0, 60.0), utilisation(None, 60.0)
(0.5, None, None)
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

MetricRows = Mapping[str, Sequence[float | int | None]]
"""Columns of one length, ``step`` among them."""

_listeners: list[Callable[[MetricRows], None]] = []


def rate(amount: float, seconds: float | None) -> float | None:
    """Return ``amount`` a second; None when no time was measured: the clock is coarse, or nothing was done."""
    return amount / seconds if seconds else None


def utilisation(reached: float | None, peak: float | None) -> float | None:
    """Return which share of ``peak`` was reached; None when one is unknown or the peak is below what was reached.

    A peak is the best of a few trials. On a busy machine it can be too low, and a share above 1 does not exist.
    """
    if reached is None or not peak or reached > peak:
        return None
    return reached / peak


def processor_name() -> str:
    """Return the CPU's model as Linux names it, else what Python knows of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def announce(rows: MetricRows) -> None:
    """Give rows to all who listen; what a listener raises is raised here."""
    for listener in list(_listeners):
        listener(rows)


@contextmanager
def listening(listener: Callable[[MetricRows], None]) -> Iterator[None]:
    """Give ``listener`` the rows that are announced inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
