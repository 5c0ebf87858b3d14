"""The rule ``integer``, and the order of a run with its weights, epochs and replay."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.shards import recipe_value
from everytoken.tokens import DataParameters, IntegerSchedule, SampleOrder, StreamError, integer_schedule
from everytoken.tokens.order.integer_schedules import MOST_WEIGHT, whole_weights
from everytoken.tokens.order.periodic_schedule import PeriodicSchedule

PUBLISHED = (427_681_689, 102_772_028, 60_000)
WEIGHTS = st.lists(st.integers(0, 10**10), min_size=1, max_size=9).filter(any)


def by_hand(schedule: IntegerSchedule, item: int) -> tuple[int, int]:
    """(stream, ordinal) in Python's integers, straight from the definition."""
    tree: Any = schedule._tree
    weights = schedule.weights

    def total(node: Any) -> int:
        return weights[node] if isinstance(node, int) else total(node[0]) + total(node[1])

    while not isinstance(tree, int):
        a, w = total(tree[0]), total(tree)
        before, after = (2 * item * a + w) // (2 * w), (2 * (item + 1) * a + w) // (2 * w)
        tree, item = (tree[0], before) if after > before else (tree[1], item - before)
    return tree, item


# ---- the rule ----


@given(WEIGHTS, st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_arrays_have_the_value_of_exact_integers(weights: list[int], items: list[int]) -> None:
    schedule = IntegerSchedule(weights)
    streams, ordinals = schedule.locate(np.array(items))
    for item, stream, ordinal in zip(items, streams.tolist(), ordinals.tolist(), strict=True):
        assert (stream, ordinal) == by_hand(schedule, item)
        assert schedule.item(stream, ordinal) == item
        before, after = schedule.counts(item), schedule.counts(item + 1)
        assert before[stream] == ordinal and after[stream] == ordinal + 1 and sum(before) == item


@given(st.integers(1, MOST_WEIGHT - 1), st.lists(st.integers(0, 1 << 61), min_size=1, max_size=20), st.booleans())
def test_nothing_overflows_up_to_the_largest_weights(first: int, items: list[int], three: bool) -> None:
    rest = MOST_WEIGHT - first
    schedule = IntegerSchedule([first, rest // 2, rest - rest // 2] if three else [first, rest])
    streams, ordinals = schedule.locate(np.array(items))
    assert list(zip(streams.tolist(), ordinals.tolist(), strict=True)) == [by_hand(schedule, item) for item in items]


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=16).filter(any),
    st.integers(1, 3),
    st.sampled_from([IntegerSchedule, integer_schedule, lambda weights: PeriodicSchedule(whole_weights(weights))]),
)
def test_every_prefix_is_within_the_bounds_and_every_epoch_is_exact(
    weights: list[int], epochs: int, rule: Callable[[list[int]], IntegerSchedule | PeriodicSchedule]
) -> None:
    schedule = rule(weights)
    total = sum(schedule.weights)
    streams, ordinals = schedule.locate(np.arange(epochs * total))
    prefix = np.arange(1, epochs * total + 1)
    for stream, (weight, bound) in enumerate(zip(schedule.weights, schedule.bounds(), strict=True)):
        count = np.cumsum(streams == stream)
        off = int(np.abs(count * total - prefix * weight).max())  # in windows, times total
        assert Fraction(off, total) <= bound
        assert count[total - 1 :: total].tolist() == [weight * (e + 1) for e in range(epochs)]
        assert ordinals[streams == stream].tolist() == list(range(weight * epochs))
        if sum(map(bool, weights)) <= 4 or rule is not IntegerSchedule:
            assert bound < 1, "within one window of target"


def test_the_published_sizes_and_many_equal_streams_are_within_one_window() -> None:
    assert max(IntegerSchedule(PUBLISHED).bounds()) < 1
    assert max(IntegerSchedule((1 << 55, 1 << 55, (1 << 54) - 1, 1)[1:]).bounds()) < 1
    for streams in range(1, 33):
        assert max(IntegerSchedule([1] * streams).bounds()) < 1
    odd = [13, 11, 9.5, 7.7, 5.1, 4.4, 3.3, 2.7, 2.2, 1.9, 1.3, 1.1, 0.7]
    assert 1 < max(IntegerSchedule(odd).bounds()) < Fraction(9, 8)
    assert max(integer_schedule(odd).bounds()) < 1
    assert isinstance(integer_schedule([round(weight + 1e-9, 9) for weight in odd]), IntegerSchedule), (
        "too long for a table"
    )


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    st.lists(st.integers(0, 10**12), min_size=1, max_size=20),
)
def test_a_table_of_one_period_is_what_its_definition_says_and_goes_back(weights: list[int], items: list[int]) -> None:
    schedule = PeriodicSchedule(whole_weights(weights))
    given, period, expected = [0] * len(weights), sum(schedule.weights), []
    for place in range(period):  # straight from the definition
        last = {
            stream: -(-(given[stream] + 1) * period // weight) - 1
            for stream, weight in enumerate(schedule.weights)
            if weight and given[stream] * period // weight <= place
        }
        expected.append(min(last, key=lambda stream: last[stream]))
        given[expected[-1]] += 1
    assert schedule.locate(np.arange(period))[0].tolist() == expected
    streams, ordinals = schedule.locate(np.array(items))
    for item, stream, ordinal in zip(items, streams.tolist(), ordinals.tolist(), strict=True):
        assert schedule.item(stream, ordinal) == item
        before, after = schedule.counts(item), schedule.counts(item + 1)
        assert before[stream] == ordinal and after[stream] == ordinal + 1 and sum(before) == item
    assert all(schedule.item(stream, 0) is None for stream, weight in enumerate(weights) if not weight)


def test_the_first_samples_of_a_mix() -> None:
    streams, ordinals = IntegerSchedule((0.5, 0.3, 0.2)).locate(np.arange(10))
    # The tree is (0, (1, 2)): every second sample is of stream 0; P(n) of stream 1 in the rest is 0, 1, 1, 2, 2, 3.
    assert streams.tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1]
    assert ordinals.tolist() == [0, 0, 1, 0, 2, 1, 3, 1, 4, 2]


def test_weights_are_the_decimal_numbers_that_were_written() -> None:
    assert whole_weights((0.1, 0.2, 0.7)) == (1, 2, 7)
    assert whole_weights((1e-05, 1, 0)) == (1, 100_000, 0)
    assert whole_weights((6, 4)) == (3, 2)
    assert whole_weights((0.30000000000000004, 0.1)) == (7_500_000_000_000_001, 2_500_000_000_000_000)
    for weights, message in [
        ((), "a sum above 0"),
        ((0, 0.0), "a sum above 0"),
        ((1, -1), "none below 0"),
        ((1, float("nan")), "none below 0"),
        ((1, float("inf")), "none below 0"),
        ((1e-17, 1), "fewer digits"),
    ]:
        with pytest.raises(StreamError, match=message):
            IntegerSchedule(weights)


# ---- the order of a run ----


def order(
    sizes: dict[str, int], batch_size: int = 4, schedule: str = "integer", weights: Any = None, **changed: Any
) -> SampleOrder:
    entries = None
    if weights is not None:
        entries = [{"from_step": step, "weights": by_name} for step, by_name in weights.items()]
    data = data_parameters(schedule=schedule, weights=entries, **changed)
    return SampleOrder(tuple(sizes), tuple(sizes.values()), data, batch_size)


def data_parameters(**changed: Any) -> DataParameters:
    given = {"schedule": "integer", "weights": None, "replay": None, "later_epochs": "as_written", "seed": 7}
    return DataParameters.model_validate({**given, "check": "sizes", "document_mask": False, **changed})


PHASES = {0: {"a": 3, "b": 1, "c": 0}, 5: {"a": 0, "b": 1, "c": 1.5}, 9: {"a": 1, "b": 1, "c": 1}}


def test_weights_that_change_begin_anew_and_ordinals_go_on() -> None:
    run = order({"a": 8, "b": 5, "c": 30}, weights=PHASES)
    streams, ordinals = run.ordinals(np.arange(80))
    assert np.bincount(streams[:20]).tolist() == [15, 5]
    assert np.bincount(streams[20:36], minlength=3).tolist()[0] == 0
    assert abs(np.bincount(streams[20:36])[1] - 16 * 0.4) < 1
    for stream in range(3):
        assert ordinals[streams == stream].tolist() == list(range((streams == stream).sum()))
    parts = [run.ordinals(np.arange(first, first + 7)) for first in range(0, 77, 7)]
    assert np.concatenate([part[0] for part in parts]).tolist() == streams[:77].tolist()
    assert np.concatenate([part[1] for part in parts]).tolist() == ordinals[:77].tolist()


@pytest.mark.parametrize("schedule", ["integer", "spp"])
@pytest.mark.parametrize("first_epoch", ["as_written", "permuted"])
@pytest.mark.parametrize("later_epochs", ["as_written", "permuted"])
def test_every_epoch_reads_every_window_once(schedule: str, first_epoch: str, later_epochs: str) -> None:
    sizes = {"a": 40, "b": 8, "c": 16}
    run = order(sizes, schedule=schedule, first_epoch=first_epoch, later_epochs=later_epochs)
    streams, windows = run.locate(np.arange(3 * 64))
    for stream, size in enumerate(sizes.values()):
        epochs = windows[streams == stream].reshape(3, size)
        assert (np.sort(epochs, axis=1) == np.arange(size)).all()
        written = (epochs == np.arange(size)).all(axis=1).tolist()
        kinds = (first_epoch, later_epochs, later_epochs)
        assert written == [kind == "as_written" for kind in kinds]
        orders = {tuple(epoch) for epoch in epochs.tolist()}
        assert len(orders) == kinds.count("permuted") + ("as_written" in kinds), "each permuted epoch has its own"


@pytest.mark.parametrize("first_epoch", ["as_written", "permuted"])
@pytest.mark.parametrize("later_epochs", ["as_written", "permuted"])
def test_the_order_of_the_first_epoch_and_that_of_others_are_chosen_apart(first_epoch: str, later_epochs: str) -> None:
    sizes = {"a": 40, "b": 8, "c": 16}
    all_permuted = order(sizes, first_epoch="permuted", later_epochs="permuted").locate(np.arange(3 * 64))[1]
    as_written = order(sizes).locate(np.arange(3 * 64))[1]
    found = order(sizes, first_epoch=first_epoch, later_epochs=later_epochs).locate(np.arange(3 * 64))[1]
    orders = {"as_written": as_written, "permuted": all_permuted}
    assert found.tolist() == [*orders[first_epoch][:64], *orders[later_epochs][64:]], "an epoch has 64 windows"


def test_a_run_in_the_order_that_was_the_only_one_is_the_run_that_it_was() -> None:
    assert "first_epoch" not in recipe_value(data_parameters(), "data")
    assert recipe_value(data_parameters(first_epoch="permuted"), "data")["first_epoch"] == "permuted"


def test_an_order_that_is_permuted_depends_on_seed_name_and_epoch_alone() -> None:
    samples = np.arange(200)
    permuted: dict[str, Any] = {"first_epoch": "permuted", "later_epochs": "permuted"}
    first = order({"a": 20, "b": 20}, **permuted)
    same = order({"a": 20, "b": 20}, **permuted, batch_size=9)
    assert all(np.array_equal(x, y) for x, y in zip(first.locate(samples), same.locate(samples), strict=True))
    for other in (order({"a": 20, "b": 20}, **permuted, seed=8), order({"x": 20, "b": 20}, **permuted)):
        windows, others = first.locate(samples)[1], other.locate(samples)[1]
        assert not np.array_equal(windows[:40], others[:40]), "in the first epoch"
        assert not np.array_equal(windows[40:], others[40:]), "in later ones"


@settings(max_examples=40)
@given(
    st.tuples(*2 * [st.sampled_from(["as_written", "permuted"])]),
    st.sampled_from([None, (0, 77), (13, 70)]),
    st.sampled_from([None, PHASES]),
    st.integers(0, 60),
    st.integers(0, 20),
)
def test_ranges_and_the_way_back_agree_with_every_sample(
    epochs: tuple[str, str], replay: tuple[int, int] | None, weights: Any, first: int, count: int
) -> None:
    first_epoch, later_epochs = epochs
    changed = {"weights": weights, "replay": replay, "first_epoch": first_epoch, "later_epochs": later_epochs}
    run = order({"a": 8, "b": 5, "c": 30}, **changed)
    end = min(first + count, run.samples_available or 1 << 60)
    first = min(first, end)
    samples = np.arange(first, end)
    streams, ordinals = run.ordinals(samples)
    windows = run.locate(samples)[1] if len(samples) else samples
    said = run.ranges(first, end)
    for number, name in enumerate(run.names):
        own = ordinals[streams == number]
        assert said[name]["windows"] == len(own) == said[name]["end"] - said[name]["first"]
        assert own.tolist() == list(range(said[name]["first"], said[name]["end"]))
        assert said[name]["epochs"] == len(own) / run.sizes[number]
    for sample, stream, ordinal, window in zip(samples, streams, ordinals, windows, strict=True):
        name, size = run.names[stream], run.sizes[stream]
        assert run.ordinal(name, int(window), int(ordinal) // size) == ordinal
        assert run.sample(name, int(ordinal)) == sample


def test_the_epochs_of_a_stream_of_one_window_are_the_times_that_it_is_read() -> None:
    said = order({"a": 1, "b": 3}).ranges(0, 8)
    assert {name: read["epochs"] for name, read in said.items()} == {"a": 2.0, "b": 2.0}


def test_a_replay_is_the_run_from_a_on_and_ends() -> None:
    sizes = {"a": 20, "b": 5, "c": 9}
    whole, part = order(sizes, weights=PHASES), order(sizes, weights=PHASES, replay=(17, 40))
    assert (whole.samples_available, part.samples_available) == (None, 23)
    for i in range(5):
        assert part.samples_of_step(i).tolist() == list(range(4 * i, 4 * i + 4))
        found, expected = part.locate(part.samples_of_step(i)), whole.locate(np.arange(17 + 4 * i, 21 + 4 * i))
        assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))
    expected_message = r"step 5 reads samples up to 23 of this run, but replay \[17, 40\) has only 23.*Train 5 steps"
    with pytest.raises(StreamError, match=expected_message):
        part.samples_of_step(5)
    for ask in (lambda: part.locate(np.array([23])), lambda: part.ranges(20, 24)):
        with pytest.raises(StreamError, match="samples up to 23 of this run, but replay"):
            ask()
    for ask in (lambda: whole.locate(np.array([3, -1])), lambda: whole.samples_of_step(-1)):
        with pytest.raises(StreamError, match="the first sample is 0"):
            ask()
    with pytest.raises(StreamError, match="ends before it begins"):
        whole.ranges(5, 4)
    assert part.sample("a", 0) is None, "read before the replay begins"
    assert whole.sample("a", 0) == 0
    ends = order(sizes, weights={0: {"a": 1, "b": 1, "c": 0}})
    assert ends.sample("c", 0) is None, "never read"


def test_weights_that_do_not_belong_to_the_streams_are_errors() -> None:
    for sizes, weights, message in [
        ({"a": 5, "b": 5}, {0: {"a": 1}}, r"from step 0 name the streams \['a'\].*\['b'\] are only in one"),
        ({"a": 5}, {0: {"a": 1}, 8: {"a": 1, "x": 1}}, r"from step 8.*\['x'\] are only in one"),
        ({"a": 5, "b": 0}, {0: {"a": 1, "b": 0.5}}, "stream b has weight 0.5 from step 0 on, but no windows"),
        ({"a": 5}, {0: {"a": 0}}, "a sum above 0"),
        ({"a": 0, "b": 0}, None, "have no windows"),
    ]:
        with pytest.raises(StreamError, match=message):
            order(sizes, weights=weights)
    with pytest.raises(StreamError, match="at least one sample"):
        order({"a": 5}, batch_size=0)
    with pytest.raises(StreamError, match="stream a has 5 windows; asked for window 5 in epoch 0"):
        order({"a": 5}).ordinal("a", 5, 0)


def test_a_step_may_have_one_sample() -> None:
    run = order({"a": 3, "b": 2}, batch_size=1, weights={0: {"a": 1, "b": 0}, 2: {"a": 0, "b": 1}})
    assert [run.samples_of_step(step).tolist() for step in range(3)] == [[0], [1], [2]]
    assert run.locate(np.arange(4))[0].tolist() == [0, 0, 1, 1], "weights change at a step"


def test_a_window_is_asked_for_by_a_number_and_an_epoch_that_exist() -> None:
    run = order({"a": 5, "b": 2})
    assert [run.ordinal("a", 0, 0), run.ordinal("a", 4, 0), run.ordinal("a", 0, 2)] == [0, 4, 10]
    for window, epoch in ((-1, 0), (5, 0), (0, -1)):
        with pytest.raises(StreamError, match=f"stream a has 5 windows; asked for window {window} in epoch {epoch}"):
            run.ordinal("a", window, epoch)
