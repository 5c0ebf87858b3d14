"""Numbers of documents: which row of which part of which split each is.

A document's number in a split is its row over all parts of the split in plan order. Where an index is of several
splits, their documents are numbered on in the order of the splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array
from everytoken.shards import Shards

FIRST_ROWS_FILE = "first_rows.npy"


class SplitCounts(TypedDict):
    """A split in the description of an index."""

    name: str
    parts: int
    documents: int


@dataclass(frozen=True)
class DocumentPlace:
    """A document by its number in a split."""

    split: str
    number: int


@dataclass(frozen=True, eq=False)
class DocumentNumbers:
    """The numbers of the documents of some splits; 8 bytes a part.

    Attributes:
        first_parts: the parts before each split, and all: (splits + 1,).
        first_rows: the documents before each part of all splits, and all: uint64 (parts + 1,).
    """

    splits: tuple[str, ...]
    first_parts: tuple[int, ...]
    first_rows: np.ndarray

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.first_rows[-1])

    def first_of(self, split: str) -> int:
        """Return the number of the first document of a split.

        Raises:
            ProvenanceError: there is no such split.
        """
        return int(self.first_rows[self.first_parts[self._split(split)]])

    def documents_of(self, split: str) -> int:
        """Return how many documents a split has."""
        number = self._split(split)
        return int(self.first_rows[self.first_parts[number + 1]]) - self.first_of(split)

    def place(self, document: int) -> DocumentPlace:
        """Return the split and the number in it."""
        split = self.splits[self._split_of_part(self.part_of(document))]
        return DocumentPlace(split, document - self.first_of(split))

    def row(self, document: int) -> tuple[str, int, int]:
        """Return the split, the plan position of the part in it, and the row in the part.

        Raises:
            ProvenanceError: there is no such document.
        """
        part = self.part_of(document)
        split = self._split_of_part(part)
        return self.splits[split], part - self.first_parts[split], document - int(self.first_rows[part])

    def number(self, split: str, part_index: int, row: int) -> int:
        """Return the number of a row, over all splits.

        Raises:
            ProvenanceError: there is no such split, part or row.
        """
        number = self._split(split)
        parts = self.first_parts[number + 1] - self.first_parts[number]
        if not 0 <= part_index < parts:
            raise ProvenanceError(f"{split} has {parts:,} parts, asked for number {part_index:,}")
        part = self.first_parts[number] + part_index
        rows = int(self.first_rows[part + 1]) - int(self.first_rows[part])
        if not 0 <= row < rows:
            raise ProvenanceError(f"part {part_index:,} of {split} has {rows:,} rows, asked for row {row:,}")
        return int(self.first_rows[part]) + row

    def number_before(self, split: str, part_index: int) -> int:
        """Return how many documents are before a part, over all splits: the number of its first one, if it has any."""
        return int(self.first_rows[self.first_parts[self._split(split)] + part_index])

    def part_of(self, document: int) -> int:
        """Return the number of the part that holds a document, over all splits.

        Raises:
            ProvenanceError: there is no such document.
        """
        if not 0 <= document < len(self):
            raise ProvenanceError(
                f"there is no document {document:,}: {', '.join(self.splits)} have {len(self):,} documents"
            )
        return int(np.searchsorted(self.first_rows, np.uint64(document), "right")) - 1

    def _split(self, name: str) -> int:
        if name not in self.splits:
            raise ProvenanceError(f"there is no split {name!r} in this index, only {list(self.splits)}")
        return self.splits.index(name)

    def _split_of_part(self, part: int) -> int:
        return int(np.searchsorted(self.first_parts, part, "right")) - 1


def numbers_of(splits: Mapping[str, Shards]) -> DocumentNumbers:
    """Return the numbers of the documents of splits, in this order."""
    rows = [part.rows for shards in splits.values() for part in shards]
    parts = np.cumsum([0, *(len(shards) for shards in splits.values())])
    return DocumentNumbers(tuple(splits), tuple(parts.tolist()), np.cumsum([0, *rows], dtype=np.uint64))


def write_numbers(folder: Path, numbers: DocumentNumbers) -> list[SplitCounts]:
    """Write ``first_rows.npy``; return what describes the splits."""
    with ArrayWriter(folder / FIRST_ROWS_FILE, np.dtype("<u8")) as writer:
        writer.append(numbers.first_rows)
    return [
        SplitCounts(name=name, parts=end - first, documents=numbers.documents_of(name))
        for name, (first, end) in zip(numbers.splits, pairwise(numbers.first_parts), strict=True)
    ]


def read_numbers(folder: Path, splits: Sequence[SplitCounts]) -> DocumentNumbers:
    """Return what `write_numbers` wrote, in memory: it is asked at every step.

    Raises:
        ProvenanceError: the array is damaged, or not that of these splits.
    """
    parts = np.cumsum([0, *(split["parts"] for split in splits)])
    first_rows = np.array(map_array(folder / FIRST_ROWS_FILE, int(parts[-1]) + 1), np.uint64)
    numbers = DocumentNumbers(tuple(split["name"] for split in splits), tuple(parts.tolist()), first_rows)
    found = [numbers.documents_of(split) for split in numbers.splits]
    expected = [split["documents"] for split in splits]
    if first_rows[0] != 0 or (first_rows[1:] < first_rows[:-1]).any() or found != expected:
        raise ProvenanceError(
            f"{folder / FIRST_ROWS_FILE} counts {found} documents of {list(numbers.splits)}, expected {expected}, or "
            "does not ascend: it is damaged. Run the pipeline that makes the index again"
        )
    return numbers


def require_rows(numbers: DocumentNumbers, split: str, rows: Sequence[int]) -> None:
    """Check that the parts of a split have as many rows as its store says: numbers of documents follow from that.

    Raises:
        ProvenanceError: they have not.
    """
    part = numbers.first_parts[numbers.splits.index(split)]
    until = numbers.first_parts[numbers.splits.index(split) + 1]
    found = np.diff(numbers.first_rows[part : until + 1].astype(np.int64)).tolist()
    if found != list(rows):
        first = next((i for i, (one, other) in enumerate(zip(found, rows, strict=False)) if one != other), None)
        what = (
            f"has {len(found):,} parts, its store {len(rows):,}"
            if first is None
            else f"has {found[first]:,} documents in part {first:,}, its store {rows[first]:,}"
        )
        raise ProvenanceError(
            f"the index ({FIRST_ROWS_FILE}) {what} of {split}: it is damaged, or of other documents. Run the pipeline "
            "that makes it again"
        )
