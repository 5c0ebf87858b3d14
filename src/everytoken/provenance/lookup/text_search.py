"""Documents whose text contains a text: a scan of the stores of the splits, a row group at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import DocumentPlace
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import CANARY, STORES
from everytoken.shards import Store, StoredPart, progress
from everytoken.system_errors import raise_trouble

_Matches = Callable[[pa.ChunkedArray], pa.ChunkedArray]


def documents_containing(places: Places, text: str) -> Iterator[DocumentPlace]:
    """Yield the documents of all splits that are there whose text has ``text`` in it, byte for byte.

    Memory holds the texts of a row group, and 8 bytes for each document found in a split.

    Raises:
        ProvenanceError: there is nothing to look for, or a part cannot be read.
    """
    if not text:
        raise ProvenanceError("an empty text is in every document: give some characters of the one that is meant")
    yield from _scan(places, "text", lambda texts: pc.match_substring(texts, text), tuple(STORES))


def canary_documents_with_id(places: Places, id: str) -> Iterator[DocumentPlace]:
    """Yield the canary documents with an id; there are few, and no index of them."""
    yield from _scan(places, "doc_id", lambda ids: pc.equal(ids, id), (CANARY,))


def _scan(places: Places, column: str, matches: _Matches, splits: tuple[str, ...]) -> Iterator[DocumentPlace]:
    for split in splits:
        if not places.has(STORES[split]):
            continue
        parts, first, found = Store(places.path(STORES[split])).load(), 0, array("q")
        for part in progress(parts, len(parts), f"reading {STORES[split]}"):
            assert isinstance(part, StoredPart)
            found.extend((first + _rows(part.path, column, matches)).tolist())
            first += part.rows
        yield from (DocumentPlace(split, number) for number in found)


def _rows(path: Path, column: str, matches: _Matches) -> np.ndarray:
    found, first = [np.empty(0, np.int64)], 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                values = file.read_row_group(group, [column]).column(0)
                hits = matches(values).combine_chunks()
                found.append(first + np.flatnonzero(pc.fill_null(hits, False).to_numpy(zero_copy_only=False)))
                first += len(values)
    except (OSError, pa.ArrowException) as error:
        raise_trouble(error)
        raise ProvenanceError(
            f"{path} cannot be read ({error}). Run the pipeline that makes it: damaged parts are made again"
        ) from error
    return np.concatenate(found)
