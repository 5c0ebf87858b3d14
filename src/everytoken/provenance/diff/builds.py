"""What differs between two builds: parameters, the first stage with another content, and the documents there.

Stages come in the order in which data flows, so the first that differs is where two builds part; all that is made from
it follows. Documents are compared there, or at the next stage that has some in both builds; where none differs, at the
next one that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.provenance.diff.described_builds import DescribedBuild, describe_build
from everytoken.provenance.diff.document_differences import DocumentDifferences, compare_documents
from everytoken.provenance.diff.other_differences import explain_differences
from everytoken.provenance.releases import SPLITS
from everytoken.tokens.streams import kind_of_dataset

# Datasets whose documents are compared together, in the order of the flow.
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("upstream_documents",),
    ("documents",),
    ("scored_documents",),
    tuple(f"{split}_documents" for split in SPLITS),
    tuple(f"{split}_tokens" for split in SPLITS if split != "held_out"),
)
_TOKENS = _LEVELS[-1]
ABSENT = "not there"


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
        parameters: values in A and in B, by name, of parameters that both record.
        parameters_of_one: of those that one of two builds of a kind records.
        functions: versions in A and in B, by name, of functions that both ran.
        different: digests in A and in B of the others, in the order of the flow.
        only_in_a, only_in_b: stages that one of the builds has.
        explained: of stages in ``different`` whose documents or files are the same, what differs instead.
        documents: which documents differ, at the first stage where some do, else at the last stage that differs and
            has some; None: there is none.
        windows: of streams of the same documents and tokens the windows in A and in B, how many differ, and the first.
    """

    a: str
    b: str
    kinds: tuple[str, str]
    parameters: Mapping[str, tuple[Any, Any]]
    parameters_of_one: Mapping[str, tuple[Any, Any]]
    functions: Mapping[str, tuple[int, int]]
    equal: list[str]
    different: Mapping[str, tuple[str, str]]
    explained: Mapping[str, str]
    only_in_a: list[str]
    only_in_b: list[str]
    documents: DocumentDifferences | None
    windows: Mapping[str, WindowDifferences]

    @property
    def has_same_streams(self) -> bool:
        """Whether both have streams, and each that both have is the same."""
        return any(map(kind_of_dataset, self.equal)) and not any(map(kind_of_dataset, self.different))

    @property
    def has_same_documents(self) -> bool:
        """Whether no document differs in address, id, text, score, split, order or tokens."""
        if self.documents is None:
            return any(name in level for level in _LEVELS for name in self.equal)
        return self.documents.is_none

    @property
    def is_same(self) -> bool:
        """Whether the builds give the same: all stages that both have, or their streams and documents."""
        return not self.different or (self.has_same_streams and self.has_same_documents)

    def plain(self) -> dict[str, object]:
        """Return all that is known, as plain JSON."""
        same = {name: getattr(self, name) for name in ("is_same", "has_same_streams", "has_same_documents")}
        return {**same, **asdict(self)}


def diff_builds(a: Path, b: Path, *, stages: Sequence[str], limit: int, memory: int) -> BuildDifferences:
    """Compare two builds.

    Args:
        a: data folder of an environment, or a release.
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
    same_documents = documents.datasets if documents is not None and documents.is_none else ()
    parameters, parameters_of_one = _parameters(first, second)
    return BuildDifferences(
        a=str(a),
        b=str(b),
        kinds=(first.kind, second.kind),
        parameters=parameters,
        parameters_of_one=parameters_of_one,
        functions={
            name: (version, second.functions[name])
            for name, version in sorted(first.functions.items())
            if second.functions.get(name, version) != version
        },
        equal=[name for name in both if name not in different],
        different=different,
        explained=explain_differences(
            first,
            second,
            different,
            same_documents=same_documents,
            name_files=bool(same_documents) and not any(map(kind_of_dataset, different)),
        ),
        only_in_a=_only(first, second, stages),
        only_in_b=_only(second, first, stages),
        documents=documents,
        windows=_windows(first, second, different) if documents is None or documents.is_none else {},
    )


def _place(name: str, stages: Sequence[str]) -> tuple[int, str]:
    return (stages.index(name) if name in stages else len(stages), name)


def _only(build: DescribedBuild, other: DescribedBuild, stages: Sequence[str]) -> list[str]:
    return sorted(set(build.stages) - set(other.stages), key=lambda name: _place(name, stages))


Pairs = dict[str, tuple[Any, Any]]


def _parameters(a: DescribedBuild, b: DescribedBuild) -> tuple[Pairs, Pairs]:
    """Return parameters of the stages that both have that differ, and those that one of them records.

    A data folder and a release record other ones by nature: of these, what both record. Where one has a value and the
    other has names below it (``subsampling.exclude``: null, or a path and a SHA-256), both record them.
    """
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
    above = {parent for names in (one, other) for name in names for parent in _parents(name)}
    names = sorted(set(one) & set(other) if stages is None else {*one, *other} - above)
    pairs = {name: (_value(one, name), _value(other, name)) for name in names}
    differ = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    of_one = {name: pair for name, pair in differ.items() if ABSENT in pair}
    return {name: pair for name, pair in differ.items() if name not in of_one}, of_one


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _value(parameters: Mapping[str, Any], name: str) -> Any:
    return next((parameters[one] for one in (name, *reversed(_parents(name))) if one in parameters), ABSENT)


def _documents(
    a: DescribedBuild, b: DescribedBuild, different: Mapping[str, Any], limit: int, memory: int
) -> DocumentDifferences | None:
    found = None
    for level in _LEVELS:
        here = [name for name in level if name in a.documents and name in b.documents]
        if not set(here) & set(different):
            continue
        found = compare_documents(
            {name: a.documents[name] for name in here},
            {name: b.documents[name] for name in here},
            down_in_a=a.taken_down,
            down_in_b=b.taken_down,
            ids_of_tokens=level == _TOKENS and a.kind == b.kind == "data folder",
            limit=limit,
            memory=memory,
        )
        if not found.is_none:
            break
    return found


def _windows(a: DescribedBuild, b: DescribedBuild, different: Mapping[str, Any]) -> dict[str, WindowDifferences]:
    found = {}
    for name in different:
        if name in a.windows and name in b.windows:
            one, other = a.windows[name](), b.windows[name]()
            both = min(len(one), len(other))
            wrong = np.flatnonzero(one[:both] != other[:both])
            found[name] = WindowDifferences(len(one), len(other), len(wrong), int(wrong[0]) if len(wrong) else None)
    return found
