"""Single rows of stored parts: what is read is the row groups from the first to the last of them, in few columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import numpy as np
import pyarrow as pa

from everytoken.provenance.errors import ProvenanceError
from everytoken.shards import Part


def record_at(part: Part, row: int, columns: Sequence[str]) -> dict[str, Any]:
    """Return a row of a part as Python values by column.

    Raises:
        ProvenanceError: there is no such row.
    """
    (found,) = records_at(part, [row], columns)
    return found


def records_at(part: Part, rows: Sequence[int], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield rows of a part, whose numbers ascend, as Python values by column.

    Raises:
        ProvenanceError: there is no such row.
    """
    if not len(rows):
        return
    if not 0 <= rows[0] <= rows[-1] < part.rows:
        raise ProvenanceError(f"{part.name} has {part.rows:,} rows, asked for row {rows[0]:,} to {rows[-1]:,}")
    names, first, done = list(columns), rows[0], 0
    with closing(cast(Generator[pa.RecordBatch, None, None], part.batches(names, first_row=first))) as batches:
        for batch in batches:
            own = [row - first for row in rows[done : int(np.searchsorted(rows, first + batch.num_rows))]]
            for row in own:
                yield batch.slice(row, 1).select(names).to_pylist()[0]
            first, done = first + batch.num_rows, done + len(own)
            if done == len(rows):
                return
