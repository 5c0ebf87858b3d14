"""A keyed permutation of the numbers below n that is computed number by number: no list of n numbers is ever made.

A Feistel network on a grid of a columns and b rows, a = ceil(sqrt(n)), b = ceil(n / a). A number x is (L, R) = (x // b,
x mod b). Round r of `ROUNDS` adds to one of both, modulo its range, a hash of the other:

    r even:  L <- (L + F(R + k_r)) mod a            r odd:  R <- (R + F(L + k_r)) mod b

F is the finaliser of SplitMix64 (Steele, Lea, Flood, 2014) on 64 bits, k_r a key of 64 bits. Each round can be undone,
so this is a permutation of the a b < n + a numbers of the grid. When the outcome is n or more, it is taken as the next
x, until it is below n (cycle walking, Black and Rogaway, 2002): a permutation of the numbers below n, which seldom
walks.

It mixes well, it hides nothing: it is no cipher.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt

import numpy as np

from everytoken.seeds import integer_key

ROUNDS = 6


@lru_cache(1 << 16)
def round_keys(seed: int, name: str, epoch: int) -> tuple[int, ...]:
    """Return the keys of the permutation of a stream in an epoch: key r is ``integer_key(seed, name, epoch, r)``."""
    return tuple(integer_key(seed, name, epoch, r) for r in range(ROUNDS))


class Permutations:
    """The permutations of the windows of all streams, in every epoch."""

    def __init__(self, seed: int, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Prepare for streams of these names and sizes, below 2**62."""
        self._seed, self._names = seed, tuple(names)
        columns = [isqrt(size - 1) + 1 if size else 1 for size in sizes]
        self._sizes, self._columns = np.array(sizes, np.uint64), np.array(columns, np.uint64)
        self._rows = np.array([-(-size // a) for size, a in zip(sizes, columns, strict=True)], np.uint64)

    def permuted(self, streams: np.ndarray, epochs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return where windows go, int64 (n,): numbers, of streams and in epochs, each int64 (n,)."""
        return self._walked(streams, epochs, numbers, False)

    def unpermuted(self, streams: np.ndarray, epochs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return what `permuted` maps to these numbers: its inverse."""
        return self._walked(streams, epochs, numbers, True)

    def _walked(self, streams: np.ndarray, epochs: np.ndarray, numbers: np.ndarray, back: bool) -> np.ndarray:
        keys = self._keys(streams, epochs)
        n, a, b = self._sizes[streams], self._columns[streams], self._rows[streams]
        walked = _network(numbers.astype(np.uint64), a, b, keys, back)
        while len(out := np.flatnonzero(walked >= n)):
            walked[out] = _network(walked[out], a[out], b[out], keys[:, out], back)
        return walked.astype(np.int64)

    def _keys(self, streams: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        distinct, which = np.unique(epochs * len(self._names) + streams, return_inverse=True)
        pairs = (divmod(one, len(self._names)) for one in distinct.tolist())
        keys = [round_keys(self._seed, self._names[stream], epoch) for epoch, stream in pairs]
        return np.array(keys, np.uint64).reshape(len(distinct), ROUNDS).T[:, which]


def _network(x: np.ndarray, a: np.ndarray, b: np.ndarray, keys: np.ndarray, back: bool) -> np.ndarray:
    left, right = np.divmod(x, b)
    for r in range(ROUNDS)[:: -1 if back else 1]:
        other, size = (right, a) if r % 2 == 0 else (left, b)
        step = _hashed(other + keys[r]) % size
        if back:
            step = size - step
        if r % 2 == 0:
            left = (left + step) % size
        else:
            right = (right + step) % size
    joined: np.ndarray = left * b + right
    return joined


def _hashed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser; products and sums are modulo 2**64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: np.ndarray = x ^ (x >> np.uint64(31))
    return hashed
