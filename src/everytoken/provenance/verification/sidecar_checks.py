"""Whether a sidecar is the one that was released, and says of each window what the manifest says of its document.

Rows of the sidecar come by window, rows of the manifest by document. What both say of a document is summed up in two
numbers of 64 bits (its id, and all else), so that the two orders meet in arrays: 40 bytes a document in memory. Only
for a row that differs are both read again, to say what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS
from everytoken.checks import Mismatch, require_equal
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hash
from everytoken.provenance.releases import WITHHELD, Release
from everytoken.provenance.verification.documents import column_values, named_document, record_of
from everytoken.shards import TableDigest

_WITHHELD_KEY = np.uint64(0)  # the manifest does not say the id
_NO_ID_KEY = np.uint64(1)
_SAME = ("safety_score", "is_bad", *ADDRESS_COLUMNS, "token_length")


@dataclass(frozen=True, eq=False)
class DocumentOrder:
    """The document of a split in each window of a stream: ``order`` are their numbers, int64 (windows,)."""

    release: Release
    split: str
    order: np.ndarray

    def record(self, window: int) -> dict[str, Any]:
        """Return the row of the manifest of the document of a window."""
        return record_of(self.release, self.split, int(self.order[window]))

    def named(self, window: int) -> str:
        """Return which document a window holds, in words."""
        return named_document(self.release, self.split, int(self.order[window]))


def check_sidecar(path: Path, digest: str, documents: DocumentOrder | None) -> str:
    """Read a sidecar whole: its content digest, and each row against the manifest of its documents, if it has them."""
    wanted, row = None if documents is None else _wanted(documents), 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            digests = TableDigest(file.schema_arrow)
            for batch in file.iter_batches():
                digests.update(batch)
                if wanted is not None and documents is not None:
                    _compare(path, row, batch, wanted, documents)
                row += batch.num_rows
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise ProvenanceError(
            f"{path} row {row:,} or later (row i is of window i): it cannot be read ({error})"
        ) from error
    if documents is not None:
        require_equal(f"{path}: rows, one a window", row, len(documents.order))
    require_equal(f"{path}: content digest", digests.hexdigest(), digest)
    return f"{row:,} rows" + (", each as the manifest has its document" if wanted is not None else "")


def check_sidecar_rows(path: Path, windows: Sequence[int], documents: DocumentOrder) -> str:
    """Compare the rows of some windows with the manifest; reads the row groups that hold them."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        require_equal(f"{path}: rows, one a window", file.metadata.num_rows, len(documents.order))
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        for window in windows:
            group = int(np.searchsorted(ends, window, side="right"))
            first = int(ends[group]) - file.metadata.row_group(group).num_rows
            _require_row(path, window, file.read_row_group(group).slice(window - first, 1), documents)
    return f"{len(windows):,} of {len(documents.order):,} rows as the manifest has their documents"


def _wanted(documents: DocumentOrder) -> tuple[np.ndarray, np.ndarray]:
    """Return what the manifest says of the document of each window: two uint64 arrays, (windows,)."""
    order = documents.order
    ids, rest, row = np.empty(len(order), np.uint64), np.empty(len(order), np.uint64), 0
    for part in documents.release.manifest(documents.split):
        for batch in part.batches():
            texts = batch.column("text_hash").to_numpy(zero_copy_only=False).copy()
            is_excluded = batch.column("is_excluded").to_numpy(zero_copy_only=False)
            texts[is_excluded] = text_hash("")  # a tombstone has neither text nor id
            here = slice(row, row + batch.num_rows)
            rest[here] = _mixed(batch, texts)
            keys = _id_keys(batch.column("id"))
            types = batch.column("id_type").to_pylist()
            keys[np.array([kind == WITHHELD for kind in types], bool)] = _WITHHELD_KEY
            keys[is_excluded] = _NO_ID_KEY
            ids[here] = keys
            row += batch.num_rows
    require_equal(f"{documents.split} documents of the manifest, one a window", row, len(order))
    return ids[order], rest[order]


def _compare(
    path: Path,
    first: int,
    batch: pa.RecordBatch,
    wanted: tuple[np.ndarray, np.ndarray],
    documents: DocumentOrder,
) -> None:
    if first + batch.num_rows > len(documents.order):
        raise ProvenanceError(f"{path}: expected {len(documents.order):,} rows, one a window, found more")
    here = slice(first, first + batch.num_rows)
    ids, rest = (values[here] for values in wanted)
    texts = np.fromiter(map(text_hash, batch.column("text").to_pylist()), np.uint64, batch.num_rows)
    wrong = (rest != _mixed(batch, texts)) | ((ids != _id_keys(batch.column("doc_id"))) & (ids != _WITHHELD_KEY))
    if wrong.any():
        i = int(np.argmax(wrong))
        _require_row(path, first + i, batch.slice(i, 1), documents)
        raise ProvenanceError(f"{path} row {first + i:,}: a difference that is gone when read again")


def _require_row(path: Path, window: int, rows: pa.RecordBatch | pa.Table, documents: DocumentOrder) -> None:
    """Compare the row of a window with the manifest's row of its document, column by column."""
    (found,), expected = rows.to_pylist(), documents.record(window)
    wanted = {name: expected[name] for name in _SAME}
    if expected["is_excluded"]:  # a tombstone has neither text nor id
        wanted = {"doc_id": None, **wanted}
    elif expected["id_type"] != WITHHELD:
        wanted = {"doc_id": expected["id"], **wanted}
    said = {name: (repr(value), repr(found[name])) for name, value in wanted.items()}
    texts = (text_hash("") if expected["is_excluded"] else expected["text_hash"], text_hash(found["text"]))
    said["text"] = (f"one whose SHA-256 begins with {texts[0]:016x}", f"one whose SHA-256 begins with {texts[1]:016x}")
    for name, (right, wrong) in said.items():
        if right != wrong:
            place = f"{path} row {window:,} (window {window:,}): {name}"
            raise Mismatch(place, right, wrong, more=f"it holds {documents.named(window)}")


def _id_keys(ids: pa.Array) -> np.ndarray:
    """Return a number for each id, uint64 (rows,)."""
    keys: Iterator[int] = (int(_NO_ID_KEY) if name is None else text_hash(name) | 2 for name in ids.to_pylist())
    return np.fromiter(keys, np.uint64, len(ids))


def _mixed(batch: pa.RecordBatch, texts: np.ndarray) -> np.ndarray:
    """Return a number for all else that both say of a document, uint64 (rows,)."""
    coded = batch.column("source").dictionary_encode()
    names = np.array([text_hash(name) for name in coded.dictionary.to_pylist()], np.uint64)
    mixed: np.ndarray = texts.astype(np.uint64) ^ names[coded.indices.to_numpy(zero_copy_only=False)]
    for name in ("token_length", "safety_score", "is_bad", *ADDRESS_COLUMNS[1:]):
        mixed ^= column_values(batch, name).astype(np.int64).view(np.uint64)
        # a round of MurmurHash3's finalizer: every bit of a column changes half of the bits
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    return mixed
