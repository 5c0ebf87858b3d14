from __future__ import annotations

import hashlib
from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everytoken.seeds import integer_key
from everytoken.tokens.order.permutation import ROUNDS, Permutations

VALUES = [2, 0, 7, 6, 4, 5, 8, 3, 9, 1]


def by_hand(x: int, n: int, round_key: list[int]) -> int:
    """The definition in Python's integers."""
    a = next(a for a in range(1, n + 1) if a * a >= n)
    b = -(-n // a)
    while True:
        left, right = x // b, x % b
        for r, key in enumerate(round_key):
            z = ((left if r % 2 else right) + key) % 2**64
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            z ^= z >> 31
            left, right = (left, (right + z) % b) if r % 2 else ((left + z) % a, right)
        x = left * b + right
        if x < n:
            return x


@given(st.integers(1, 400), st.integers(0, 2**63), st.integers(1, 9), st.data())
def test_it_is_what_its_definition_says(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, n - 1))
    own = [integer_key(seed, "compact", epoch, r) for r in range(ROUNDS)]
    assert there_and_back(np.array([number]), n, seed, epoch)[0].tolist() == [by_hand(number, n, own)]


def there_and_back(numbers: np.ndarray, n: int, seed: int, epochs: object) -> tuple[np.ndarray, np.ndarray]:
    permutations_ = Permutations(seed, ["other", "compact"], [12345, n])
    streams, epochs = np.ones(len(numbers), np.int64), np.broadcast_to(np.asarray(epochs), len(numbers))
    there = permutations_.permuted(streams, epochs, numbers)
    return there, permutations_.unpermuted(streams, epochs, there)


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(1, 9))
def test_every_number_comes_once_and_goes_back(n: int, seed: int, epoch: int) -> None:
    numbers = np.arange(n)
    there, back = there_and_back(numbers, n, seed, epoch)
    assert np.array_equal(np.sort(there), numbers)
    assert np.array_equal(back, numbers)


@given(st.integers(1, 1 << 61), st.data())
def test_huge_ranges_stay_inside_and_go_back(n: int, data: st.DataObject) -> None:
    numbers = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    epochs = np.arange(len(numbers)) % 3 + 1
    there, back = there_and_back(numbers, n, 5, epochs)
    assert ((there >= 0) & (there < n)).all()
    assert np.array_equal(back, numbers)
    alone = [int(there_and_back(numbers[i : i + 1], n, 5, epochs[i])[0][0]) for i in range(len(numbers))]
    assert there.tolist() == alone


def test_the_values_stay_what_they_are() -> None:
    text = "\x1f".join(["42", "compact", "1", "0"]).encode()
    assert integer_key(42, "compact", 1, 0) == int(hashlib.sha256(text).hexdigest()[:16], 16) == 12033964868531902211
    assert there_and_back(np.arange(10), 10, 42, 1)[0].tolist() == VALUES


def test_all_orders_of_a_few_windows_come_about_as_often_as_each_other() -> None:
    epochs = 4800
    places = np.tile(np.arange(4), epochs)
    there = there_and_back(places, 4, 1, np.repeat(np.arange(1, epochs + 1), 4))[0].reshape(epochs, 4)
    found = {order: 0 for order in permutations(range(4))}
    for row in there.tolist():
        found[tuple(row)] += 1
    expected = epochs / len(found)
    # Chi-square with 23 degrees of freedom is below 50 but for one seed in a thousand.
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 50


def test_neighbours_do_not_stay_together() -> None:
    n = 100_003
    there, _ = there_and_back(np.arange(n), n, 3, 1)
    steps = np.abs(np.diff(there))
    assert abs(steps.mean() / (n / 3) - 1) < 0.02, "the mean distance of two numbers drawn at random is n / 3"
    assert abs(np.corrcoef(np.arange(n), there)[0, 1]) < 0.02
    assert (steps == 1).sum() < 15
