"""What takes long tells how far it is: rows of numbers for whoever listens, and nothing where nobody does.

An artifact function may run for days. It calls `announce` now and then, and does not know who listens: the tracking
hook does while a Kedro run is open, so the curves of a training can be looked at while it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

MetricRows = Mapping[str, Sequence[float | int | None]]
"""Columns of one length, ``step`` among them."""

_listeners: list[Callable[[MetricRows], None]] = []


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
