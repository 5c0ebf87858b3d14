"""Documents of a release by their number in a split: their row of the manifest, their windows, and what to call them.

Which documents a window holds is answered by the index of the stream, made from the manifests alone. It is written into
a temporary folder when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.address import Address
from everytoken.corpus import CorpusError
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import WINDOW_INDEXES, MadeStream, StreamIndex, open_stream_index
from everytoken.provenance.releases import SPLITS, Release
from everytoken.seeds import numpy_generator
from everytoken.shards import StoredPart, scratch_folder
from everytoken.tokens.checks import STORED_FAULTS
from everytoken.tokens.streams import STREAM_KINDS, StreamKind

RELEASE_FAULTS: tuple[type[Exception], ...] = (ProvenanceError, CorpusError, *STORED_FAULTS)
"""Errors that say that a release, its upstream or its streams are not what was released."""
_NAMED = 3


def longest_content(release: Release, split: str) -> int | None:
    """Return the most content tokens of a document of a split (EOS counts toward its cap); None: there is no cap."""
    tokenization = release.parameters("tokenization")
    if split != "annotated" and tokenization.get("long_documents") == "split":
        return None
    cap = tokenization["seq_length"] - (tokenization["reflection_budget"] if split == "annotated" else 0)
    return int(cap) - 1


def window_order(release: Release, kind: StreamKind, documents: int) -> np.ndarray:
    """Return which document each window of a stream with one a window holds, int64 (documents,)."""
    return numpy_generator(release.parameters(kind.pipeline)["seed"]).permutation(documents)


def column_values(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return a column, (rows,).

    Raises:
        ProvenanceError: it has nulls.
    """
    column = batch.column(name)
    if column.null_count:
        raise ProvenanceError(f"column {name} has {column.null_count:,} nulls; it must have none")
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values


def require_rule(broken: Mapping[str, np.ndarray], place: Callable[[int], str]) -> None:
    """Raise the first row that breaks a rule: ``broken`` says by rule which rows do, bool (rows,)."""
    for rule, rows in broken.items():
        if rows.any():
            raise ProvenanceError(f"{place(int(np.argmax(rows)))}: expected {rule}")


def shown_row(row: Mapping[str, Any]) -> str:
    """Return address and id of a row of the manifest, in words."""
    return str(Address.of(row)) + ("" if row["id"] is None else f", id {str(row['id'])[:60]!r}")


def _part_of(release: Release, split: str, number: int) -> tuple[StoredPart, int]:
    for part, boundary in zip(release.manifest(split), release.boundaries[split]["parts"], strict=True):
        if number < boundary["first_row"] + boundary["rows"] and isinstance(part, StoredPart):
            return part, number - boundary["first_row"]
    raise ProvenanceError(f"{split} has no document {number:,}")


def record_of(release: Release, split: str, number: int) -> dict[str, Any]:
    """Return the row of the manifest of a document of a split.

    Raises:
        ProvenanceError: there is no such document.
    """
    part, row = _part_of(release, split, number)
    record: dict[str, Any] = next(iter(part.batches(None, row))).slice(0, 1).to_pylist()[0]
    return record


def named_document(release: Release, split: str, number: int) -> str:
    """Return which document that is, in words: part, row, address, id."""
    try:
        part, row = _part_of(release, split, number)
        said = f"{part.name} row {row:,}: {shown_row(record_of(release, split, number))}"
    except RELEASE_FAULTS as error:  # the manifest may be what is damaged
        said = f"its row of the manifest cannot be read: {error}"
    return f"{split} document {number:,} ({said})"


def drawn_numbers(total: int, count: int, *seeds: int) -> np.ndarray:
    """Return ``count`` different numbers below ``total``, or all where there are fewer, in order, int64 (n,)."""
    return np.sort(numpy_generator(seeds[0], *seeds[1:]).choice(total, min(count, total), replace=False))


def chosen_parts(release: Release, count: int | None, seed: int) -> dict[str, list[int]]:
    """Return numbers of the parts to read, by split: all, or those of ``count`` seeded documents."""
    chosen: dict[str, list[int]] = {}
    for key, split in enumerate(SPLITS):
        ends = np.cumsum([part["rows"] for part in release.boundaries[split]["parts"]], dtype=np.int64)
        if count is None:
            chosen[split] = list(range(len(ends)))
        else:
            drawn = drawn_numbers(int(ends[-1]) if len(ends) else 0, count, seed, key)
            chosen[split] = np.unique(np.searchsorted(ends, drawn, side="right")).tolist()
    return chosen


def kind_in_manifests(stream: str) -> StreamKind | None:
    """Return the kind of a stream whose windows hold documents of one split; None where the manifests have them not.

    A window with a reflection holds more than its document, so none of reflected streams either.
    """
    kind = STREAM_KINDS.get(stream)
    if kind is None or not (kind.is_of_windows and kind.is_released) or kind.base is not None:
        return None
    return kind if kind.split in SPLITS else None


class WindowDocuments:
    """Documents of the windows of a release's streams; the end of ``scratch`` removes what it writes."""

    def __init__(self, release: Release, scratch: ExitStack) -> None:
        self._release, self._scratch = release, scratch
        self._indexes: dict[str, StreamIndex] = {}

    def index(self, stream: str) -> StreamIndex:
        """Return the index of a stream.

        Raises:
            ProvenanceError: the manifests do not have its documents, or are damaged.
        """
        if (kind := kind_in_manifests(stream)) is None:
            raise ProvenanceError(f"the manifests have no documents of the stream {stream!r}")
        if stream not in self._indexes:
            described = self._release.streams[stream]
            folder = self._scratch.enter_context(scratch_folder("everytoken-verify"))
            WINDOW_INDEXES[kind.layout](
                folder,
                lengths=self._release.manifest(kind.split),
                split=kind.split,
                stream=MadeStream(described["root_digest"], described["statistics"]),
                seq_length=self._release.parameters("tokenization")["seq_length"],
                seed=self._release.parameters(kind.pipeline)["seed"],
            )
            self._indexes[stream] = open_stream_index(folder)
        return self._indexes[stream]

    def named(self, stream: str, window: int) -> str:
        """Return in words, a line each, which documents a window holds; empty where the manifests do not have them."""
        if stream in STREAM_KINDS:
            stream = STREAM_KINDS[stream].base or stream
        if (kind := kind_in_manifests(stream)) is None:
            return ""
        try:
            spans = self.index(stream).spans(window)
        except RELEASE_FAULTS as error:  # what names the documents may be damaged too
            return f"its documents cannot be told ({error})"
        lines = [
            (f"  at {span.at:,} to {span.until:,}: " if kind.layout == "packed" else "  ")
            + named_document(self._release, kind.split, span.document)
            for span in spans[:_NAMED]
        ]
        return "\n".join(["it holds", *lines, *([f"  and {len(spans) - _NAMED:,} more"] if spans[_NAMED:] else [])])
