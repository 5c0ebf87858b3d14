"""Every generator is the one that its docstring names: whoever has the seed can draw the same elsewhere."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from everytoken.seeds import integer_key, numpy_generator, python_random, torch_generator, uniform_hash


def hexadecimal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_published_permutations() -> None:
    assert numpy_generator(42).permutation(1000)[:6].tolist() == [978, 933, 859, 916, 127, 608]
    published = [286292, 31333, 308224, 102765, 141176, 265421]
    assert numpy_generator(42).permutation(326_296)[:6].tolist() == published
    order = list(range(63_911))
    python_random(42).shuffle(order)
    assert order[:5] == [1502, 22656, 56218, 17774, 7487]


def test_a_key_makes_a_generator_of_its_own() -> None:
    assert python_random(42, "part", 7).random() == random.Random("42_part_7").random()
    assert numpy_generator(42, 7, 1).integers(0, 1 << 40, 9).tolist() == (
        np.random.default_rng((42, 7, 1)).integers(0, 1 << 40, 9).tolist()
    )


def test_torch_is_seeded_with_63_bits_of_the_hash_of_the_key() -> None:
    for key in (("initialisation", "blocks.0.down"), (3,), ()):
        text = "_".join(["42", *map(str, key)])
        assert torch_generator(42, *key).initial_seed() == int(hexadecimal(text)[:16], 16) // 2
    assert torch_generator(42, "a").device == torch.device("cpu")


def test_hashes_of_a_key_are_bits_of_sha256() -> None:
    digest = hexadecimal("-7\x1fweb/ü\x1f0\x1f12")
    assert integer_key(-7, "web/ü", 0, 12) == int(digest[:16], 16)
    assert uniform_hash(-7, "web/ü", 0, 12) == (int(digest[:16], 16) // 2**11) / 2**53
