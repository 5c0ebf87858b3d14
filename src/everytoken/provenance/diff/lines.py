"""What differs between two builds, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everytoken.provenance.diff.builds import ABSENT, BuildDifferences
from everytoken.provenance.diff.document_differences import DocumentDifference, DocumentDifferences

_COLUMNS = 120
_WORDS = {
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


def difference_lines(found: BuildDifferences, *, show_all: bool) -> Iterator[str]:
    """Yield what `diff_builds` found, in words.

    Args:
        show_all: whether parameters and stages that one of the builds has are named, not counted.
    """
    if found.has_same_streams and found.has_same_documents:
        yield "the streams are the same; every document is the same"
        yield ""
    yield f"A  {found.a} ({found.kinds[0]})"
    yield f"B  {found.b} ({found.kinds[1]})"
    yield from _parameter_lines(found, show_all)
    yield ""
    yield from _stage_lines(found)
    for where, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names and show_all:
            yield from _wrapped(f"only in {where}: ", names)
        elif names:
            yield f"only in {where}: {len(names):,} stages (--all names them)"
    if found.documents is not None:
        yield ""
        yield from _document_lines(found.documents)
    if found.windows:
        yield ""
        yield "the documents and their tokens are the same"
    for name, windows in found.windows.items():
        first = "" if windows.first is None else f", the first is window {windows.first:,}"
        yield f"  {name}: {windows.in_a:,} windows in A, {windows.in_b:,} in B; {windows.different:,} differ{first}"


def _parameter_lines(found: BuildDifferences, show_all: bool) -> Iterator[str]:
    if found.parameters or found.functions:
        yield ""
        yield "parameters that differ (A, B)"
        yield from _pairs(found.parameters)
        width = max(map(len, found.functions), default=0)
        for name, versions in found.functions.items():
            yield f"  {name:<{width}}  version {versions[0]}  version {versions[1]}"
    if found.parameters_of_one:
        yield ""
        yield f"parameters that only one of the two records: {len(found.parameters_of_one):,}" + (
            "" if show_all else " (--all shows them)"
        )
        if show_all:
            yield from _pairs(found.parameters_of_one)


def _pairs(parameters: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    width = max(map(len, parameters), default=0)
    for name, (one, other) in parameters.items():
        yield f"  {name:<{width}}  {_short(one)}  {_short(other)}"


def _stage_lines(found: BuildDifferences) -> Iterator[str]:
    if not found.different:
        yield f"equal: all {len(found.equal)} stages that both have hold the same"
        return
    if found.is_same:
        yield f"of another content otherwise: {len(found.different):,} of the stages that both have"
    else:
        (name, digests), *rest = found.different.items()
        yield f"first stage that differs: {name}  {digests[0][:16]}  {digests[1][:16]}"
        if rest:
            yield from _wrapped("and after it: ", [name for name, _ in rest])
    yield from _explanations(found)
    yield from _wrapped("equal: ", found.equal or ["none"])


def _explanations(found: BuildDifferences) -> Iterator[str]:
    by_words: dict[str, list[str]] = {}
    for name in found.different:
        words = found.explained.get(name, "" if not found.is_same else "not compared further than by its digest")
        by_words.setdefault(words, []).append(name)
    for words, names in by_words.items():
        if words:
            yield from textwrap.wrap(
                f"{', '.join(names)}: {words}", _COLUMNS, initial_indent="  ", subsequent_indent="    "
            )


def _document_lines(found: DocumentDifferences) -> Iterator[str]:
    yield f"documents of {', '.join(found.datasets)}: {found.rows_a:,} in A, {found.rows_b:,} in B"
    for kind, count in found.counts.items():
        if not count:
            continue
        shown = found.first[kind]
        first = f", the first {len(shown):,}:" if len(shown) < count else ":" if shown else ""
        yield f"  {count:,} {_WORDS[kind]}{first}"
        yield from (f"    {_document(one, kind)}" for one in shown)
    if found.is_none:
        yield "  none differs"


def _document(one: DocumentDifference, kind: str) -> str:
    name = "" if one.id is None else f" id {one.id[:60]!r}"
    places = [f"{where} {dataset} {number:,}" for where, (dataset, number) in _places(one)]
    reason = f" ({one.reason})" if one.reason and kind.startswith("taken_down") else ""
    return f"{one.address}{name}: {', '.join(places)}{reason}"


def _places(one: DocumentDifference) -> Iterator[tuple[str, tuple[str, int]]]:
    if one.in_a is not None:
        yield "A", one.in_a
    if one.in_b is not None:
        yield "B", one.in_b


def _short(value: Any) -> str:
    text = value if value is ABSENT else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrapped(what: str, names: Iterable[str]) -> list[str]:
    return textwrap.wrap(what + ", ".join(names), _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
