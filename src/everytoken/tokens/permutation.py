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

from math import isqrt

import numpy as np

from everytoken.seeds import integer_key

ROUNDS = 6


def round_keys(seed: int, name: str, epochs: np.ndarray) -> np.ndarray:
    """Return the keys of the permutations of a stream, uint64 (ROUNDS, n) for epochs, int64 (n,).

    Key r of an epoch is ``integer_key(seed, name, epoch, r)``.
    """
    distinct, which = np.unique(epochs, return_inverse=True)
    keys = [[integer_key(seed, name, epoch, r) for epoch in distinct.tolist()] for r in range(ROUNDS)]
    return np.array(keys, np.uint64).reshape(ROUNDS, len(distinct))[:, which]


def permuted(numbers: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Return where numbers go, int64 (m,).

    Args:
        numbers: of 0..n-1, int64 (m,).
        n: how many there are to permute, below 2**62.
        keys: uint64 (ROUNDS, m): number i goes by the permutation of keys[:, i].
    """
    return _walked(numbers, n, keys, range(ROUNDS), False)


def unpermuted(numbers: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Return what `permuted` maps to numbers: its inverse."""
    return _walked(numbers, n, keys, range(ROUNDS)[::-1], True)


def _walked(numbers: np.ndarray, n: int, keys: np.ndarray, rounds: range, back: bool) -> np.ndarray:
    columns = isqrt(n - 1) + 1 if n else 1
    a, b = np.uint64(columns), np.uint64(-(-n // columns))
    walked = np.asarray(numbers, np.int64).astype(np.uint64)
    walks = np.arange(len(walked))
    while len(walks):
        walked[walks] = _network(walked[walks], a, b, keys[:, walks], rounds, back)
        walks = walks[walked[walks] >= np.uint64(n)]
    return walked.astype(np.int64)


def _network(x: np.ndarray, a: np.uint64, b: np.uint64, keys: np.ndarray, rounds: range, back: bool) -> np.ndarray:
    left, right = np.divmod(x, b)
    for r in rounds:
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
