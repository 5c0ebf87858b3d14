"""Rows of the manifests of a release: which part and row a document is, and what to call it in a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.address import Address
from everytoken.corpus import CorpusError
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import SPLITS, Release
from everytoken.seeds import numpy_generator
from everytoken.shards import StoredPart
from everytoken.tokens.checks import STORED_FAULTS
from everytoken.tokens.streams import StreamKind

RELEASE_FAULTS: tuple[type[Exception], ...] = (ProvenanceError, CorpusError, *STORED_FAULTS)
"""Errors that say that a release, its upstream or its streams are not what was released."""


def longest_content(release: Release, split: str) -> int | None:
    """Return the most content tokens of a document of a split (EOS counts toward its cap); None: none is encoded."""
    tokenization = release.parameters("tokenization")
    if split == "held_out":
        return None
    cap = tokenization["seq_length"] - (tokenization["reflection_budget"] if split == "annotated" else 0)
    return int(cap) - 1


def window_order(release: Release, kind: StreamKind, documents: int) -> np.ndarray:
    """Return which document each window of a stream with one a window holds, int64 (documents,)."""
    seed = release.parameters(kind.pipeline)["seed"]
    return numpy_generator(seed).permutation(documents)


def column_values(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return a column that has no nulls, (rows,).

    Raises:
        ProvenanceError: it has some.
    """
    column = batch.column(name)
    if column.null_count:
        raise ProvenanceError(f"column {name} has {column.null_count:,} nulls; it must have none")
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values


def shown_row(batch: pa.RecordBatch, i: int) -> str:
    """Return address and id of a row of the manifest or of a sidecar, in words."""
    return _named(batch.slice(i, 1).to_pylist()[0])


def _named(row: Mapping[str, Any]) -> str:
    place = str(Address.of(row))
    name = row.get("id", row.get("doc_id"))
    return place if name is None else f"{place}, id {str(name)[:60]!r}"


def require_rule(broken: Mapping[str, np.ndarray], place: Callable[[int], str]) -> None:
    """Raise the first row that breaks a rule.

    Args:
        broken: which rows break it, bool (rows,), by rule.
        place: names a row.

    Raises:
        ProvenanceError: says where, and which rule.
    """
    for rule, rows in broken.items():
        if rows.any():
            raise ProvenanceError(f"{place(int(np.argmax(rows)))}: expected {rule}")


def part_of(release: Release, split: str, number: int) -> tuple[StoredPart, int]:
    """Return the part of a document of a split, and its row there.

    Raises:
        ProvenanceError: there is no such document.
    """
    for part, boundary in zip(release.manifest(split), release.boundaries[split]["parts"], strict=True):
        if number < boundary["first_row"] + boundary["rows"] and isinstance(part, StoredPart):
            return part, number - boundary["first_row"]
    raise ProvenanceError(f"{split} has no document {number:,}")


def record_of(release: Release, split: str, number: int) -> dict[str, Any]:
    """Return the row of the manifest of a document of a split."""
    part, row = part_of(release, split, number)
    batch = next(iter(part.batches(None, row)))
    record: dict[str, Any] = batch.slice(0, 1).to_pylist()[0]
    return record


def named_document(release: Release, split: str, number: int) -> str:
    """Return which document that is, in words: part, row, address, id."""
    try:
        part, row = part_of(release, split, number)
        return f"{split} document {number:,} ({part.name} row {row:,}: {_named(record_of(release, split, number))})"
    except RELEASE_FAULTS as error:  # the manifest may be what is damaged
        return f"{split} document {number:,} (its row of the manifest cannot be read: {error})"


def drawn_numbers(total: int, count: int, *seeds: int) -> np.ndarray:
    """Return ``count`` different numbers below ``total``, or all where there are fewer, in order, int64 (n,)."""
    generator = numpy_generator(seeds[0], *seeds[1:])
    return np.sort(generator.choice(total, min(count, total), replace=False))


def chosen_parts(release: Release, count: int | None, seed: int) -> dict[str, list[int]]:
    """Return numbers of the parts to read, by split: all, or those of ``count`` seeded documents."""
    parts = {split: len(release.boundaries[split]["parts"]) for split in SPLITS}
    if count is None:
        return {split: list(range(number)) for split, number in parts.items()}
    chosen: dict[str, list[int]] = {}
    for key, split in enumerate(SPLITS):
        ends = np.cumsum([part["rows"] for part in release.boundaries[split]["parts"]], dtype=np.int64)
        rows = int(ends[-1]) if len(ends) else 0
        drawn = drawn_numbers(rows, count, seed, key)
        chosen[split] = np.unique(np.searchsorted(ends, drawn, side="right")).tolist()
    return chosen
