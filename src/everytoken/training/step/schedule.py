"""The learning rate as a pure function of the optimiser step: linear warm-up, then half a cosine to the
smallest rate.
"""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, min_ratio: float, warmup_steps: int, steps: int) -> float:
    """Return the rate of optimiser step ``step`` (0-based) of ``steps``.

    Warm-up, step < w: ``peak * ((step + 1) / w)``. After it, with x = (step + 1 - w) / (steps - w) in (0, 1]:
    ``low + (peak - low) (1 + cos(pi x)) / 2``, low = min_ratio * peak (Loshchilov and Hutter 2017). The last
    step has exactly ``low``. Raises ``ValueError`` for a step outside [0, steps).

    >>> [learning_rate(s, peak=1.0, min_ratio=0.5, warmup_steps=2, steps=4) for s in range(4)]
    [0.5, 1.0, 0.75, 0.5]
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is outside the schedule of {steps} steps (0 to {steps - 1})")
    if step < warmup_steps:
        return peak * ((step + 1) / warmup_steps)
    low = min_ratio * peak
    x = (step + 1 - warmup_steps) / (steps - warmup_steps)
    return low + (peak - low) * (1 + math.cos(math.pi * x)) / 2
