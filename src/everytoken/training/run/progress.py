"""Progress of training: a bar with loss, rate and time left on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from everytoken.measurements import rate, utilisation
from everytoken.training.step import StepRecord

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10.0


def with_progress(
    records: Iterable[StepRecord],
    *,
    first_step: int,
    steps: int,
    flop_per_token: float | None = None,
    peak: float | None = None,
) -> Iterator[StepRecord]:
    """Yield the records unchanged and show how far training is.

    Args:
        records: of the steps from ``first_step`` on.
        flop_per_token: FLOP of forward and backward pass of a token, to show them as a share of ``peak`` (MFU).
        peak: FLOP/s of matrix products that were measured, of all processes together; None where it is not known.
    """
    speed = _Speed(flop_per_token, peak)
    if sys.stderr.isatty():
        with tqdm(total=steps, initial=first_step, desc="training", unit="step", dynamic_ncols=True) as bar:
            for record in records:
                speed.add(record)
                bar.set_postfix_str(f"loss {record.loss:.3f}{_terms(record)}, lr {record.lr:.2e}{speed}", refresh=False)
                bar.update()
                yield record
        return
    last = time.monotonic()
    for record in records:
        speed.add(record)
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES or record.step + 1 in (first_step + 1, steps):
            logger.info(
                "training: step %d of %d, %d tokens, loss %.4f%s, lr %.2e, gradient norm %.3f%s",
                record.step + 1,
                steps,
                record.tokens,
                record.loss,
                _terms(record),
                record.lr,
                record.grad_norm,
                str(speed),  # now: it begins anew below, and a handler may write later
            )
            last = now
            speed.clear()
        yield record


def _terms(record: StepRecord) -> str:
    return "".join(f", {name} {value:.3g}" for name, value in record.terms.items())


class _Speed:
    """Tokens per second and MFU over the last stretch of steps; the first step is slower and does not count."""

    def __init__(self, flop_per_token: float | None, peak: float | None) -> None:
        self._flop_per_token, self._peak = flop_per_token, peak
        self._read: int | None = None
        self.clear()

    def clear(self) -> None:
        self._tokens, self._seconds = 0, 0.0

    def add(self, record: StepRecord) -> None:
        if self._read is not None:
            self._tokens += record.tokens - self._read
            self._seconds += record.seconds
        self._read = record.tokens

    def __str__(self) -> str:
        """Return it as the end of a line, without what is not known."""
        speed = rate(self._tokens, self._seconds)
        if speed is None:
            return ""
        share = utilisation(speed * self._flop_per_token, self._peak) if self._flop_per_token else None
        return f", {speed:.0f} tokens/s" + ("" if share is None else f", MFU {share:.1%}")
