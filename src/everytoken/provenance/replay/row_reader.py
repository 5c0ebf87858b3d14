"""Rows of a parquet file by their numbers, a row group at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.arrays import Integers
from everytoken.provenance.errors import ProvenanceError

_HELD = 8


class RowReaders:
    """Readers of several files, each with the row group that it read last; at most `_HELD` are open."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._open: OrderedDict[Path, _RowReader] = OrderedDict()

    def take(self, path: Path, rows: Integers) -> pa.Table:
        """Return rows of a file, in the order of ``rows``, int64 (n,).

        Raises:
            ProvenanceError: the file cannot be read, or has no such row.
        """
        if path not in self._open:
            while len(self._open) >= _HELD:
                self._open.popitem(last=False)[1].close()
            try:
                self._open[path] = _RowReader(path, self._columns)
            except (OSError, pa.ArrowException) as error:
                raise ProvenanceError(f"{path} cannot be read ({error}). Run again: it is rebuilt") from error
        self._open.move_to_end(path)
        return self._open[path].take(rows)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class _RowReader:
    def __init__(self, path: Path, columns: list[str]) -> None:
        self._path, self._columns = path, columns
        self._file = pq.ParquetFile(path, page_checksum_verification=True)
        groups = range(self._file.num_row_groups)
        self._starts = np.cumsum([0, *(self._file.metadata.row_group(group).num_rows for group in groups)])
        self._group, self._rows = -1, pa.table({})

    def take(self, rows: Integers) -> pa.Table:
        order = np.argsort(rows, kind="stable")
        groups = np.searchsorted(self._starts, rows[order], side="right") - 1
        if len(rows) and (rows.min() < 0 or groups[-1] >= len(self._starts) - 1):
            raise ProvenanceError(f"{self._path} has {self._starts[-1]:,} rows, asked for {rows.max():,}. Run again")
        pieces = [
            self._read(group).take(pa.array(rows[order[groups == group]] - self._starts[group]))
            for group in np.unique(groups).tolist()
        ]
        taken = pa.concat_tables(pieces) if pieces else self._file.schema_arrow.empty_table().select(self._columns)
        return taken if (np.diff(order) > 0).all() else taken.take(pa.array(np.argsort(order)))

    def _read(self, group: int) -> pa.Table:
        if group != self._group:
            self._group, self._rows = -1, pa.table({})  # let go of one before the other is there
            try:
                self._rows, self._group = self._file.read_row_group(group, self._columns), group
            except (OSError, pa.ArrowException) as error:
                raise ProvenanceError(f"{self._path} cannot be read ({error}). Run again: it is rebuilt") from error
        return self._rows

    def close(self) -> None:
        self._file.close()
