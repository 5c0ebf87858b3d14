"""The records of what differs, between two builds or two runs, as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everytoken.address import Address
from everytoken.cli.rendering import JsonRecord

_COLUMNS = 120
_VALUE = 60  # characters of a value that differs

_DIFFERENCES = {
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "taken_down_in_a": "taken down in A",
    "taken_down_in_b": "taken down in B",
    "split_changed": "in another split",
    "id_changed": "with another id",
    "text_changed": "with another text",
    "score_changed": "with another score",
    "tokens_changed": "with other tokens",
    "order_changed": "in another order",
}


def difference_lines(found: JsonRecord, *, show_all: bool) -> Iterator[str]:
    """Yield what differs between two builds; ``show_all`` names what one of them has, which else is counted."""
    if found["has_same_streams"] and found["has_same_documents"]:
        yield "the streams are the same; every document is the same"
        yield ""
    yield f"A  {found['a']} ({found['kinds'][0]})"
    yield f"B  {found['b']} ({found['kinds'][1]})"
    yield from _parameter_lines(found, show_all)
    yield ""
    yield from _stage_lines(found)
    for where, names in (("A", found["only_in_a"]), ("B", found["only_in_b"])):
        if names and show_all:
            yield from _wrapped(f"only in {where}: ", names)
        elif names:
            yield f"only in {where}: {len(names):,} stages (--all names them)"
    if found["documents"] is not None:
        yield ""
        yield from _differing_lines(**found["documents"])
    if found["windows"]:
        yield ""
        yield "the documents and their tokens are the same"
    for name, windows in found["windows"].items():
        first = "" if windows["first"] is None else f", the first is window {windows['first']:,}"
        yield (
            f"  {name}: {windows['in_a']:,} windows in A, {windows['in_b']:,} in B; {windows['different']:,} differ"
            f"{first}"
        )


def _parameter_lines(found: JsonRecord, show_all: bool) -> Iterator[str]:
    if found["parameters"] or found["functions"]:
        yield ""
        yield "parameters that differ (A, B)"
        yield from _table({name: [*map(_value, values)] for name, values in found["parameters"].items()}, "  ")
        versions = {name: [f"version {one}" for one in both] for name, both in found["functions"].items()}
        yield from _table(versions, "  ")
    if of_one := found["parameters_of_one"]:
        yield ""
        more = "" if show_all else " (--all shows them)"
        yield f"parameters that only one of the two records: {len(of_one):,}{more}"
        yield from _table({name: [*map(_value, values)] for name, values in of_one.items()} if show_all else {}, "  ")


def _value(value: Any) -> str:
    text = value if value == "not there" else repr(value)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."


def _stage_lines(found: JsonRecord) -> Iterator[str]:
    different, equal = found["different"], found["equal"]
    if not different:
        yield f"equal: all {len(equal)} stages that both have hold the same"
        return
    if found["is_same"]:
        yield f"of another content otherwise: {len(different):,} of the stages that both have"
    else:
        (name, digests), *rest = different.items()
        yield f"first stage that differs: {name}  {digests[0][:16]}  {digests[1][:16]}"
        if rest:
            yield from _wrapped("and after it: ", [name for name, _ in rest])
    otherwise = "not compared further than by its digest" if found["is_same"] else ""
    by_words: dict[str, list[str]] = {}
    for name in different:
        by_words.setdefault(found["explained"].get(name, otherwise), []).append(name)
    for words, names in by_words.items():
        said = f"{', '.join(names)}: {words}" if words else ""
        yield from textwrap.wrap(said, _COLUMNS, initial_indent="  ", subsequent_indent="    ")
    yield from _wrapped("equal: ", equal or ["none"])


def _differing_lines(
    datasets: Sequence[str],
    rows_a: int,
    rows_b: int,
    counts: Mapping[str, int],
    first: Mapping[str, Sequence[JsonRecord]],
) -> Iterator[str]:
    yield f"documents of {', '.join(datasets)}: {rows_a:,} in A, {rows_b:,} in B"
    for kind, count in counts.items():
        shown = first[kind] if count else []
        some = f", the first {len(shown):,}:" if len(shown) < count else ":" if shown else ""
        yield from [f"  {count:,} {_DIFFERENCES[kind]}{some}"] if count else []
        yield from (f"    {_differing_line(one, kind)}" for one in shown)
    if not any(counts.values()):
        yield "  none differs"


def _differing_line(one: JsonRecord, kind: str) -> str:
    name = "" if one["id"] is None else f" id {one['id'][:60]!r}"
    held = [(where, place) for where, place in (("A", one["in_a"]), ("B", one["in_b"])) if place is not None]
    places = [f"{where} {dataset} {number:,}" for where, (dataset, number) in held]
    reason = f" ({one['reason']})" if one["reason"] and kind.startswith("taken_down") else ""
    return f"{Address.of(one)}{name}: {', '.join(places)}{reason}"


def comparison_lines(compared: JsonRecord, *, show_all: bool = False) -> Iterator[str]:
    """Yield what differs between two MLflow runs, by kind; what only one of them has as a count, or all of it."""
    for letter in ("A", "B"):
        yield "  ".join((letter, *compared[letter]))
    for kind, (left, right) in compared["kinds"].items():
        names = sorted(left.keys() | right.keys() if show_all else left.keys() & right.keys())
        both = {name: (left.get(name, "-"), right.get(name, "-")) for name in names}
        rows = {name: [*map(_cell, values)] for name, values in both.items() if values[0] != values[1]}
        equal = len(names) - len(rows)
        yield ""
        yield f"{kind}: {len(rows)} differ, {equal} are equal" if rows else f"{kind}: all {equal} are equal"
        yield from _table(rows, "  |  ")
        if not show_all:
            alone = [
                (f"only {letter} has {len(one - other)}", one - other) for letter, one, other in _sides(left, right)
            ]
            yield from (f"  {told} (--all)" for told, found in alone if found)


def _sides(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[tuple[str, set[str], set[str]]]:
    yield "A", {*left}, {*right}
    yield "B", {*right}, {*left}


def _cell(text: str) -> str:
    text = text.replace("\n", "\\n")  # a value is one line
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"


def _table(rows: Mapping[str, Sequence[str]], between: str) -> Iterator[str]:
    width = max(map(len, rows), default=0)
    yield from (f"  {name:<{width}}  {between.join(values)}" for name, values in rows.items())


def _wrapped(what: str, names: Iterable[str]) -> list[str]:
    return textwrap.wrap(what + ", ".join(names), _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
