"""What differs between two builds: parameters, the first stage with another content, and the documents there.

Stages come in the order in which data flows, so the first that differs is where two builds part; all that is made from
it follows. Documents are compared there, or at the next stage that has some in both builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.provenance.builds.described_builds import DescribedBuild, describe_build
from everytoken.provenance.builds.document_differences import DocumentDifference, DocumentDifferences, compare_documents
from everytoken.provenance.releases.release import SPLITS

# Datasets whose documents are compared together, in the order of the flow.
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("upstream_documents",),
    ("documents",),
    ("scored_documents",),
    tuple(f"{split}_documents" for split in SPLITS),
    tuple(f"{split}_tokens" for split in SPLITS if split != "held_out"),
)
_TOKENS = _LEVELS[-1]
_ABSENT = "not there"
_WORDS = {
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "split_changed": "in another split",
    "text_changed": "with another text",
    "score_changed": "with another score",
    "tokens_changed": "with other tokens",
    "order_changed": "in another order",
}


@dataclass(frozen=True)
class WindowDifferences:
    """Windows of a stream in A and in B, how many of those that both have differ, and the number of the first."""

    in_a: int
    in_b: int
    different: int
    first: int | None


@dataclass(frozen=True)
class BuildDifferences:
    """What differs between builds A and B.

    Attributes:
        a, b: folders.
        kinds: of the two, ``data folder`` or ``release``.
        parameters: values in A and in B, by name.
        functions: versions in A and in B, by name, of functions that both ran.
        equal: stages of equal content.
        different: digests in A and in B of the others, in the order of the flow.
        only_in_a, only_in_b: stages that one of the builds has.
        documents: which documents differ, at the first stage that differs and has some; None: there is none.
        windows: of streams of the same documents and tokens the windows in A and in B, how many differ, and the first.
    """

    a: str
    b: str
    kinds: tuple[str, str]
    parameters: Mapping[str, tuple[Any, Any]]
    functions: Mapping[str, tuple[int, int]]
    equal: list[str]
    different: Mapping[str, tuple[str, str]]
    only_in_a: list[str]
    only_in_b: list[str]
    documents: DocumentDifferences | None
    windows: Mapping[str, WindowDifferences]

    def plain(self) -> dict[str, Any]:
        """Return all that is known, as plain JSON."""
        return asdict(self)


def diff_builds(a: Path, b: Path, *, stages: Sequence[str], limit: int, memory: int) -> BuildDifferences:
    """Compare two builds.

    Args:
        a: data folder of an environment, or a release.
        b: the other.
        stages: names of datasets in the order in which data flows.
        limit: documents that are named of each kind of difference.
        memory: bytes for the join of documents.

    Raises:
        ProvenanceError: one of them is no build, or is damaged; or there is too little memory.
        ShardsError: documents cannot be read.
    """
    first, second = describe_build(a), describe_build(b)
    both = sorted(set(first.stages) & set(second.stages), key=lambda name: _place(name, stages))
    different = {
        name: (first.stages[name], second.stages[name]) for name in both if first.stages[name] != second.stages[name]
    }
    documents = _documents(first, second, different, limit, memory)
    return BuildDifferences(
        a=str(a),
        b=str(b),
        kinds=(first.kind, second.kind),
        parameters=_parameters(first, second),
        functions={
            name: (version, second.functions[name])
            for name, version in sorted(first.functions.items())
            if second.functions.get(name, version) != version
        },
        equal=[name for name in both if name not in different],
        different=different,
        only_in_a=_only(first, second, stages),
        only_in_b=_only(second, first, stages),
        documents=documents,
        windows=_windows(first, second, different) if documents is None else {},
    )


def _place(name: str, stages: Sequence[str]) -> tuple[int, str]:
    return (stages.index(name) if name in stages else len(stages), name)


def _only(build: DescribedBuild, other: DescribedBuild, stages: Sequence[str]) -> list[str]:
    return sorted(set(build.stages) - set(other.stages), key=lambda name: _place(name, stages))


def _parameters(a: DescribedBuild, b: DescribedBuild) -> dict[str, tuple[Any, Any]]:
    """Return parameters that differ, of the stages that both have; of a data folder and a release, what both record."""
    stages = set(a.parameters) & set(b.parameters) if a.kind == b.kind else None
    one, other = (
        {
            name: value
            for stage, own in build.parameters.items()
            if stages is None or stage in stages
            for name, value in own.items()
        }
        for build in (a, b)
    )
    names = set(one) & set(other) if stages is None else set(one) | set(other)
    pairs = {name: (one.get(name, _ABSENT), other.get(name, _ABSENT)) for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _documents(
    a: DescribedBuild, b: DescribedBuild, different: Mapping[str, Any], limit: int, memory: int
) -> DocumentDifferences | None:
    for level in _LEVELS:
        here = [name for name in level if name in a.documents and name in b.documents]
        if not set(here) & set(different):
            continue
        return compare_documents(
            {name: a.documents[name] for name in here},
            {name: b.documents[name] for name in here},
            ids_of_tokens=level == _TOKENS and a.kind == b.kind == "data folder",
            limit=limit,
            memory=memory,
        )
    return None


def _windows(a: DescribedBuild, b: DescribedBuild, different: Mapping[str, Any]) -> dict[str, WindowDifferences]:
    found = {}
    for name in different:
        if name in a.windows and name in b.windows:
            one, other = a.windows[name](), b.windows[name]()
            both = min(len(one), len(other))
            wrong = np.flatnonzero(one[:both] != other[:both])
            found[name] = WindowDifferences(len(one), len(other), len(wrong), int(wrong[0]) if len(wrong) else None)
    return found


def difference_lines(found: BuildDifferences) -> Iterator[str]:
    """Yield what `diff_builds` found, in words."""
    yield f"A  {found.a} ({found.kinds[0]})"
    yield f"B  {found.b} ({found.kinds[1]})"
    if found.parameters or found.functions:
        yield ""
        yield "parameters that differ (A, B)"
        width = max(map(len, [*found.parameters, *found.functions]))
        for name, (one, other) in found.parameters.items():
            yield f"  {name:<{width}}  {_short(one)}  {_short(other)}"
        for name, versions in found.functions.items():
            yield f"  {name:<{width}}  version {versions[0]}  version {versions[1]}"
    yield ""
    if not found.different:
        yield f"equal: all {len(found.equal)} stages that both have hold the same"
    else:
        (name, digests), *rest = found.different.items()
        yield f"first stage that differs: {name}  {digests[0][:16]}  {digests[1][:16]}"
        if rest:
            yield f"and after it: {', '.join(name for name, _ in rest)}"
        yield f"equal: {', '.join(found.equal) or 'none'}"
    for where, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names:
            yield f"only in {where}: {', '.join(names)}"
    if found.documents is not None:
        yield ""
        yield from _document_lines(found.documents)
    if found.windows:
        yield ""
        yield "the documents and their tokens are the same"
    for name, windows in found.windows.items():
        first = "" if windows.first is None else f", the first is window {windows.first:,}"
        yield f"  {name}: {windows.in_a:,} windows in A, {windows.in_b:,} in B; {windows.different:,} differ{first}"


def _document_lines(found: DocumentDifferences) -> Iterator[str]:
    yield f"documents of {', '.join(found.datasets)}: {found.rows_a:,} in A, {found.rows_b:,} in B"
    for kind, count in found.counts.items():
        if not count:
            continue
        shown = found.first[kind]
        first = f", the first {len(shown):,}:" if len(shown) < count else ":" if shown else ""
        yield f"  {count:,} {_WORDS[kind]}{first}"
        yield from (f"    {_document(one)}" for one in shown)
    if not any(found.counts.values()):
        yield "  none differs"


def _document(one: DocumentDifference) -> str:
    name = "" if one.id is None else f" id {one.id[:60]!r}"
    places = [f"{where} {dataset} {number:,}" for where, (dataset, number) in _places(one)]
    return f"{one.source} file {one.shard_index} row {one.row}{name}: {', '.join(places)}"


def _places(one: DocumentDifference) -> Iterator[tuple[str, tuple[str, int]]]:
    if one.in_a is not None:
        yield "A", one.in_a
    if one.in_b is not None:
        yield "B", one.in_b


def _short(value: Any) -> str:
    text = value if value is _ABSENT else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
