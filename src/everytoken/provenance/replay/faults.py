"""Documents that are missing, and what was found in their place: the rows of ``faults.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, address_fields
from everytoken.provenance.releases import SPLITS
from everytoken.provenance.replay.row_reader import RowReaders

FAULT_ROWS = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),  # gone, changed or ambiguous
        pa.field("split", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),  # of the document in its split
        *address_fields(nullable=True),
        pa.field("id", pa.large_string()),
        pa.field("expected_hash", pa.uint64()),
        pa.field("found_hash", pa.uint64()),  # of what has its id, else of what is at its address; so are these:
        pa.field("found_id", pa.large_string()),
        *(field.with_name(f"found_{field.name}") for field in address_fields(nullable=True)),
    ]
)

FOUND = ("id", *ADDRESS_COLUMNS)
"""Columns of the documents that are read for it."""


class FoundDocuments(NamedTuple):
    """Reads id and address of documents."""

    paths: Sequence[Path]
    readers: RowReaders

    def take(self, parts: np.ndarray, rows: np.ndarray) -> pa.Table:
        """Return `FOUND` of rows of parts, in this order; null where the part is -1."""
        fields = pa.schema([FAULT_ROWS.field(f"found_{name}").with_name(name) for name in FOUND])
        pieces, order = [fields.empty_table()], [np.empty(0, np.int64)]
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            if part < 0:
                pieces.append(pa.table([pa.nulls(len(here), field.type) for field in fields], schema=fields))
            else:
                pieces.append(self.readers.take(self.paths[part], rows[here]).select(FOUND).cast(fields))
            order.append(here)
        return pa.concat_tables(pieces).take(pa.array(np.argsort(np.concatenate(order)))).combine_chunks()


def found_places(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return part and row of what has the id of each row, else of what is at its address; part -1: of nothing."""
    parts = pc.coalesce(batch.column("doc_part"), batch.column("found_part"), pa.scalar(-1, pa.int32()))
    rows = pc.coalesce(batch.column("doc_row"), batch.column("found_at"), pa.scalar(-1, pa.int64()))
    return parts.to_numpy(), rows.to_numpy()


def of_another_id(batch: pa.RecordBatch, instead: pa.Table) -> np.ndarray:
    """Return which rows have no document of their id, and at their address one of another id."""
    at_address = pc.and_(batch.column("doc_part").is_null(), batch.column("found_part").is_valid())
    differ = pc.not_equal(batch.column("id"), instead.column("id").combine_chunks())  # null where one has none
    flags: np.ndarray = pc.and_(at_address, pc.fill_null(differ, False)).to_numpy(zero_copy_only=False)
    return flags


def fault_rows(batch: pa.RecordBatch, reasons: Sequence[str], instead: pa.Table) -> pa.RecordBatch:
    """Return what is missing, `FAULT_ROWS`: rows of the manifest, why, and what `FoundDocuments` gave for them."""
    found = {
        "reason": pa.array(reasons, pa.string()),
        "split": pa.array([SPLITS[split] for split in batch.column("split").to_pylist()]),
        "expected_hash": batch.column("text_hash"),
        "found_hash": pc.coalesce(batch.column("doc_hash"), batch.column("found_hash")),
        **{f"found_{name}": instead.column(name).combine_chunks() for name in FOUND},
        **{name: batch.column(name) for name in ("number", *ADDRESS_COLUMNS, "id")},
    }
    columns = [found[field.name].cast(field.type) for field in FAULT_ROWS]
    return pa.RecordBatch.from_arrays(columns, schema=FAULT_ROWS)
