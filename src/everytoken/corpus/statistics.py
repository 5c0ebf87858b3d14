"""Statistics of parts are nested dictionaries of counts; those of a dataset are their sums, entry by entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NotRequired, TypedDict, TypeVar, cast

Summed = TypeVar("Summed", bound=Mapping[str, object])


class TextAmounts(TypedDict):
    """How many documents, and how long they are together."""

    rows: int
    characters: int
    utf8_bytes: int


class RowCounts(TypedDict):
    """What became of rows: ``rows_in = kept + set_aside`` by reason."""

    rows_in: int
    kept: int
    set_aside: dict[str, int]


class FileRows(TypedDict):
    """How many rows one of the files of a part has, before any filter."""

    path: str
    shard_index: int
    rows: int


class DocumentCounts(RowCounts):
    """Statistics of a part of documents.

    ``by_source`` is of what is kept, by source and stratum; ``length_histogram`` has documents by
    `everytoken.corpus.ingestion.ingest.length_bin`. ``unread_keys`` has the keys of kept chats that are not in their
    documents, by why (``passed_over``, ``ignored``, ``unknown``) and name; sources of other documents have none.
    ``personal_data`` has the documents that have some, dropped ones too, and how much of each kind, where a rule looks
    for it. ``files`` has the rows of each file, in file order, of a part that was read from several.
    """

    by_source: dict[str, dict[str, TextAmounts]]
    length_histogram: dict[str, int]
    unread_keys: NotRequired[dict[str, dict[str, int]]]
    personal_data: NotRequired[dict[str, int]]
    files: NotRequired[list[FileRows]]


class ClassesBySource(TypedDict):
    """What the statistics of every part of scored documents have, whatever scored them."""

    by_source: dict[str, ScoreCounts]


class ScoreCounts(TypedDict):
    """Documents by safety score: of all rows, and of each id once a part."""

    rows_by_class: dict[str, int]
    distinct_by_class: dict[str, int]


def as_written(number: float) -> Fraction:
    """Return the decimal that a parameter is written as, exact: 0.29 of 100 is 29.

    >>> as_written(0.29) * 100
    Fraction(29, 1)
    """
    return Fraction(repr(number))


def add_statistics(statistics: Iterable[Summed]) -> Summed:
    """Return the sum of nested dictionaries of numbers, added in the given order, with keys sorted on every level.

    Of none it is {}.

    >>> add_statistics([{"rows": 2, "by_source": {"b": 1}}, {"rows": 3, "by_source": {"a": 4, "b": 1}}])
    {'by_source': {'a': 4, 'b': 2}, 'rows': 5}
    """
    total: dict[str, Any] = {}
    for entry in statistics:
        _add(total, entry)
    return cast(Summed, _sorted(total))


def _add(total: dict[str, Any], entry: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        if isinstance(value, dict):
            _add(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _sorted(value[key]) if isinstance(value[key], dict) else value[key] for key in sorted(value)}
