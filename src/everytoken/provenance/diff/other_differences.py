"""Why contents of stages differ although no document does: columns that documents are not compared by, and files.

A digest is of all that a stage holds. What `compare_documents` compares decides the streams; a column that is left, as
``safety_probs``, or the statistics beside a tokenizer's file, may be others and the streams still the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.corpus import excluded_rows
from everytoken.provenance.diff.described_builds import DescribedBuild
from everytoken.shards import Shards, TableDigest

# What documents are compared by; of a text that is its hash.
_COMPARED = frozenset({"id", *ADDRESS_COLUMNS, "text", "text_sha256", "safety_score", "tokens"})
_NAMED = 5


def explain_differences(
    a: DescribedBuild,
    b: DescribedBuild,
    different: Iterable[str],
    *,
    same_documents: Iterable[str],
    name_files: bool,
) -> dict[str, str]:
    """Return in words what differs in stages of another content, by name, as far as it can be told.

    Args:
        same_documents: datasets whose documents were compared, none of which differs, in the same order.
        name_files: whether files that differ are named too, not only artifacts that have the same files.
    """
    compared = set(same_documents)
    told = {}
    for name in different:
        if name in compared:
            told[name] = _columns_in_words(a, b, name)
        elif name in a.files and name in b.files:
            told[name] = _files_in_words(a.files[name], b.files[name], name_files)
    return {name: words for name, words in told.items() if words}


def _files_in_words(a: Mapping[str, str], b: Mapping[str, str], name_files: bool) -> str:
    wrong = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
    if not wrong:
        return f"the same {', '.join(sorted(a)[:_NAMED])}; what is recorded of how it was made differs"
    return f"{len(wrong):,} of {len({*a, *b}):,} files: {', '.join(wrong[:_NAMED])}" if name_files else ""


def _columns_in_words(a: DescribedBuild, b: DescribedBuild, name: str) -> str:
    if a.kind != b.kind or a.kind == "release":  # manifests have no other columns
        replayed = next((side for side, build in (("A", a), ("B", b)) if build.is_replayed), None)
        return "" if replayed is None else f"safety_probs is not there in {replayed}: a replayed build has none"
    down = dict.fromkeys(set(_addresses(a)) & set(_addresses(b)))
    one, other = (_other_columns(build.documents[name](), down) for build in (a, b))
    said = []
    for column in sorted({*one, *other}):
        first, second = one.get(column), other.get(column)
        if first == second:
            continue
        empty = [side for side, found in (("A", first), ("B", second)) if found is None or found.is_empty]
        if len(empty) == 1:
            why = ": a replayed build has none" if {"A": a, "B": b}[empty[0]].is_replayed else ""
            said.append(f"{column} is not there in {empty[0]}{why}")
        else:
            said.append(f"{column} differs")
    return "; ".join(said) or "the same rows, in other parts or with other statistics"


def _addresses(build: DescribedBuild) -> Iterator[Address]:
    return (address for address, _ in build.taken_down())


@dataclass(frozen=True)
class _Column:
    """What a column holds: digest of its values, and whether all are null."""

    digest: str
    is_empty: bool


def _other_columns(documents: Shards, left_out: Mapping[Address, None]) -> dict[str, _Column]:
    """Return the columns that documents are not compared by, of all rows but those of ``left_out``."""
    digests: dict[str, TableDigest] = {}
    values: dict[str, int] = {}
    for part in documents:
        names = [name for name in part.schema.names if name not in _COMPARED]
        for batch in part.batches([*names, *ADDRESS_COLUMNS]):
            if left_out:
                batch = batch.filter(pa.array(~excluded_rows(batch, left_out)))
            for name in names:
                column = batch.select([name])
                digests.setdefault(name, TableDigest(column.schema)).update(column)
                values[name] = values.get(name, 0) + batch.num_rows - column.column(0).null_count
    return {name: _Column(digest.hexdigest(), not values[name]) for name, digest in digests.items()}
