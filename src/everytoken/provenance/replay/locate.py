"""Documents at their addresses: for each row of the manifest the part and the row of the documents that were read.

An address leads to a part by the shard plan and to a row in it by search, as rows are in the order of their file. The
text that is there must have the hash of the manifest. Rows that are not found so are left to
`everytoken.provenance.replay.match`. Of the documents, four numbers a row are held, of at most `_HELD` parts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everytoken.address import SHARD_INDEX, Address
from everytoken.arrays import Flags, Hashes, Integers
from everytoken.corpus import add_statistics
from everytoken.provenance.hashed_texts import text_hashes
from everytoken.provenance.releases import SPLITS
from everytoken.provenance.replay.manifest_files import read_released_manifest, rows_schema
from everytoken.shards import Part, Rows, Shards, versioned

_IN_SPLIT = (
    pa.field("split", pa.int8(), nullable=False),  # place in SPLITS
    pa.field("number", pa.int64(), nullable=False),  # of the document in its split
)
_PLACES = (
    pa.field("at_part", pa.int32(), nullable=True),  # of the documents that were read; null: not at its address
    pa.field("at_row", pa.int64(), nullable=True),
    pa.field("utf8_bytes", pa.int64(), nullable=True),
    pa.field("found_hash", pa.uint64(), nullable=True),  # of another text at the address, which is in
    pa.field("found_part", pa.int32(), nullable=True),
    pa.field("found_at", pa.int64(), nullable=True),  # row in that part
)

_HELD = 8


class LocatedCounts(TypedDict):
    """Rows of a split in a part of a manifest."""

    rows: int
    excluded: int
    at_address: int
    other_text_at_address: int


# the documents are those of the planned shards: their addresses say the same
@versioned("locate_part", 2, unrecorded=["shards"])
def locate_part(
    part: Part, *, documents: Shards, shards: Sequence[Sequence[Address]], second: Sequence[str] = ()
) -> Rows:
    """Find the documents of one part of all splits at their addresses, split after split.

    Rows are those of the manifest (`rows_schema`) between split and number, and what is at the address.

    Statistics: `LocatedCounts` by split.

    Args:
        shards: for each part of ``documents``, the address of the first row of each file that it was read from.
        second: names of the second scores that the manifest has.

    Raises:
        ProvenanceError: a file of the manifest is not what it should be.
    """
    schema = pa.schema([*_IN_SPLIT, *rows_schema(second), *_PLACES])
    return Rows(schema, _located(part, _Addresses(documents, shards), second, schema))


def _located(
    part: Part, addresses: _Addresses, second: Sequence[str], schema: pa.Schema
) -> Generator[pa.RecordBatch, None, dict[str, LocatedCounts]]:
    counts: dict[str, LocatedCounts] = {}
    for split, number, batch in read_released_manifest(part.value, second):
        rows = batch.num_rows
        there, found = addresses.find(batch)
        expected = batch.column("text_hash")
        told = expected.is_valid().to_numpy(zero_copy_only=False)
        same = there & (~told | (found.hashes == expected.fill_null(0).to_numpy()))
        other = there & ~same
        own = LocatedCounts(
            rows=rows,
            excluded=int(batch.column("is_excluded").true_count),
            at_address=int(np.count_nonzero(same)),
            other_text_at_address=int(np.count_nonzero(other)),
        )
        counts[split] = add_statistics([counts[split], own]) if split in counts else own
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(rows, SPLITS.index(split), np.int8)),
                pa.array(np.arange(number, number + rows)),
                *batch.columns,
                pa.array(found.parts, mask=~same),
                pa.array(found.rows, mask=~same),
                pa.array(found.utf8_bytes, mask=~same),
                pa.array(found.hashes, mask=~other),
                pa.array(found.parts, mask=~other),
                pa.array(found.rows, mask=~other),
            ],
            schema=schema,
        )
    return counts


class _Found(NamedTuple):
    """Where the rows of a batch are; arrays of shape (rows,)."""

    parts: npt.NDArray[np.int32]
    rows: Integers
    utf8_bytes: Integers
    hashes: Hashes


class _Columns(NamedTuple):
    """Of the documents of one part, in the order of files, then rows; arrays of shape (documents,)."""

    files: Integers
    rows: Integers
    utf8_bytes: Integers
    hashes: Hashes


class _Addresses:
    """Finds documents by address."""

    def __init__(self, documents: Shards, shards: Sequence[Sequence[Address]]) -> None:
        self._documents = documents
        self._held: OrderedDict[int, _Columns] = OrderedDict()
        of_file: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for number, of_part in enumerate(shards):
            for source, shard_index, first_row in of_part:
                of_file.setdefault((source, shard_index), []).append((first_row, number))
        self._ranges = {file: np.array(sorted(ranges), np.int64) for file, ranges in of_file.items()}

    def find(self, batch: pa.RecordBatch) -> tuple[Flags, _Found]:
        """Return which rows of the manifest have a document at their address, and where."""
        rows = batch.num_rows
        there, parts = np.zeros(rows, np.bool_), np.full(rows, -1, np.int32)
        found = _Found(parts, np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.uint64))
        wanted = batch.column("row").fill_null(-1).to_numpy()
        of_files: dict[int, list[tuple[int, Integers]]] = {}  # by part: file, rows of the batch
        for file, chosen in _by_file(batch).items():
            if file in self._ranges:
                ranges = self._ranges[file]
                place = np.searchsorted(ranges[:, 0], wanted[chosen], side="right") - 1
                parts[chosen] = np.where(place >= 0, ranges[np.maximum(place, 0), 1], -1)
                for number in np.unique(parts[chosen]).tolist():
                    of_files.setdefault(number, []).append((file[1], chosen[parts[chosen] == number]))
        of_files.pop(-1, None)
        for number, chosen_of_files in sorted(of_files.items()):
            columns = self._columns(number)
            for shard_index, chosen in chosen_of_files:
                begin, end = np.searchsorted(columns.files, [shard_index, shard_index + 1]).tolist()
                at = begin + np.searchsorted(columns.rows[begin:end], wanted[chosen])
                hit = at < end
                hit[hit] = columns.rows[at[hit]] == wanted[chosen[hit]]
                chosen, at = chosen[hit], at[hit]
                there[chosen], found.rows[chosen] = True, at
                found.utf8_bytes[chosen], found.hashes[chosen] = columns.utf8_bytes[at], columns.hashes[at]
        return there, found

    def _columns(self, number: int) -> _Columns:
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        files, rows, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        hashes = [np.empty(0, np.uint64)]
        for batch in self._documents.parts[number].batches([SHARD_INDEX, "row", "utf8_bytes", "text_sha256"]):
            files.append(batch.column(SHARD_INDEX).to_numpy().astype(np.int64))
            rows.append(batch.column("row").to_numpy())
            sizes.append(batch.column("utf8_bytes").to_numpy())
            hashes.append(text_hashes(batch.column("text_sha256"), self._documents.parts[number].name))
        while len(self._held) >= _HELD:
            self._held.popitem(last=False)
        gathered = np.concatenate(files), np.concatenate(rows), np.concatenate(sizes)
        self._held[number] = _Columns(*gathered, np.concatenate(hashes))
        return self._held[number]


def _by_file(batch: pa.RecordBatch) -> dict[tuple[str, int], Integers]:
    """Return which rows of a batch are of each file, by source and shard_index; rows without address are of none."""
    if batch.column("source").null_count == batch.num_rows:
        return {}
    coded = batch.column("source").dictionary_encode()
    sources = coded.indices.fill_null(-1).to_numpy().astype(np.int64)
    keys = sources << 32 | batch.column(SHARD_INDEX).fill_null(0).to_numpy()
    names = coded.dictionary.to_pylist()
    distinct, inverse = np.unique(keys, return_inverse=True)
    return {
        (names[key >> 32], key & 0xFFFFFFFF): np.flatnonzero(inverse == number)
        for number, key in enumerate(distinct.tolist())
        if key >= 0
    }
