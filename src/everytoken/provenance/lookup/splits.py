"""The parts of a split, of which only those are looked at that a question is about.

A question needs the root digest, the rows of each part, and one part or a few. So these stand in for `Shards` where an
index is asked; that the rows are the right ones shows in their ids and addresses, which are compared with what was
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.dataset_locations import Places, store_head
from everytoken.shards import DamagedStore, Shards, StoredPart, part_name
from everytoken.shards.remote import present


@dataclass(frozen=True)
class UnreadParts:
    """The parts in a folder by their plan position."""

    folder: Path

    def __getitem__(self, index: int) -> StoredPart:
        """Return a part; its digests are not known."""
        try:
            return StoredPart.at(present(self.folder / f"{part_name(index)}.parquet"), index)
        except DamagedStore as error:
            raise ProvenanceError(str(error)) from error


@dataclass(frozen=True)
class UnreadSplit:
    """A split by its folder."""

    root_digest: str
    part_rows: Sequence[int]
    parts: UnreadParts


def unread_splits(places: Places, stores: Mapping[str, str]) -> Mapping[str, Shards]:
    """Return the splits that are there, for `everytoken.provenance.indexes.document_index.open_document_index`."""
    heads = {split: store_head(places.path(dataset)) for split, dataset in stores.items() if places.has(dataset)}
    found = {
        split: UnreadSplit(head["root_digest"], head["part_rows"], UnreadParts(places.path(stores[split])))
        for split, head in heads.items()
    }
    return cast(Mapping[str, Shards], found)
