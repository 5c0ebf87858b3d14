"""Progress of training: a bar with loss, rate and time left on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from everytoken.training.loop import StepRecord

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10.0


def with_progress(records: Iterable[StepRecord], *, first_step: int, steps: int) -> Iterator[StepRecord]:
    """Yield the records unchanged and show how far training is."""
    if sys.stderr.isatty():
        with tqdm(total=steps, initial=first_step, desc="training", unit="step", dynamic_ncols=True) as bar:
            for record in records:
                bar.set_postfix_str(f"loss {record.loss:.3f}, lr {record.lr:.2e}", refresh=False)
                bar.update()
                yield record
        return
    last, tokens, seconds = time.monotonic(), 0, 0.0
    previous_tokens: int | None = None
    for record in records:
        if previous_tokens is not None:
            tokens, seconds = tokens + record.tokens - previous_tokens, seconds + record.seconds
        previous_tokens = record.tokens
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES or record.step + 1 in (first_step + 1, steps):
            logger.info(
                "training: step %d of %d, %d tokens, loss %.4f, lr %.2e, gradient norm %.3f, %.0f tokens/s",
                record.step + 1,
                steps,
                record.tokens,
                record.loss,
                record.lr,
                record.grad_norm,
                tokens / seconds if seconds else 0.0,
            )
            last, tokens, seconds = now, 0, 0.0
        yield record
