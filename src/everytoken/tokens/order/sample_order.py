"""Which window sample i of a run is: a pure function of `DataParameters`, the sizes of the streams, and i.

1. Replay. With ``replay: [a, b]`` sample i of this run is sample a + i of the run that has no replay, and there are
   b - a of them. Below, i is that number.
2. Weights. Entry p of ``weights`` begins at sample s_p = from_step * batch_size; without entries all begins at 0, in
   proportion to the sizes. Inside, the rule (`everytoken.tokens.order.spp_schedule`) maps i - s_p to a stream and the
   number of its item, which continues where the entries before stopped: ordinal = number + the items that they gave
   the stream.
3. Epochs. A stream of n windows reads in epoch ordinal // n, at place ordinal mod n. Epoch 0 goes by ``first_epoch``,
   all others by ``later_epochs``. With ``as_written`` the window is the place; with ``permuted`` it is in epoch e where
   the permutation with the keys of (seed, name of the stream, e) sends the place
   (`everytoken.tokens.order.permutation`).

No step needs more than the one before it, so nothing but the number of the step is to be kept to go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from everytoken.tokens.errors import StreamError
from everytoken.tokens.order.integer_schedules import integer_schedule
from everytoken.tokens.order.parameters import DataParameters
from everytoken.tokens.order.permutation import Permutations
from everytoken.tokens.order.spp_schedule import Schedule, SppSchedule


@dataclass(frozen=True)
class Phase:
    """A stretch of a run with constant weights.

    Attributes:
        given: items that the phases before gave each stream.
    """

    start: int
    schedule: Schedule
    given: tuple[int, ...]


class StreamRange(TypedDict):
    """What samples read of a stream.

    ``windows`` read; their ordinals [``first``, ``end``), which count on over epochs; ``epochs``, windows over the size
    of the stream.
    """

    windows: int
    first: int
    end: int
    epochs: float


class SampleOrder:
    """See the module.

    Attributes:
        sizes: windows of each.
        phases: at least one, the first from sample 0.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int], data: DataParameters, batch_size: int) -> None:
        """Prepare for a run.

        Raises:
            StreamError: there is no window, a stream has weight but no window, or weights name other streams.
        """
        if batch_size < 1:
            raise StreamError(f"batch_size is {batch_size}; a step has at least one sample")
        self.names, self.sizes, self.batch_size = tuple(names), tuple(sizes), batch_size
        self._data = data
        if not sum(self.sizes):
            raise StreamError(
                f"the streams {list(names)} have no windows; pack more documents, or a smaller seq_length"
            )
        starts = [(0, self._schedule(None))]
        if data.weights is not None:
            starts = [
                (entry.from_step * batch_size, self._schedule(self._by_stream(entry.weights, entry.from_step)))
                for entry in data.weights
            ]
        phases, given = [], (0,) * len(self.sizes)
        for (start, schedule), (end, _) in zip(starts, [*starts[1:], (None, None)], strict=True):
            phases.append(Phase(start, schedule, given))
            if end is not None:
                more = schedule.counts(end - start)
                given = tuple(before + own for before, own in zip(given, more, strict=True))
        self.phases = tuple(phases)
        self._starts = [phase.start for phase in phases]
        self._given = np.array([phase.given for phase in phases], np.int64)
        self._sizes = np.array([max(1, size) for size in self.sizes], np.int64)
        self._is_permuted = (data.first_epoch == "permuted", data.later_epochs == "permuted")  # epoch 0, and others
        self._permutations = Permutations(data.seed, self.names, self.sizes) if any(self._is_permuted) else None

    def _schedule(self, weights: Sequence[float] | None) -> Schedule:
        if self._data.schedule == "spp":
            return SppSchedule(self.sizes)
        return integer_schedule(self.sizes if weights is None else weights)

    def _by_stream(self, weights: dict[str, float], step: int) -> list[float]:
        if missing := sorted(set(self.names) ^ set(weights)):
            raise StreamError(
                f"the weights from step {step} name the streams {sorted(weights)}, the run has {sorted(self.names)}: "
                f"{missing} are only in one of them. Give each stream a weight; 0 leaves it out."
            )
        for name, size in zip(self.names, self.sizes, strict=True):
            if weights[name] > 0 and not size:
                raise StreamError(
                    f"stream {name} has weight {weights[name]} from step {step} on, but no windows; give it weight 0"
                )
        return [weights[name] for name in self.names]

    @property
    def samples_available(self) -> int | None:
        """Samples of this run: b - a of a replay, None when there is no end."""
        return None if self._data.replay is None else self._data.replay[1] - self._data.replay[0]

    def samples_of_step(self, step: int) -> np.ndarray:
        """Return the samples of a step, int64 (batch_size,).

        Raises:
            StreamError: the step is negative, or a replay has not so many samples.
        """
        first = step * self.batch_size
        self._require(first, first + self.batch_size, f"step {step} reads ")
        return np.arange(first, first + self.batch_size)

    def _require(self, first: int, end: int, what: str = "") -> None:
        if first < 0:
            raise StreamError(f"{what}samples from {first} on; the first sample is 0")
        if (available := self.samples_available) is not None and end > available:
            a, b = self._data.replay or (0, 0)
            raise StreamError(
                f"{what}samples up to {end - 1:,} of this run, but replay [{a:,}, {b:,}) has only {available:,}: its "
                f"last sample is {available - 1:,}. Train {available // self.batch_size:,} steps of {self.batch_size}, "
                "or replay more."
            )

    def ordinals(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and ordinals, int64 (n,), of samples of this run, int64 (n,)."""
        items = np.asarray(samples, np.int64)
        if not len(items):
            return items, items
        first, last = int(items.min()), int(items.max())
        self._require(first, last + 1)
        shift = self._data.replay[0] if self._data.replay is not None else 0
        items = items + shift
        begin = bisect_right(self._starts, first + shift) - 1
        if begin == bisect_right(self._starts, last + shift) - 1:
            streams, numbers = self.phases[begin].schedule.locate(items - self.phases[begin].start)
            return streams, numbers + self._given[begin][streams]
        streams, ordinals = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
        phase_of = np.searchsorted(self._starts, items, "right") - 1
        for p in np.unique(phase_of).tolist():
            rows = np.flatnonzero(phase_of == p)
            own, numbers = self.phases[p].schedule.locate(items[rows] - self.phases[p].start)
            streams[rows], ordinals[rows] = own, numbers + self._given[p][own]
        return streams, ordinals

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and windows, int64 (n,), of samples of this run, int64 (n,).

        Raises:
            StreamError: a sample is negative, or beyond the end of a replay.
        """
        streams, ordinals = self.ordinals(samples)
        sizes = self._sizes[streams]
        windows = ordinals % sizes
        if self._permutations is not None and len(rows := self._permuted_rows(ordinals, sizes)):
            epochs = ordinals[rows] // sizes[rows]
            windows[rows] = self._permutations.permuted(streams[rows], epochs, windows[rows])
        return streams, windows

    def _permuted_rows(self, ordinals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.where(ordinals < sizes, *self._is_permuted))

    def ordinal(self, name: str, window: int, epoch: int) -> int:
        """Return the ordinal at which an epoch of a stream reads a window."""
        stream = self.names.index(name)
        size, place = self.sizes[stream], window
        if not (0 <= window < size and epoch >= 0):
            raise StreamError(f"stream {name} has {size:,} windows; asked for window {window:,} in epoch {epoch}")
        if self._permutations is not None and self._is_permuted[min(epoch, 1)]:
            one = (np.array([value]) for value in (stream, epoch, window))
            place = int(self._permutations.unpermuted(*one)[0])
        return epoch * size + place

    def sample(self, name: str, ordinal: int) -> int | None:
        """Return the sample of this run that has this ordinal of a stream; None when the run never reads it."""
        stream = self.names.index(name)
        a, b = self._data.replay or (0, None)
        for phase, later in zip(self.phases, [*self.phases[1:], None], strict=True):
            if phase.given[stream] <= ordinal and (later is None or ordinal < later.given[stream]):
                found = phase.schedule.item(stream, ordinal - phase.given[stream])
                if found is None or (sample := phase.start + found) < a or (b is not None and sample >= b):
                    return None
                return sample - a
        return None

    def counts(self, samples: int) -> tuple[int, ...]:
        """Return the ordinals that come next in each stream after the first ``samples`` samples, of a replay's run."""
        phase = self.phases[bisect_right(self._starts, samples) - 1]
        own = phase.schedule.counts(samples - phase.start)
        return tuple(before + more for before, more in zip(phase.given, own, strict=True))

    def ranges(self, first: int, end: int) -> dict[str, StreamRange]:
        """Return what the samples [first, end) of this run read of each stream, in time independent of their number.

        Raises:
            StreamError: the range ends before it begins, or beyond the end of a replay.
        """
        if end < first:
            raise StreamError(f"the range of samples [{first:,}, {end:,}) ends before it begins")
        self._require(first, end)
        shift = self._data.replay[0] if self._data.replay is not None else 0
        return {
            name: StreamRange(windows=stop - start, first=start, end=stop, epochs=(stop - start) / max(1, size))
            for name, size, start, stop in zip(
                self.names, self.sizes, self.counts(shift + first), self.counts(shift + end), strict=True
            )
        }
