"""Progress of training: loss, rate and time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everytoken.measurements import rate, utilisation
from everytoken.progress import working
from everytoken.training.step import StepRecord


def with_progress(
    records: Iterable[StepRecord],
    *,
    first_step: int,
    steps: int,
    flop_per_token: float | None = None,
    peak: float | None = None,
) -> Iterator[StepRecord]:
    """Yield the records unchanged and show how far training is, also after the first and the last step.

    Args:
        records: of the steps from ``first_step`` on.
        flop_per_token: FLOP of forward and backward pass of a token, to show them as a share of ``peak`` (MFU).
        peak: FLOP/s of matrix products that were measured, of all processes together; None where it is not known.
    """
    speed = _Speed(flop_per_token, peak)
    with working("training", steps, "step", first_step, note=speed.shown) as work:
        for record in records:
            speed.add(record)
            work.done += 1
            if record.step + 1 in (first_step + 1, steps):
                work.show()
            else:
                work.tick()
            yield record


class _Speed:
    """The last record, and tokens per second and MFU since the last line; the first step is slower, it is left out."""

    def __init__(self, flop_per_token: float | None, peak: float | None) -> None:
        self._flop_per_token, self._peak = flop_per_token, peak
        self._record: StepRecord | None = None
        self._tokens, self._seconds = 0, 0.0

    def add(self, record: StepRecord) -> None:
        if self._record is not None:
            self._tokens += record.tokens - self._record.tokens
            self._seconds += record.seconds
        self._record = record

    def shown(self) -> str:
        """Return it as the end of a line, without what is not known, and begin the next stretch."""
        record, speed = self._record, rate(self._tokens, self._seconds)
        if record is None:
            return ""
        terms = "".join(f", {name} {value:.3g}" for name, value in record.terms.items())
        text = f", loss {record.loss:.4f}{terms}, lr {record.lr:.2e}, norm {record.grad_norm:.3f}"
        self._tokens, self._seconds = 0, 0.0
        if speed is None:
            return text
        share = utilisation(speed * self._flop_per_token, self._peak) if self._flop_per_token else None
        return f"{text}, {speed:,.0f} tokens/s" + ("" if share is None else f", MFU {share:.0%}")
