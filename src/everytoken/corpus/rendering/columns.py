"""Columns of a record by name, or by path into objects: ``doc.text`` is the ``text`` of the object ``doc``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Missing(KeyError):
    """The record has no such column."""


def value_at(record: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column; one whose whole name has dots comes before a path.

    >>> value_at({"doc": {"text": "a"}}, "doc.text"), value_at({"doc.text": "b", "doc": {}}, "doc.text")
    ('a', 'b')

    Raises:
        Missing: there is none, or an object of the path is null or of another type.
    """
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise Missing(column)
        value = value[name]
    return value


def value_or_none(record: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, None where there is none."""
    try:
        return value_at(record, column)
    except Missing:
        return None


def top_column(column: str, names: Collection[str]) -> str | None:
    """Return which of a table's columns holds ``column``, itself or the first part of its path; None: none of them."""
    first = column.partition(".")[0]
    return column if column in names else first if first in names else None
