"""The rule ``integer``: streams in proportion to weights, exact, any number of them, any item computed for itself.

Weights are whole numbers: sizes of streams, or `whole_weights` of the decimal numbers in the parameters. A binary tree
has the streams as leaves; a node has the weight W of all its leaves. Of the first n items of a node, its left child,
of weight a, has

    P(n) = floor((2 n a + W) / (2 W)),

which is n a / W rounded to the nearest, and the right child has the other n - P(n). So item i of a node is item P(i)
of the left child when P(i + 1) > P(i), else item i - P(i) of the right child; from the root, item i of the run comes to
a leaf, which is its stream, with the ordinal it has there. After W items each stream has exactly its weight: with sizes
as weights, an epoch reads every window once.

How far a prefix can be from its target. Rounding is off by at most 1/2, and what a node is off is shared by its
children in proportion, so for a stream of weight w

    |count(n) - n w / W_root| <= (1 + sum of w / W over the nodes between the root and the leaf) / 2        (`bounds`).

The tree: streams by falling weight, those alike as they are given, none of weight 0; each subtree is a stretch of
them. Among these trees it is one whose largest sum is small: below theta, for the first theta of 1, 17/16, 18/16, ...
for which there is one (`_tree` has the recursion). Up to four streams there always is one below 1 (two pairs), so that
every prefix is within one window of target; for more streams of odd weights the bound can be up to about 1.15. Then,
when the weights are at most `MOST_PARTS` whole parts in all, the rule is that of
`everytoken.tokens.order.periodic_schedule` instead, which is within one window for any number of streams
(`integer_schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from typing import TypeAlias

import numpy as np

from everytoken.tokens.errors import StreamError
from everytoken.tokens.order.periodic_schedule import PeriodicSchedule

MOST_WEIGHT = 1 << 56  # of all streams together: with it no intermediate number needs more than 63 bits
MOST_PARTS = 1 << 17  # of the weights, for a table of one period: a fraction of a second

_Tree: TypeAlias = "int | tuple[_Tree, _Tree]"


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the smallest whole numbers in proportion to weights: 0.5, 0.3, 0.2 are 5, 3, 2.

    A weight is the decimal number that Python writes for it (``Fraction(str(weight))``), not the binary fraction next
    to it.

    Raises:
        StreamError: one is negative or not finite, none is above 0, or they have too many digits for `MOST_WEIGHT`.
    """
    if not weights or any(not 0 <= weight < float("inf") for weight in weights) or not sum(weights) > 0:
        raise StreamError(f"the weights of the streams are {list(weights)}; expected none below 0 and a sum above 0")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    divisor = reduce(gcd, whole)
    whole = [weight // divisor for weight in whole]
    if sum(whole) > MOST_WEIGHT:
        raise StreamError(
            f"the weights {list(weights)} are {sum(whole):.1e} whole parts in all, at most {MOST_WEIGHT:.1e} are "
            "counted: give them fewer digits"
        )
    return tuple(whole)


def integer_schedule(weights: Sequence[float]) -> IntegerSchedule | PeriodicSchedule:
    """Return the rule ``integer`` for streams of these weights.

    Raises:
        StreamError: see `whole_weights`.
    """
    tree = IntegerSchedule(weights)
    if max(tree.bounds()) >= 1 and sum(tree.weights) <= MOST_PARTS:
        return PeriodicSchedule(tree.weights)
    return tree


class IntegerSchedule:
    """The tree, see the module; a `everytoken.tokens.order.spp_schedule.Schedule`.

    Attributes:
        weights: whole numbers without common divisor.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Prepare for streams of these weights, not all 0.

        Raises:
            StreamError: see `whole_weights`.
        """
        self.weights = whole_weights(weights)
        self._tree = _tree(self.weights)
        # Node 0 is the root. A leaf is its own left child with all of its items, so that all paths have one length.
        self._left_weight: list[int] = []
        self._weight: list[int] = []
        self._children: list[tuple[int, int]] = []
        self._stream: list[int] = []
        self._paths: dict[
            int, tuple[tuple[int, bool], ...]
        ] = {}  # of each stream: nodes from the root, and whether left
        self._add(self._tree, ())
        self._depth = max(len(path) for path in self._paths.values())
        self._lefts, self._weights = np.array(self._left_weight, np.int64), np.array(self._weight, np.int64)
        self._shares = np.array([a / w for a, w in zip(self._left_weight, self._weight, strict=True)])
        self._next = np.array(self._children, np.int64).ravel()
        self._streams = np.array(self._stream, np.int64)

    def _add(self, tree: _Tree, path: tuple[tuple[int, bool], ...]) -> int:
        node = len(self._weight)
        self._weight.append(1)
        self._left_weight.append(1)
        self._children.append((node, node))
        self._stream.append(-1)
        if isinstance(tree, int):
            self._stream[node], self._paths[tree] = tree, path
            return node
        left = self._add(tree[0], (*path, (node, True)))
        right = self._add(tree[1], (*path, (node, False)))
        self._left_weight[node], self._weight[node] = _total(tree[0], self.weights), _total(tree, self.weights)
        self._children[node] = left, right
        return node

    def locate(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return streams, int64 (n,), and ordinals, int64 (n,), of items, int64 (n,)."""
        item = np.asarray(items, np.int64)
        node = np.zeros(len(item), np.int64)
        fits = not len(item) or int(item.max()) < (1 << 61) // int(self._weights[0])
        for _ in range(self._depth):
            left, weight = self._lefts[node], self._weights[node]
            twice_left, twice = 2 * left, 2 * weight
            if fits:
                before, over = np.divmod(item * twice_left + weight, twice)
            else:
                # Whole turns of W items, then the rest of them, whose quotient is first estimated in float64 (33 off at
                # most), then corrected by what is left, modulo 2**64. Weights up to 2**56 keep that below 2**63.
                turns, rest = np.divmod(item, weight)
                estimate = (rest * self._shares[node]).astype(np.int64)
                missing, over = np.divmod(rest * twice_left + weight - estimate * twice, twice)
                before = turns * left + estimate + missing
            goes_right = over + twice_left < twice
            item = np.where(goes_right, item - before, before)
            node = self._next[2 * node + goes_right]
        return self._streams[node], item

    def counts(self, items: int) -> tuple[int, ...]:
        """Return how many of the first ``items`` items each stream has."""
        counts = [0] * len(self.weights)
        for stream, path in self._paths.items():
            left_over = items
            for node, is_left in path:
                before = (2 * left_over * self._left_weight[node] + self._weight[node]) // (2 * self._weight[node])
                left_over = before if is_left else left_over - before
            counts[stream] = left_over
        return tuple(counts)

    def item(self, stream: int, ordinal: int) -> int | None:
        """Return the item that is number ``ordinal`` of ``stream``; None for a stream of weight 0."""
        if self.weights[stream] == 0:
            return None
        item = ordinal
        for node, is_left in reversed(self._paths[stream]):
            weight, own = self._weight[node], self._left_weight[node]
            # The least n with P(n) = item + 1, and for the right child with n - P(n) = item + 1; its last item.
            odd, own = (weight * (2 * item + 1), own) if is_left else (weight * (2 * item + 1) + 1, weight - own)
            item = -(-odd // (2 * own)) - 1
        return item

    def bounds(self) -> tuple[Fraction, ...]:
        """Return for each stream how many items a prefix can at most be from its share of it; 0 for weight 0."""
        bounds = [Fraction(0)] * len(self.weights)
        for stream, path in self._paths.items():
            above = [Fraction(self.weights[stream], self._weight[node]) for node, _ in path[1:]]
            bounds[stream] = (1 + sum(above, Fraction(0))) / 2 if path else Fraction(0)
        return tuple(bounds)


def _total(tree: _Tree, weights: Sequence[int]) -> int:
    return weights[tree] if isinstance(tree, int) else _total(tree[0], weights) + _total(tree[1], weights)


def _tree(weights: Sequence[int]) -> _Tree:
    """Return the tree of the streams with weight: their numbers, and pairs of subtrees.

    A stretch of streams has the room ``min(theta / w - sum of 1 / W)`` over its streams w and the nodes W above each,
    its own node included, in its best tree: the cut whose smaller room of both sides is largest, the first of those
    alike. The root itself does not count.
    """
    order = sorted((k for k, weight in enumerate(weights) if weight), key=lambda k: -weights[k])
    totals = [0]
    for k in order:
        totals.append(totals[-1] + weights[k])
    sixteenths, found = 16, len(order) == 1
    cuts: dict[tuple[int, int], int] = {}
    while not found:
        room = {(i, i + 1): Fraction(sixteenths, 16 * weights[k]) for i, k in enumerate(order)}
        for length in range(2, len(order) + 1):
            for i in range(len(order) - length + 1):
                j = i + length
                rooms = [min(room[i, cut], room[cut, j]) for cut in range(i + 1, j)]
                best = max(rooms)
                cuts[i, j] = i + 1 + rooms.index(best)
                room[i, j] = best - Fraction(1, totals[j] - totals[i])
                found = best > 0  # in the end that of the root
        sixteenths += 1
    return _cut(order, cuts, 0, len(order))


def _cut(order: Sequence[int], cuts: dict[tuple[int, int], int], i: int, j: int) -> _Tree:
    if j - i == 1:
        return order[i]
    return _cut(order, cuts, i, cuts[i, j]), _cut(order, cuts, cuts[i, j], j)
