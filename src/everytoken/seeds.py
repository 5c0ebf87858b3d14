"""The only place that makes random generators: a named seed from the parameters, and a key.
 A draw is a pure function of ``(seed, *key)``: the seed is a parameter that the run records (``subsampling.seed =
42``), the key says which draw it is (a part index, a document id, a step). No generator is shared between two places,
so neither the number of workers nor the order in which they finish can change a draw. ``tests/project/test_project.py``
forbids generators made anywhere else.

>>> numpy_generator(42).permutation(1000)[:6].tolist()
[978, 933, 859, 916, 127, 608]
>>> shard_order = list(range(63_911)); python_random(42).shuffle(shard_order); shard_order[:5]
[1502, 22656, 56218, 17774, 7487]
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def python_random(seed: int | str, *key: str | int) -> random.Random:
    """Return ``random.Random(seed)``, or for a key ``random.Random("seed_key1_key2")``.

    Some published draws name what is drawn before the seed: ``python_random("rephrase_template", 42, doc_id)``.

    CPython's string seeding is SHA-512 based and does not depend on ``PYTHONHASHSEED``. ``shuffle`` and ``random`` of
    CPython have given the same values since 3.2; that is a property of CPython, not of the language.
    """
    return random.Random("_".join(map(str, (seed, *key))) if key else seed)


def numpy_generator(seed: int, *key: int) -> np.random.Generator:
    """Return ``numpy.random.default_rng(seed)``, or for a key ``default_rng((seed, *key))`` (PCG64, SeedSequence)."""
    return np.random.default_rng((seed, *key) if key else seed)


def torch_generator(seed: int, *key: str | int) -> torch.Generator:
    """Return a CPU ``torch.Generator`` seeded with the first 63 bits of SHA-256 of ``"seed_key1_key2"``.

    Torch seeds of nearby integers are not independent for every engine; a hash makes any two keys unrelated.
    """
    import torch  # imported here: the corpus pipelines never need torch

    text = "_".join(map(str, (seed, *key)))
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(value)


def uniform_hash(seed: int, *key: str | int) -> float:
    """Return a number in [0, 1) that depends on ``(seed, *key)`` alone: the first 53 bits of SHA-256 over 2**53.

    Used where each row draws for itself and no generator may run over rows (the held-out split by document address).
    """
    text = "\x1f".join(map(str, (seed, *key)))
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11) / 2.0**53


def integer_key(seed: int, *key: str | int) -> int:
    """Return the first 64 bits of SHA-256 of ``(seed, *key)``: the key of a permutation that is computed, not drawn."""
    text = "\x1f".join(map(str, (seed, *key)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
