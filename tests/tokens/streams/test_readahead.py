from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing

import pytest

from everytoken.tokens.streams.readahead import read_ahead

AHEAD = pytest.mark.parametrize("ahead", [1, 2, 5])


def iter_of(items: str) -> Generator[str, None, None]:
    yield from items


@AHEAD
def test_items_come_in_the_order_of_the_generators(ahead: int) -> None:
    generators = (iter_of(items) for items in ("abc", "", "d", "efgh", ""))
    assert "".join(read_ahead(generators, ahead)) == "abcdefgh"


def test_the_next_generator_is_at_work_before_it_is_wanted() -> None:
    second_began = threading.Event()

    def first() -> Generator[bool, None, None]:
        yield second_began.wait(timeout=30)

    def second() -> Generator[bool, None, None]:
        second_began.set()
        yield True

    assert list(read_ahead([first(), second()], 2)) == [True, True]


@AHEAD
def test_an_error_comes_in_its_place_and_all_generators_are_closed(ahead: int) -> None:
    closed, seen = [], []

    def numbers(name: int) -> Generator[int, None, None]:
        try:
            yield name
            if name == 1:
                raise OSError("the disk went away")
            yield name
        finally:
            closed.append(name)

    with pytest.raises(OSError, match="went away"):
        seen.extend(read_ahead(map(numbers, range(9)), ahead))
    began = min(9, ahead + 1)
    assert sorted(closed) == list(range(began))

    closed.clear()
    with closing(read_ahead(map(numbers, range(9)), ahead)) as items:
        assert next(items) == 0
    assert sorted(closed) == list(range(ahead))
