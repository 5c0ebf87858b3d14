"""Rank and exposure of a canary among candidates (Carlini et al. 2019, "The Secret Sharer", sections 4.2 and 4.3).

The rank of a canary is its place among all candidates by the loss of the model, 1 for the lowest. Its exposure is
``log2(candidates) - log2(rank)``: how many bits of a guess the model saves. A candidate that costs as much as the
canary counts as better, so a model that learned nothing gives no exposure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CONTROL_QUANTILE = 0.95


def rank_among(loss: float, controls: Sequence[float] | NDArray[np.float64]) -> int:
    """Return the rank of a loss among itself and the controls.

    >>> rank_among(1.0, [3.0, 2.0]), rank_among(2.0, [3.0, 2.0, 1.0])
    (1, 3)
    """
    return 1 + int((np.asarray(controls) <= loss).sum())


def exposure_bits(loss: float, controls: Sequence[float] | NDArray[np.float64]) -> float:
    """Return ``log2(controls + 1) - log2(rank)``.

    >>> exposure_bits(1.0, [3.0, 2.0, 4.0]), exposure_bits(5.0, [3.0, 2.0, 4.0])
    (2.0, 0.0)
    """
    return math.log2(len(controls) + 1) - math.log2(rank_among(loss, controls))


def control_exposure(controls: NDArray[np.float64]) -> float:
    """Return the 95th percentile of the exposures that the controls have among each other.

    It depends on their number and ties alone: about ``log2(20)``, 4.32 bits.
    """
    own = [exposure_bits(loss, np.delete(controls, i)) for i, loss in enumerate(controls.tolist())]
    return float(np.quantile(own, CONTROL_QUANTILE))
