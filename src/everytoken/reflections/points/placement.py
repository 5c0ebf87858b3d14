"""Where in a document its reflection belongs.

A *sampled* point is a pure function of seed and document: with u uniform in [0, 1) the share of the tokens before it is
``t = 0.6 * sqrt(u)`` if u <= 1/9, else ``0.2 + 0.9 * (u - 1/9)``. Its density rises linearly over the first fifth of
the document and is flat after it; the mean of t is 0.548148, and 1 in 9 points is in the first fifth. Copies of a
document share their point.
"""

from __future__ import annotations

import math

from everytoken.seeds import python_random

_NULL_ID = "None"


def sampled_share(seed: int, key: str) -> float:
    """Return the share t of a document's tokens that come before its sampled point, in [0, 1).

    Args:
        key: document id; the document address where it has none.
    """
    u = python_random(seed, key).random()
    return 0.6 * math.sqrt(u) if u <= 1 / 9 else 0.2 + 0.9 * (u - 1 / 9)


def sampled_index(seed: int, key: str, tokens: int) -> int:
    """Return the token that the sampled point is before: in [1, tokens - 1], and 0 of a single token."""
    return max(1, min(int(sampled_share(seed, key) * tokens), tokens - 1)) if tokens > 1 else 0


def published_index_of_null_id(seed: int, tokens: int) -> int:
    """Return the point that the published reflections have in documents without an id, to check such rows with.

    The original wrote the missing id as the word None, so all such documents share one draw.
    """
    return sampled_index(seed, _NULL_ID, tokens)
