"""The files of the annotated stream, as reflections are put into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.reflections.errors import ReflectionError
from everytoken.shards import Artifact, StoredPart
from everytoken.tokens.streams import SIDECAR_FILE, STREAM_KINDS, TOKEN_LENGTHS_FILE, open_indexed

_RANGE_ROWS = 1 << 14
_BATCH_ROWS = 1 << 10  # windows that are looked at together: 4 MB of 2,049 tokens
_SIDECAR = ("doc_id", "text", "token_length")


@dataclass(frozen=True)
class AnnotatedSource:
    """The files of the annotated stream."""

    prefix: Path
    sidecar: Path
    lengths: Path

    @staticmethod
    def of(annotated: Artifact) -> AnnotatedSource:
        """Return those of a made stream."""
        name = STREAM_KINDS["annotated"].name
        prefix = annotated.path(f"{name}.bin").with_suffix("")
        return AnnotatedSource(prefix, annotated.path(SIDECAR_FILE), annotated.path(TOKEN_LENGTHS_FILE))

    def windows(self) -> np.ndarray:
        """Map the windows, (n, window)."""
        return open_indexed(self.prefix).windows()

    def token_lengths(self) -> np.ndarray:
        """Map the content tokens of each window, int32 (n,)."""
        lengths: np.ndarray = np.load(self.lengths, mmap_mode="r" if len(self.windows()) else None)
        return lengths

    def bounds(self) -> list[int]:
        """Return where ranges of windows begin, and the end: at row groups of the sidecar.

        Raises:
            ReflectionError: sidecar, lengths and windows do not have one number of rows.
        """
        with pq.ParquetFile(self.sidecar) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        found = sum(sizes), len(self.token_lengths()), len(self.windows())
        if len(set(found)) > 1:
            raise ReflectionError(
                f"{self.sidecar} has {found[0]:,} rows, {self.lengths.name} {found[1]:,}, and {self.prefix}.bin "
                f"{found[2]:,} windows: they are not of one stream. Run tokenization again"
            )
        bounds = [0]
        for end in np.cumsum(sizes).tolist():
            if end - bounds[-1] >= _RANGE_ROWS or end == found[0]:
                bounds.append(end)
        return bounds if found[0] else [0]

    def sidecar_rows(
        self, first: int, stop: int, columns: Sequence[str] = _SIDECAR
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield columns of the rows [first, stop), some rows at a time, with the number of the first."""
        at = first
        for batch in StoredPart.at(self.sidecar).batches(columns, first):
            rows = min(batch.num_rows, stop - at)
            for start in range(0, rows, _BATCH_ROWS):
                yield at + start, batch.slice(start, min(_BATCH_ROWS, rows - start))
            at += rows
            if at == stop:
                return
