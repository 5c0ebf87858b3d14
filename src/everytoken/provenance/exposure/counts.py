"""When a run read a document: every sample, step and position, and which of its checkpoints came after.

A document is in a window or a few (the index of the stream); a window is read once in every epoch of its stream. Which
sample that is follows from the order of samples alone (`everytoken.tokens.order.sample_order`): its ordinal in the
epoch, and the sample that has this ordinal, if the run has one. Nothing is searched, so an answer costs O(log n) for
each window and epoch, however long the run. Weights that change, replays and permuted epochs are as exact as the order
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import DocumentPlace, Span, StreamIndex
from everytoken.provenance.lookup import IndexedStream, OpenRun, Run
from everytoken.tokens.order import WindowStream


@dataclass(frozen=True)
class Held:
    """Tokens [first, end) of a document at the positions from ``at`` on of a window, whether it was read or not.

    ``counted``: how many of them count in the loss; None where the stream is gone, and its index does not tell.
    """

    stream: str
    window: int
    first: int
    end: int
    at: int
    counted: int | None

    @property
    def until(self) -> int:
        """Behind the position of its last token in the window."""
        return self.at + self.end - self.first

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {
            "stream": self.stream,
            "window": self.window,
            "positions": [self.at, self.until],
            "tokens": [self.first, self.end],
            "counted_in_loss": self.counted,
        }


@dataclass(frozen=True)
class Exposure:
    """One time that a run read tokens of a document.

    Attributes:
        sample: number of the sample in the run, from 0.
        step: the optimiser step that read it, from 0.
        sequence: its place in the batch of the step.
        epoch: how often the run had read the stream's windows before, from 0.
        held: the window, and which tokens.
    """

    run: str
    sample: int
    step: int
    sequence: int
    epoch: int
    held: Held
    skipped: bool

    @property
    def tokens(self) -> int:
        """How many tokens of the document it read."""
        return self.held.end - self.held.first

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        when = {name: getattr(self, name) for name in ("run", "step", "sequence", "sample", "epoch")}
        return {**when, **self.held.to_json(), "skipped_step": self.skipped}


@dataclass(frozen=True)
class CheckpointPast:
    """A checkpoint, and how often the document was read before it."""

    run: str
    step: int
    folder: str
    times: int


@dataclass(frozen=True)
class Reads:
    """What runs read of tokens of a document.

    Attributes:
        held: the windows that hold them, of the streams of all runs.
        exposures: in the order in which they happened.
        checkpoints: of the last run, ascending; of what came before, the run's own past included.
    """

    held: tuple[Held, ...]
    exposures: tuple[Exposure, ...]
    checkpoints: tuple[CheckpointPast, ...]

    @property
    def times(self) -> int:
        """How often windows with these tokens were read; a window with two spans of them is read once."""
        return len({(one.run, one.sample) for one in self.exposures})

    @property
    def counted(self) -> int | None:
        """How many of the tokens that were read counted in the loss, each time; None where that is not known."""
        return _sum([one.held.counted for one in self.exposures])

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        seen = self.exposures
        return {
            "windows": [one.to_json() for one in self.held],
            "times": self.times,
            "tokens_seen": sum(one.tokens for one in seen),
            "tokens_counted_in_loss": self.counted,
            "first_step": seen[0].step if seen else None,
            "last_step": seen[-1].step if seen else None,
            "exposures": [one.to_json() for one in seen],
            "checkpoints": [vars(one) for one in self.checkpoints],
        }


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [one for one in counts if one is not None]
    return sum(known) if len(known) == len(counts) else None


def windows_holding(
    stream: WindowStream, name: str, index: StreamIndex, place: DocumentPlace, tokens: tuple[int, int] | None = None
) -> Iterator[Held]:
    """Yield the windows of a stream that hold tokens of a document, in the order of its tokens; maybe none.

    Args:
        tokens: first and end of those of its tokens that are meant; None: all.
    """
    if place.split not in index.splits:
        return
    for window, whole in index.windows_of(index.numbers.first_of(place.split) + place.number):
        span = whole if tokens is None else _within(whole, *tokens)
        if span.first < span.end:
            yield Held(name, window, span.first, span.end, span.at, _counted(stream, window, span))


def _within(span: Span, first: int, end: int) -> Span:
    begin = max(span.first, first)
    return Span(span.document, begin, min(span.end, end), span.at + begin - span.first)


def exposures_of(opened: OpenRun, held: Held, steps: int | None = None) -> Iterator[Exposure]:
    """Yield every time that a run read a window, by epoch.

    Args:
        steps: steps that were done; None: all that the run did. More are those that it would have done.

    Raises:
        StreamError: a replay has fewer samples.
    """
    run, order = opened.run, opened.order
    samples = (run.steps if steps is None else steps) * run.batch_size
    if not samples:
        return
    size = order.sizes[order.names.index(held.stream)]
    read = order.ranges(0, samples)[held.stream]
    if read["end"] <= read["first"]:
        return
    for epoch in range(read["first"] // size, (read["end"] - 1) // size + 1):
        ordinal = order.ordinal(held.stream, held.window, epoch)
        if not read["first"] <= ordinal < read["end"]:
            continue
        sample = order.sample(held.stream, ordinal)
        if sample is None or sample >= samples:
            raise ProvenanceError(
                f"the order of samples contradicts itself: ordinal {ordinal:,} of {held.stream} is among the first "
                f"{samples:,} samples by `ranges`, and sample {sample} by `sample`. Please report this"
            )
        step, sequence = divmod(sample, run.batch_size)
        yield Exposure(run.name, sample, step, sequence, epoch, held, step in run.skipped_steps)


def reads_of(
    runs: Sequence[OpenRun],
    indexes: Sequence[Mapping[str, StreamIndex]],
    place: DocumentPlace,
    at_step: int | None = None,
    tokens: Mapping[str, tuple[int, int]] | None = None,
) -> Reads:
    """Return what runs read of a document.

    Args:
        runs: one after the other, each begun from the end of the one before; the last is the one that is asked about.
        indexes: of each run, the indexes of its streams by name.
        at_step: steps of the last run that count; None: all.
        tokens: first and end of those of its tokens that are meant, by the root digest of the stream; of a stream that
            is not named, none. None: all of all streams.
    """
    held: dict[tuple[str, int, int], Held] = {}
    exposures: list[Exposure] = []
    of_last: dict[int, int] = {}  # steps by sample
    earlier = 0
    for number, (opened, of_run) in enumerate(zip(runs, indexes, strict=True)):
        last = number == len(runs) - 1
        found: list[Exposure] = []
        for stream in opened.windows.streams:
            index = of_run.get(stream.name)
            if index is None or (tokens is not None and index.stream not in tokens):
                continue
            meant = None if tokens is None else tokens[index.stream]
            for one in windows_holding(stream, stream.name, index, place, meant):
                held.setdefault((index.stream, one.window, one.at), one)
                found += exposures_of(opened, one, at_step if last else None)
        found.sort(key=lambda exposure: (exposure.sample, exposure.held.at))
        earlier += 0 if last else len({one.sample for one in found})
        of_last = {one.sample: one.step for one in found}
        exposures += found
    run = runs[-1].run
    return Reads(
        tuple(held.values()),
        tuple(exposures),
        tuple(
            CheckpointPast(run.name, step, folder, earlier + sum(read < step for read in of_last.values()))
            for step, folder in checkpoints_until(run, at_step)
        ),
    )


def checkpoints_until(run: Run, at_step: int | None) -> list[tuple[int, str]]:
    """Return step and folder of the checkpoints that a run had when it had done so many steps."""
    return [one for one in run.checkpoints if at_step is None or one[0] <= at_step]


def _counted(stream: WindowStream, window: int, span: Span) -> int | None:
    """Return how many tokens of a span count in the loss: token t is the target of prediction t - 1."""
    if isinstance(stream, IndexedStream) and not stream.counts_known:
        return None
    mask = np.ones((1, stream.seq_length), bool)
    stream.clear(mask, np.array([0]), np.array([window]))
    targets = np.concatenate([[False], mask[0]])
    return int(targets[span.at : span.until].sum())
