"""Which stream item i is from, when streams are read in proportion to weights: two rules without state.

Both map item i to (stream, ordinal): the ordinal counts the items of that stream, from 0. Nothing before
i is looked at, so any item, step or range is computed for itself.

``integer``, for new runs: exact, for any number of streams, in
`everytoken.tokens.order.integer_schedules`.

``spp``, the rule of the published runs, in float64. Streams in order have the weights w_0, w_1, ..., their sizes. At
level m, among streams m and following, the share that goes on to later streams is the float64

    r_m = (w_{m+1} + ... + w_last) / (w_m + ... + w_last),        p(i) = int((i + 1) * r_m).

Item i of level m belongs to stream m when ``p(i) == int(i * r_m)``, and then its ordinal is ``i - p(i)``; otherwise it
is item ``p(i) - 1`` of level m + 1. For compact, annotated and canary streams this is the rule of the published run
(``r = (n_a + n_k) / (n_c + n_a + n_k)``, ``q = n_k / (n_a + n_k)``). Windows are read in file order, so the window is
the ordinal modulo the size of the stream.

At the end of an epoch float64 rounding can give a stream one window more or less (sizes 20 and 31: 51 * (31 / 51) is
below 31). A change of the order or type of the products would move samples, so they are part of the format. In a prefix
the first of two streams is within one window of its share; of three streams the last can be 1 + r_1 from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from everytoken.tokens.errors import StreamError


class Schedule(Protocol):
    """A rule: item i of a run with constant weights is item ``ordinal`` of ``stream``."""

    def locate(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and ordinals, int64 (n,), of items, int64 (n,)."""

    def counts(self, items: int) -> tuple[int, ...]:
        """Return how many of the first ``items`` items each stream has."""

    def item(self, stream: int, ordinal: int) -> int | None:
        """Return the item that `locate` maps to (stream, ordinal); None when there is none."""


def later_shares(sizes: Sequence[int]) -> tuple[float, ...]:
    """Return ``r_m`` for each stream but the last, float64; 0 where no window is left.

    Raises:
        StreamError: there is no window at all.
    """
    if not sum(sizes) > 0 or min(sizes) < 0:
        raise StreamError(f"the streams have {list(sizes)} windows; expected some")
    shares = []
    for m in range(len(sizes) - 1):
        total = sum(sizes[m:])
        shares.append(sum(sizes[m + 1 :]) / total if total else 0.0)
    return tuple(shares)


def window_of_sample(sample: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Return (stream, window) of one sample by the rule ``spp``.

    Args:
        sample: number of the sample in the run, from 0.
        sizes: windows of each stream.

    Raises:
        StreamError: there is no window at all.
    """
    item, stream = sample, 0
    for share in later_shares(sizes):
        later = int((item + 1) * share)
        if later == int(item * share):
            return stream, (item - later) % sizes[stream]
        item, stream = later - 1, stream + 1
    return stream, item % sizes[stream]


class SppSchedule:
    """The rule ``spp`` for arrays: `window_of_sample`, with ordinals."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Prepare for streams of these sizes.

        Raises:
            StreamError: there is no window at all.
        """
        self._shares = later_shares(sizes)

    def locate(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Schedule`."""
        items = np.asarray(items, np.int64)
        streams = np.empty(len(items), np.int64)
        ordinals = np.empty(len(items), np.int64)
        here = np.arange(len(items))  # which items have reached this level
        for stream, share in enumerate(self._shares):
            later = ((items + 1) * share).astype(np.int64)
            stays = later == (items * share).astype(np.int64)
            streams[here[stays]] = stream
            ordinals[here[stays]] = (items - later)[stays]
            here, items = here[~stays], later[~stays] - 1
        streams[here] = len(self._shares)
        ordinals[here] = items
        return streams, ordinals

    def counts(self, items: int) -> tuple[int, ...]:
        """See `Schedule`."""
        counts = []
        for share in self._shares:
            later = int(items * share)
            counts.append(items - later)
            items = later
        return (*counts, items)

    def item(self, stream: int, ordinal: int) -> int | None:
        """See `Schedule`."""
        found = bisect_left(range(1 << 62), ordinal + 1, key=lambda items: self.counts(items)[stream]) - 1
        at, number = self.locate(np.array([found]))
        return found if (int(at[0]), int(number[0])) == (stream, ordinal) else None
