"""The rule ``integer`` from a table of one period: within one window of target for any number of streams.

For weights of few whole parts W in all (0.5, 0.2, 0.15, 0.1, 0.05 are 20), the first W items are decided one by one,
and then repeated: item i is from ``stream[i mod W]``, with the ordinal ``(i // W) w + rank[i mod W]``.

Item j of a stream of weight w may come at places floor(j W / w) to ceil((j + 1) W / w) - 1. In these places counts are
the share of every prefix, rounded down or up, so less than one window from it. Each place takes, of the items that may
come, the one whose last place is earliest, of those alike the one of the stream that was given first. As the weights
sum up to W, no item misses its places (earliest deadline first; the windows of proportionate fairness: Baruah, Cohen,
Plaxton, Varvel, 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np


class PeriodicSchedule:
    """See the module; a `everytoken.tokens.order.spp_schedule.Schedule`.

    Attributes:
        weights: whole numbers without common divisor.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        """Decide one period: time and memory grow with the sum of the weights."""
        self.weights = tuple(weights)
        self._period = sum(weights)
        self._table = np.array(_earliest_deadline_first(self.weights), np.int64)
        self._places = [np.flatnonzero(self._table == stream) for stream in range(len(self.weights))]
        self._rank = np.empty(self._period, np.int64)
        for places in self._places:
            self._rank[places] = np.arange(len(places))
        self._weights = np.array(self.weights, np.int64)

    def locate(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and ordinals, int64 (n,), of items, int64 (n,)."""
        periods, places = np.divmod(np.asarray(items, np.int64), self._period)
        streams = self._table[places]
        return streams, periods * self._weights[streams] + self._rank[places]

    def counts(self, items: int) -> tuple[int, ...]:
        """Return how many of the first ``items`` items each stream has."""
        periods, place = divmod(items, self._period)
        return tuple(
            periods * weight + int(np.searchsorted(places, place))
            for weight, places in zip(self.weights, self._places, strict=True)
        )

    def item(self, stream: int, ordinal: int) -> int | None:
        """Return the item that is number ``ordinal`` of ``stream``; None for a stream of weight 0."""
        if self.weights[stream] == 0:
            return None
        periods, rank = divmod(ordinal, self.weights[stream])
        return periods * self._period + int(self._places[stream][rank])

    def bounds(self) -> tuple[Fraction, ...]:
        """Return for each stream how many items a prefix can at most be from its share of it: looked up, below 1."""
        prefix = np.arange(1, self._period + 1)
        return tuple(
            Fraction(int(np.abs(np.cumsum(self._table == stream) * self._period - prefix * weight).max()), self._period)
            for stream, weight in enumerate(self.weights)
        )


def _earliest_deadline_first(weights: Sequence[int]) -> list[int]:
    period, table = sum(weights), []
    waiting = [(0, stream, 0) for stream, weight in enumerate(weights) if weight]  # first place, stream, item
    ready: list[tuple[int, int, int]] = []  # last place, stream, item
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, stream, item = heappop(waiting)
            heappush(ready, (-(-(item + 1) * period // weights[stream]) - 1, stream, item))
        _, stream, item = heappop(ready)
        table.append(stream)
        if item + 1 < weights[stream]:
            heappush(waiting, ((item + 1) * period // weights[stream], stream, item + 1))
    return table
