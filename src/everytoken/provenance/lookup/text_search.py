"""Documents whose text contains a text: a scan of the stores of the splits, a batch at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.progress import progress
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import DocumentPlace
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import CANARY, STORES
from everytoken.shards import DamagedStore, Part
from everytoken.shards.remote import open_parts

_Matches = Callable[[pa.Array], pa.Array]


def documents_containing(places: Places, text: str) -> Iterator[DocumentPlace]:
    """Yield the documents of all splits that are there whose text has ``text`` in it, byte for byte.

    Memory holds the texts of a batch, and 8 bytes for each document found in a split.

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
        parts, first, found = open_parts(places.path(STORES[split])).load(), 0, array("q")
        for part in progress(parts, len(parts), f"reading {STORES[split]}"):
            found.extend((first + _rows(part, column, matches)).tolist())
            first += part.rows
        yield from (DocumentPlace(split, number) for number in found)


def _rows(part: Part, column: str, matches: _Matches) -> np.ndarray:
    found, first = [np.empty(0, np.int64)], 0
    try:
        for batch in part.batches([column]):
            hits = pc.fill_null(matches(batch.column(0)), False)
            found.append(first + np.flatnonzero(hits.to_numpy(zero_copy_only=False)))
            first += batch.num_rows
    except DamagedStore as error:
        raise ProvenanceError(str(error)) from error
    return np.concatenate(found)
