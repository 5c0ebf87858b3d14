"""Texts that a release may hold: of rows that an id cannot give back, or of all rows, where the licence allows it.

``text_rescue/{split}`` has rows ``global_row`` (the number of the document in its split) and ``text``. An id cannot
give a document back when there is none (upstream has none, or it is withheld), or when upstream has it for documents
of different text. Excluded documents are never among them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa

from everytoken.arrays import Flags, Integers
from everytoken.corpus.dedup import between
from everytoken.outofcore import find_repeats
from everytoken.provenance.releases.parameters import TextPolicy
from everytoken.shards import Part, Rows, Shards

TEXT_RESCUE = pa.schema(
    [pa.field("global_row", pa.int64(), nullable=False), pa.field("text", pa.large_string(), nullable=False)]
)


_ID = ["source", "id_type", "id"]
# NumPy compares as if zeros followed: of digests of one length all bytes count.
_DIGEST = np.dtype("S16")


def find_shared_ids(documents: Shards, memory: int, scratch: Path) -> set[bytes]:
    """Return 16 bytes for each of the ids that documents of different text share within a source.

    Args:
        documents: as upstream has them: ``source``, ``id_type``, ``id``, ``text_sha256``.
        memory: bytes for grouping; the result comes on top, about 100 bytes an id.
        scratch: folder for temporary files, about 100 bytes a document.
    """
    shared: set[bytes] = set()
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".ids-") as folder:
        of_id = _repeats(documents, _ID, memory, Path(folder, "ids"))
        of_text = _repeats(documents, [*_ID, "text_sha256"], memory, Path(folder, "texts"))
        for start, batch in _numbered(documents, _ID):
            first_of_id = between(of_id, start, start + batch.num_rows)
            first_of_text = between(of_text, start, start + batch.num_rows)
            same = np.full(batch.num_rows, -1, np.int64)
            same[first_of_text[:, 0] - start] = first_of_text[:, 1]
            rows = first_of_id[:, 0] - start
            other = rows[same[rows] != first_of_id[:, 1]]
            shared.update(_digests(batch.take(pa.array(other))))
    return shared


def _repeats(documents: Shards, columns: list[str], memory: int, folder: Path) -> Integers:
    """Return (position, first) of the rows with an id whose values in ``columns`` an earlier row has, sorted."""
    folder.mkdir()
    return find_repeats(_keys(documents, columns), 2, memory, folder)


def _keys(documents: Shards, columns: list[str]) -> Iterator[tuple[Integers, Integers]]:
    for start, batch in _numbered(documents, columns):
        there = np.flatnonzero(batch.column("id").is_valid().to_numpy(zero_copy_only=False))
        words = b"".join(_digests(batch.take(pa.array(there))))
        yield start + there, np.frombuffer(words, np.int64).reshape(-1, 2)


def _numbered(documents: Shards, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches, each with the position of its first row."""
    start = 0
    for part in documents:
        for batch in part.batches(columns):
            yield start, batch.select(columns)
            start += batch.num_rows


def _digests(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield 16 bytes of the SHA-256 of each row: of source, type of the id, id, and the digest of the text if it is
    there.
    """
    texts = batch.column("text_sha256").to_pylist() if "text_sha256" in batch.schema.names else [b""] * batch.num_rows
    for source, id_type, identifier, text in zip(*(batch.column(name).to_pylist() for name in _ID), texts, strict=True):
        yield hashlib.sha256(f"{source}\0{id_type}\0{identifier}\0".encode() + text).digest()[:16]


def store_digests(digests: set[bytes], path: Path) -> Path:
    """Write digests of 16 bytes sorted to a file, which processes map; return it."""
    np.sort(np.array([*digests], _DIGEST)).tofile(path)
    return path


@dataclass(frozen=True)
class Rescue:
    """What decides which texts a release holds.

    Attributes:
        shared: file with the result of `find_shared_ids`, see `store_digests`.
    """

    policies: Mapping[str, TextPolicy]
    shared: Path

    def wanted(self, documents: pa.RecordBatch, listed: pa.RecordBatch) -> Flags:
        """Return of which rows the text is given, bool (rows,).

        Args:
            documents: rows of a split: ``source``, ``id_type``, ``id``.
            listed: the same rows of its manifest: ``id``, ``is_excluded``.
        """
        sources = documents.column("source").dictionary_encode()
        policies = np.array([self.policies[source] for source in sources.dictionary.to_pylist()], np.str_)
        policy = policies[sources.indices.to_numpy()] if len(policies) else np.empty(0, np.str_)
        wanted = listed.column("id").is_null().to_numpy(zero_copy_only=False) & (policy == "rescue")
        if self.shared.stat().st_size:
            shared = np.memmap(self.shared, _DIGEST, "r")
            asked = np.flatnonzero((policy == "rescue") & ~wanted)
            digests = np.fromiter(_digests(documents.take(pa.array(asked))), _DIGEST, len(asked))
            places = np.minimum(np.searchsorted(shared, digests), len(shared) - 1)
            wanted[asked] = shared[places] == digests
        excluded = listed.column("is_excluded").to_numpy(zero_copy_only=False)
        return np.asarray((wanted | (policy == "all")) & ~excluded)


def rescued_rows(documents: Part, manifest: Part, first_row: int, rescue: Rescue) -> Rows | None:
    """Return the texts of a part that a release holds, as `TEXT_RESCUE`; None for none.

    Args:
        manifest: the same part of its manifest.
        first_row: number of its first document in the split.
    """
    listed = manifest.table(["id", "is_excluded"])
    wanted, start = np.zeros(listed.num_rows, np.bool_), 0
    for batch in documents.batches(_ID):
        of_manifest = listed.slice(start, batch.num_rows).combine_chunks().to_batches()[0]
        wanted[start : start + batch.num_rows] = rescue.wanted(batch, of_manifest)
        start += batch.num_rows
    return Rows(TEXT_RESCUE, _texts(documents, wanted, first_row)) if wanted.any() else None


class GivenTexts(TypedDict):
    """How many texts of a part are given, by source."""

    by_source: dict[str, int]


def _texts(documents: Part, wanted: Flags, first_row: int) -> Generator[pa.RecordBatch, None, GivenTexts]:
    start = 0
    by_source: dict[str, int] = {}
    for batch in documents.batches(["source", "text"]):
        rows = np.flatnonzero(wanted[start : start + batch.num_rows])
        some = batch.take(pa.array(rows))
        for source in some.column("source").to_pylist():
            by_source[source] = by_source.get(source, 0) + 1
        columns = [pa.array(first_row + start + rows), some.column("text")]
        yield pa.RecordBatch.from_arrays(columns, schema=TEXT_RESCUE)
        start += batch.num_rows
    return GivenTexts(by_source=by_source)
