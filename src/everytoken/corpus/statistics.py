"""Statistics of parts are nested dictionaries of counts; those of a dataset are their sums, entry by entry."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any


def as_written(number: float) -> Fraction:
    """Return the decimal that a parameter is written as, exact: 0.29 of 100 is 29.

    >>> as_written(0.29) * 100
    Fraction(29, 1)
    """
    return Fraction(repr(number))


def add_statistics(statistics: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of nested dictionaries of numbers, added in the given order, with keys sorted on every level.

    >>> add_statistics([{"rows": 2, "by_source": {"b": 1}}, {"rows": 3, "by_source": {"a": 4, "b": 1}}])
    {'by_source': {'a': 4, 'b': 2}, 'rows': 5}
    """
    total: dict[str, Any] = {}
    for entry in statistics:
        _add(total, entry)
    return _sorted(total)


def _add(total: dict[str, Any], entry: dict[str, Any]) -> None:
    for key, value in entry.items():
        if isinstance(value, dict):
            _add(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _sorted(value[key]) if isinstance(value[key], dict) else value[key] for key in sorted(value)}
