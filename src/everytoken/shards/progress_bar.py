"""Progress of a long loop: a bar with rate and time left on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_SECONDS_BETWEEN_LINES = 15.0

logger = logging.getLogger(__name__)


def progress(items: Iterable[_Item], total: int, label: str, unit: str = "part") -> Iterator[_Item]:
    """Yield ``items`` and show how many of ``total`` are done."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, total=total, desc=label, unit=unit, dynamic_ncols=True, leave=False)
        return
    start = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last, rate = now, done / (now - start)
            left = (total - done) / rate
            logger.info("%s: %d of %d %ss, %.1f/s, %.0f s left", label, done, total, unit, rate, left)
