"""Documents by id and by address: in which split each is, and under which number.

Two sorted arrays of 64-bit hashes (`everytoken.provenance.indexes.hashes`), each with an array of document numbers
beside it. A hash only proposes: what it finds is compared with the id or address in the record, so answers are exact,
whatever collides. An id may belong to several documents, and an address too (a mixture may repeat documents): all are
returned, by number.

Size: 24 bytes a document (12 where it has no id) below 2**32 documents, else 32.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from everytoken.address import ADDRESS_COLUMNS, Address, address_columns
from everytoken.outofcore import ExternalSort
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type
from everytoken.provenance.indexes.document_numbers import (
    DocumentNumbers,
    DocumentPlace,
    SplitCounts,
    numbers_of,
    require_rows,
    write_numbers,
)
from everytoken.provenance.indexes.hashes import hash_of_address, hash_of_id, hashes_of_addresses, hashes_of_ids
from everytoken.provenance.indexes.index_folder import DESCRIPTION_FILE, folder_of, read_index
from everytoken.provenance.indexes.spans import require_consistent_index
from everytoken.provenance.stored_rows import record_at, records_at
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, Part, RangeMap, Shards, versioned, write_text

__all__ = ["DocumentIndex", "DocumentPlace", "index_documents", "open_document_index"]

DOCUMENT_INDEX_FORMAT = "everytoken-document-index/1"
_ID = ("id_type", "id")
_KEYED = np.dtype([("key", "<u8"), ("document", "<u8")])
_BYTES = 48  # a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`


class IndexedSplit(SplitCounts):
    """A split and the root digest of its documents."""

    digest: str


class DocumentIndexStatistics(TypedDict):
    """Statistics of `index_documents`; ``ids`` counts those that are not null."""

    documents: int
    ids: int
    id_types: list[str]
    splits: list[IndexedSplit]


@versioned("index_documents", 1, unrecorded=["memory"], in_ranges=True)
def index_documents(
    folder: Path, *, documents: Mapping[str, Shards], memory: int, ranges: RangeMap = IN_THIS_PROCESS
) -> Built:
    """Write the index of splits.

    Args:
        folder: where the files go; also holds temporary files, up to 64 bytes a document.
        documents: by name of the split: rows with ``id``, ``id_type``, ``source``, ``shard_index`` and ``row``.
        memory: bytes for sorting.
        ranges: where ids and addresses are read and hashed, part by part.
    """
    numbers = numbers_of(documents)
    ids, addresses = (ExternalSort(_KEYED, memory // 2, folder) for _ in range(2))
    types: set[str] = set()
    parts = [
        _SplitPart(split, part, numbers.number_before(split, index))
        for split, shards in documents.items()
        for index, part in enumerate(shards)
    ]
    for batch in ranges.unless_small(len(numbers) * _BYTES).pieces(_hashed, parts, folder):
        ids.add(batch.ids)
        addresses.add(batch.addresses)
        types |= batch.id_types
    held = {name: _write(folder, name, of, len(numbers)) for name, of in (("ids", ids), ("addresses", addresses))}
    splits = [
        IndexedSplit(**split, digest=shards.root_digest)
        for split, shards in zip(write_numbers(folder, numbers), documents.values(), strict=True)
    ]
    described = {"format": DOCUMENT_INDEX_FORMAT, "ids": held["ids"], "id_types": sorted(types)}
    with_names = [{**split, "part_names": [part.name for part in documents[split["name"]]]} for split in splits]
    write_text(folder / DESCRIPTION_FILE, json.dumps({**described, "splits": with_names}) + "\n")
    return Built(
        DocumentIndexStatistics(documents=len(numbers), ids=held["ids"], id_types=sorted(types), splits=splits)
    )


@dataclass(frozen=True)
class _SplitPart:
    """A part of a split, and the number of its first document over all splits."""

    split: str
    part: Part
    first: int

    @property
    def name(self) -> str:
        return f"{self.split} {self.part.name}"


@dataclass(frozen=True, eq=False)
class _Hashed:
    """The documents of a batch by the hashes of their ids and addresses, `_KEYED`."""

    ids: np.ndarray
    addresses: np.ndarray
    id_types: set[str]


def _hashed(given: _SplitPart) -> Iterator[_Hashed]:
    first = given.first
    for batch in given.part.batches([*_ID, *ADDRESS_COLUMNS]):
        own = np.arange(first, first + batch.num_rows, dtype=np.uint64)
        first += batch.num_rows
        addresses = _keyed(hashes_of_addresses(address_columns(batch)), own)
        known = batch.column("id").is_valid()
        id_types, its_ids = (batch.column(name).filter(known) for name in _ID)
        if id_types.null_count:
            raise ProvenanceError(f"{given.name}: a document has an id without id_type; ingest it again")
        ids = _keyed(hashes_of_ids(id_types, its_ids), own[known.to_numpy(zero_copy_only=False)])
        yield _Hashed(ids, addresses, set(id_types.unique().to_pylist()))


def _keyed(keys: np.ndarray, documents: np.ndarray) -> np.ndarray:
    records = np.empty(len(keys), _KEYED)
    records["key"], records["document"] = keys, documents
    return records


def _write(folder: Path, name: str, records: ExternalSort, documents: int) -> int:
    """Write the keys in order and the documents beside them; return how many there are."""
    with (
        ArrayWriter(folder / f"{name}_hashes.npy", np.dtype("<u8")) as keys,
        ArrayWriter(folder / f"{name}_documents.npy", smallest_type(documents)) as numbers,
    ):
        for block in records.sorted():
            keys.append(block["key"])
            numbers.append(block["document"])
    return keys.count


@dataclass(frozen=True, eq=False)
class DocumentIndex:
    """See the module.

    Attributes:
        documents: the splits that it is of; their records are looked at.
    """

    documents: Mapping[str, Shards]
    numbers: DocumentNumbers
    id_types: tuple[str, ...]
    _maps: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def find_id(self, id: str, id_type: str | None = None) -> list[DocumentPlace]:
        """Return all documents with an id.

        Args:
            id: as documents have it, a string.
            id_type: only ids of this type; None for all.
        """
        found: list[int] = []
        try:
            id.encode()
        except UnicodeEncodeError:  # what a terminal may give; no document has such an id
            return []
        for kind in self.id_types if id_type is None else [id_type]:
            found += self._found("ids", hash_of_id(kind, id), {"id_type": kind, "id": id})
        return [self.numbers.place(document) for document in sorted(found)]

    def find_address(self, address: Address) -> list[DocumentPlace]:
        """Return all documents with an address: one, or none, where the mixture repeats no document."""
        if not (0 <= address.shard_index < 1 << 31 and 0 <= address.row < 1 << 63):
            return []
        found = self._found("addresses", hash_of_address(address), address._asdict())
        return [self.numbers.place(document) for document in found]

    def number(self, split: str, part_index: int, row: int) -> int:
        """Return the number in its split of a row of a part, by the plan position of the part.

        Raises:
            ProvenanceError: there is no such row.
        """
        return self.numbers.number(split, part_index, row) - self.numbers.first_of(split)

    def record(self, split: str, number: int, columns: tuple[str, ...]) -> dict[str, Any]:
        """Return columns of a document's record.

        Raises:
            ProvenanceError: there is no such document.
        """
        if not 0 <= number < (documents := self.numbers.documents_of(split)):
            raise ProvenanceError(f"{split} has {documents:,} documents, asked for number {number:,}")
        _, part, row = self.numbers.row(self.numbers.first_of(split) + number)
        return record_at(self.documents[split].parts[part], row, columns)

    def _found(self, name: str, key: int, wanted: dict[str, Any]) -> Iterator[int]:
        """Yield the documents of a hash whose record has what is wanted, by number."""
        hashes, documents = self._maps[name]
        first, end = bisect_left(hashes, key), bisect_right(hashes, key)  # by item: `searchsorted` may copy the map
        self._require_hashes(name, max(0, first - 1), min(end + 1, len(hashes)))
        for _, group in groupby(documents[first:end].tolist(), self.numbers.part_of):
            own = list(group)
            split, index, row = self.numbers.row(own[0])
            rows = [row + document - own[0] for document in own]
            records = records_at(self.documents[split].parts[index], rows, tuple(wanted))
            yield from (document for document, record in zip(own, records, strict=True) if record == wanted)

    def _require_hashes(self, name: str, first: int, end: int) -> None:
        """Check that the entries [first, end) have the hashes of their records; those next to a place where none is.

        A search ends next to an entry that was changed, so what it does not find is not there.
        """
        hashes, documents = self._maps[name]
        for key, document in zip(hashes[first:end].tolist(), documents[first:end].tolist(), strict=True):
            split, index, row = self.numbers.row(document)
            record = record_at(self.documents[split].parts[index], row, _ID if name == "ids" else ADDRESS_COLUMNS)
            own = hash_of_address(Address(**record)) if name == "addresses" else None
            if name == "ids" and record["id"] is not None:
                own = hash_of_id(**record)
            require_consistent_index(
                own == key, f"the index of documents ({name}_hashes.npy)", f"{split} document {record} has another hash"
            )


def open_document_index(index: Artifact | Path, documents: Mapping[str, Shards]) -> DocumentIndex:
    """Open the index of splits.

    Args:
        documents: the splits that it was made of, by name.

    Raises:
        ProvenanceError: it is no such index, or one of other documents.
    """
    folder = folder_of(index)
    described, numbers = read_index(folder, DOCUMENT_INDEX_FORMAT, "documents")
    for split in described["splits"]:
        name = split["name"]
        if name not in documents or (found := documents[name].root_digest) != split["digest"]:
            has = f"{found[:16]}" if name in documents else "none"
            raise ProvenanceError(
                f"{folder} is the index of {name} documents {split['digest'][:16]}, given are {has}: run the pipeline "
                "that makes the index again"
            )
        require_rows(numbers, name, documents[name].part_rows)
        if len(split["part_names"]) != split["parts"]:
            raise ProvenanceError(f"{folder / DESCRIPTION_FILE} names {len(split['part_names']):,} parts of {name}")
    maps = {
        name: (map_array(folder / f"{name}_hashes.npy", count), map_array(folder / f"{name}_documents.npy", count))
        for name, count in (("ids", described["ids"]), ("addresses", len(numbers)))
    }
    return DocumentIndex(documents, numbers, tuple(described["id_types"]), maps)
