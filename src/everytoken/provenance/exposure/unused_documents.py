"""Why a document is in no split: what the stores of ingestion and the draw say of its address, or of its id.

An address names the file, and so the parts of the plan that were made from it: one part is looked at. An id does not,
so all parts of ``upstream_documents`` and all that was set aside are read for it, a batch at a time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, Address, Addressed, file_of
from everytoken.progress import progress
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup import CANARY, STORES, DocumentRecords, Places, planned_parts, store_head
from everytoken.shards import DamagedStore, StoredPart, part_name, set_aside_path
from everytoken.shards.remote import present

NOT_PLANNED, NO_ROW, NOT_DRAWN, EXCLUDED = "not_planned", "no_such_row", "not_drawn", "excluded"
_REPEATED = re.compile(r"of source (.*), shard (\d+), row (\d+)")  # as `selected_parts` says which document
READ, DROPPED = "upstream_documents", "dropped_documents"


@dataclass(frozen=True)
class Unused(Addressed):
    """A row of an upstream that is in no split.

    Attributes:
        id: the upstream's, where it is known.
        reason: why: a reason of ``upstream_documents`` (set aside as it was read) or of ``dropped_documents``
            (duplicate, ...), ``excluded``, ``not_drawn``, ``no_such_row``, or ``not_planned``: it was not read.
        detail: what more is known; of a duplicate, which document it repeats.
    """

    id: str | None
    reason: str
    detail: str | None

    @property
    def same_text_as(self) -> Address | None:
        """The address of the document whose text this one repeats; None of one that is no duplicate."""
        found = None if self.reason != "duplicate" else _REPEATED.fullmatch(self.detail or "")
        return None if found is None else Address(str(ast.literal_eval(found[1])), int(found[2]), int(found[3]))

    @property
    def told(self) -> str:
        """What more is known, with an address as it is spelled elsewhere; empty where nothing is."""
        return self.detail or "" if self.same_text_as is None else f"of {self.same_text_as}"

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {**vars(self), "address": str(self.address), "told": self.told}


def unused_at(records: DocumentRecords, address: Address) -> Unused:
    """Return why no split has a document with this address.

    Raises:
        ProvenanceError: what ingestion read is not there any more.
    """
    planned = list(_parts_of(records.places, address))
    known = records.shard_path(address.source, address.shard_index)
    if not planned:
        missing = f"no part with row {address.row} of {known}" if known else "no such file"
        return Unused(*address, None, NOT_PLANNED, f"the shard plan has {missing}")
    wanted = _is_at(address)
    for index in planned:
        if (found := next(_left_out(records.places, index, wanted), None)) is not None:
            return found
        path = _part(records.places, READ, index)
        for values in _matching(path, [*ADDRESS_COLUMNS, "id"], wanted):
            return _not_drawn(records, values, index)
    return Unused(*address, None, NO_ROW, f"{known} has no such row")


def _is_at(address: Address) -> pc.Expression:
    """Return the condition that a row has this address."""
    return reduce(and_, (pc.field(name) == value for name, value in address._asdict().items()))


def unused_with_id(records: DocumentRecords, id: str, used: set[Address]) -> Iterator[Unused]:
    """Yield every row with an id that is in no split. A scan of all ids that were read.

    Args:
        used: addresses of the documents with this id that are in a split.
    """
    wanted = pc.field("id") == id
    parts = len(planned_parts(records.places))
    for index in progress(range(parts), parts, "looking for the id among what was read"):
        left = list(_left_out(records.places, index, wanted))
        yield from left
        known = {one.address for one in left} | used
        for values in _matching(_part(records.places, READ, index), [*ADDRESS_COLUMNS, "id"], wanted):
            if Address.of(values) not in known:
                yield _not_drawn(records, values, index)


def rows_read(places: Places) -> dict[str, int]:
    """Return how many documents were read (``read``), and how many of these were dropped (``dropped``)."""
    return {
        name: int(store_head(places.store(dataset))["rows"]) for name, dataset in (("read", READ), ("dropped", DROPPED))
    }


def _not_drawn(records: DocumentRecords, values: dict[str, Any], index: int) -> Unused:
    address = Address.of(values)
    _require_absent(records.places, address, index)
    reason = records.excluded.get(address)
    return Unused(*address, values["id"], NOT_DRAWN if reason is None else EXCLUDED, reason)


def _require_absent(places: Places, address: Address, index: int) -> None:
    """Check that no split has a document that its index does not know, where splits have the parts that were read."""
    wanted = _is_at(address)
    for split, dataset in STORES.items():
        path = present(places.path(dataset) / f"{part_name(index)}.parquet") if places.has(dataset) else Path()
        if split != CANARY and path.is_file() and any(_matching(path, list(ADDRESS_COLUMNS), wanted)):
            raise ProvenanceError(
                f"{path} has the document {address}, and the index of documents does not know it: it "
                f"was made of other documents, or by another version. Make it again: kedro run{places.options} "
                "--pipelines provenance"
            )


def _left_out(places: Places, index: int, wanted: pc.Expression) -> Iterator[Unused]:
    """Yield what was set aside as a part was read, and what was dropped of it."""
    aside = set_aside_path(_part(places, READ, index))
    columns = [*ADDRESS_COLUMNS, "id", "reason", "detail"]
    for path in ([aside] if aside.is_file() else []) + [_part(places, DROPPED, index)]:
        for values in _matching(path, columns, wanted):
            yield Unused(**values)


def _matching(path: Path, columns: list[str], wanted: pc.Expression) -> Iterator[dict[str, Any]]:
    try:
        for batch in StoredPart.at(path).batches(columns):
            yield from pa.Table.from_batches([batch]).filter(wanted).to_pylist()
    except DamagedStore as error:
        raise ProvenanceError(str(error)) from error


def _part(places: Places, dataset: str, index: int) -> Path:
    return present(places.store(dataset) / f"{part_name(index)}.parquet")


def _parts_of(places: Places, address: Address) -> Iterator[int]:
    for index, shard in [(index, shard) for index, part in enumerate(planned_parts(places)) for shard in part]:
        if file_of(shard) != (address.source, address.shard_index):
            continue
        if shard["rows"] is None or shard["first_row"] <= address.row < shard["first_row"] + shard["rows"]:
            yield index
