"""Published reflections, found again for the windows of a stream.

A window and a published row belong together when they have the same document id (or both none), the same text that was
trained on, and are the same occurrence of these two (`everytoken.reflections.published.keys`). What finds no partner is
a fault:

- ``changed``: windows and published rows have one id, and these have no text in common;
- ``ambiguous``: windows and published rows of one key differ in number, so which belong together is not certain;
- ``gone``: no window has the id and the text of a published row.

A token index that is not in the text is the fault ``bad_index``. A window whose id no published row has is no fault:
documents without a usable reply are not published. Windows are those of a range of the stream.

A window whose document was taken down has neither id nor text, so it takes no row, and the row of its document is
``gone``. For each such window one row may be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.corpus.upstreams import UpstreamFile
from everytoken.outofcore import ExternalSort, in_order
from everytoken.progress import CountedWork, working
from everytoken.reflections.published.keys import PUBLISHED_SIDE, WINDOW_SIDE, keyed
from everytoken.reflections.published.pairs import LEFT, classified, pair_rows
from everytoken.reflections.published.tables import (
    PublishedTable,
    open_tables,
    read_table,
    stored_columns,
)
from everytoken.reflections.published.trained_text import trained_text
from everytoken.reflections.ranks import sidecar_batches
from everytoken.reflections.registry import GenerationRun, find_generation_run
from everytoken.shards import Artifact, Built, Rows, versioned, write_rows
from everytoken.tokens.encoding import TokenSpans, open_spans
from everytoken.tokens.streams import SIDECAR_FILE, TOKEN_LENGTHS_FILE
from everytoken.tokens.tokenizer import EncodingRules

MATCHED_FILE, MATCH_FAULTS_FILE = "reflections.parquet", "faults.parquet"

PublishedFault = Literal["changed", "ambiguous", "gone", "bad_index"]
PUBLISHED_FAULTS: tuple[PublishedFault, ...] = ("changed", "ambiguous", "gone", "bad_index")
_BAD_INDEX = PUBLISHED_FAULTS.index("bad_index")

_FAULT = np.dtype([("place", np.uint64), ("fault", np.uint64)])
_FAULT_ROWS = pa.schema(
    [
        ("fault", pa.string()),
        ("window", pa.int64()),
        ("file", pa.string()),
        ("file_row", pa.int64()),
        ("doc_id", pa.large_string()),
    ]
)


class MatchedStatistics(TypedDict):
    """Statistics of `match_published_reflections`.

    ``windows`` are those of the range. ``not_published``: of them, those whose id no published row has. ``null_ids``:
    published rows without an id. ``other_lengths``: matched texts that give another number of tokens than their window
    has, when they are encoded again. ``taken_down``: windows without a token, as of documents that were taken down.
    """

    run: str
    published: int
    windows: int
    matched: int
    null_ids: int
    not_published: int
    taken_down: int
    other_lengths: int
    faults: dict[str, int]


@versioned("match_published_reflections", 1, unrecorded=["files", "memory"])
def match_published_reflections(
    folder: Path,
    *,
    stream: Artifact,
    run: str,
    files: Sequence[UpstreamFile],
    digests: Sequence[str],
    rules: EncodingRules,
    rows: tuple[int, int],
    memory: int,
) -> Built:
    """Write ``reflections.parquet`` (row, doc_id and the stored columns of the run, by row) and ``faults.parquet``.

    Args:
        folder: of the artifact; also holds temporary files, about 150 bytes a row and the published columns.
        stream: the annotated stream with its sidecar.
        files: of the published reflections, sorted by path.
        rows: windows [first, end) in which reflections are looked for.
        memory: bytes for sorting; positions come on top, 33 bytes a published row.

    Raises:
        ReflectionError: a file lacks a column or is damaged.
        RowError: a file cannot be had, or is not the planned one.
    """
    for file, digest in zip(files, digests, strict=True):
        file.require(digest)
    chosen, _ = find_generation_run(run)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sort-") as scratch:
        matching = _Matching(stream, chosen, open_tables(files, chosen), rules, rows, memory, Path(scratch))
        return Built(matching.write(folder))


@dataclass
class _Matching:
    """The steps of a match; `windows` and `lengths` are arrays on disk, an entry for each published row."""

    stream: Artifact
    run: GenerationRun
    tables: Sequence[PublishedTable]
    rules: EncodingRules
    rows: tuple[int, int]
    memory: int
    scratch: Path

    def __post_init__(self) -> None:
        self.published = self.tables[-1].first + self.tables[-1].rows
        self.windows = self._array("windows", -1)  # the window of each published row, -1 for none
        self.lengths = self._array("lengths", 0)  # its tokens
        self.faults = ExternalSort(_FAULT, self.memory // 4, self.scratch, 1)
        self.null_ids = self.taken_down = 0
        self.counted = dict.fromkeys(PUBLISHED_FAULTS, 0)

    def write(self, folder: Path) -> MatchedStatistics:
        left = ExternalSort(LEFT, self.memory // 4, self.scratch, 2)
        with working("", self.rows[1] - self.rows[0] + self.published, "row") as work:
            for published, window, unpaired in pair_rows(self._keyed(work), self.memory // 2, self.scratch):
                self.windows[published] = window
                left.add(unpaired)
        not_published = self._classify(left)
        other_lengths = self._check_indices()
        matched = write_rows(Rows(self._schema(), self._matched()), folder / MATCHED_FILE).part.rows
        write_rows(Rows(_FAULT_ROWS, self._faults()), folder / MATCH_FAULTS_FILE)
        return MatchedStatistics(
            run=self.run.name,
            published=self.published,
            windows=self.rows[1] - self.rows[0],
            matched=matched,
            null_ids=self.null_ids,
            not_published=not_published,
            taken_down=self.taken_down,
            other_lengths=other_lengths,
            faults={name: count for name, count in self.counted.items() if count},
        )

    def _array(self, name: str, value: int) -> np.memmap[Any, Any]:
        array = np.lib.format.open_memmap(
            self.scratch / f"{name}.npy", mode="w+", dtype=np.int64, shape=(max(self.published, 1),)
        )
        array[:] = value
        return array

    def _sidecar(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        return sidecar_batches(self.stream.path(SIDECAR_FILE), *self.rows, columns)

    def _keyed(self, work: CountedWork) -> Iterator[npt.NDArray[Any]]:
        spans = open_spans(self.rules)
        for first, batch in self._sidecar(["doc_id", "text", "token_length"]):
            ids, whole, lengths = (batch.column(name).to_pylist() for name in ("doc_id", "text", "token_length"))
            kept = [trained_text(spans, *one).text for one in zip(whole, lengths, strict=True)]
            is_there = np.array(lengths) > 0
            self.taken_down += len(is_there) - int(np.count_nonzero(is_there))
            yield keyed(WINDOW_SIDE, first, ids, kept)[is_there]
            work.add(len(ids))
        for table in self.tables:
            for some in self._keyed_table(table, spans):
                yield some
                work.add(len(some))

    def _keyed_table(self, table: PublishedTable, spans: TokenSpans) -> Iterator[npt.NDArray[Any]]:
        first = table.first
        for batch in read_table(table, ["doc_id", "text", *table.length_column]):
            ids, whole = (batch.column(name).to_pylist() for name in ("doc_id", "text"))
            lengths = batch.column(2).to_pylist() if table.length_column else [None] * len(whole)
            kept = [trained_text(spans, *one) for one in zip(whole, lengths, strict=True)]
            self.null_ids += sum(doc_id is None for doc_id in ids)
            self.lengths[first : first + len(kept)] = [one.tokens for one in kept]
            yield keyed(PUBLISHED_SIDE, first, ids, [one.text for one in kept])
            first += len(kept)

    def _classify(self, left: ExternalSort) -> int:
        not_published = 0
        for places, faults in classified(left.sorted(), self.scratch):
            not_published += int(np.count_nonzero(faults < 0))
            self._add_faults(places[faults >= 0], faults[faults >= 0])
        return not_published

    def _add_faults(self, places: npt.NDArray[np.uint64], faults: npt.NDArray[np.int64]) -> None:
        records = np.empty(len(places), _FAULT)
        records["place"], records["fault"] = places, faults
        self.faults.add(records)
        for name, count in zip(PUBLISHED_FAULTS, np.bincount(faults, minlength=len(PUBLISHED_FAULTS)), strict=True):
            self.counted[name] += int(count)

    def _check_indices(self) -> int:
        """Take out the rows with an index outside their text; return `MatchedStatistics.other_lengths`."""
        of_windows = np.load(self.stream.path(TOKEN_LENGTHS_FILE), mmap_mode="r")
        other = 0
        for table in self.tables:
            first = table.first
            for batch in read_table(table, ["doc_id", *([self.run.index_column] if self.run.index_column else [])]):
                here = slice(first, first + batch.num_rows)
                windows = self.windows[here]
                content = np.where(windows < 0, 0, of_windows[np.maximum(windows, 0)])
                other += int(np.count_nonzero((windows >= 0) & (self.lengths[here] != content)))
                if self.run.index_column is not None:
                    index = batch.column(1).fill_null(-1).to_numpy().astype(np.int64)
                    bad = np.flatnonzero((windows >= 0) & ((index < 0) | (index > content)))
                    self._add_faults(
                        (bad + first).astype(np.uint64) | np.uint64(PUBLISHED_SIDE << 63), np.full(len(bad), _BAD_INDEX)
                    )
                    self.windows[first + bad] = -1
                first += batch.num_rows
        return other

    def _schema(self) -> pa.Schema:
        of_run = self.run.schema()
        own = [of_run.field(name) for name in stored_columns(self.run)]
        return pa.schema([pa.field("row", pa.int64()), pa.field("doc_id", pa.large_string()), *own])

    def _matched(self) -> Generator[pa.RecordBatch, None, dict[str, int]]:
        """Yield the matched rows in the order of their windows."""
        matched = self.windows[self.windows >= 0]
        position = np.empty(len(matched), np.int64)
        position[np.argsort(matched)] = np.arange(len(matched))
        del matched
        ordered = in_order(self._rows_with_windows(), position, memory=self.memory, scratch=self.scratch)
        with closing(ordered):
            yield from ordered
        return {}

    def _rows_with_windows(self) -> Iterator[pa.RecordBatch]:
        schema = self._schema()
        for table in self.tables:
            first = table.first
            for batch in read_table(table, schema.names[1:]):
                windows = self.windows[first : first + batch.num_rows]
                rows = np.flatnonzero(windows >= 0)
                taken = batch.take(pa.array(rows))
                columns = [
                    column.cast(field.type) for column, field in zip(taken.columns, list(schema)[1:], strict=True)
                ]
                made = pa.RecordBatch.from_arrays([pa.array(windows[rows]), *columns], schema=schema)
                yield _without_blank_canaries(made, self.run)
                first += batch.num_rows

    def _faults(self) -> Generator[pa.RecordBatch, None, dict[str, int]]:
        """Yield the faults, those of windows first, each with the id of its document."""
        pending, waiting = self.faults.sorted(), np.empty(0, _FAULT)
        for batch in self._documents() if any(self.counted.values()) else ():
            end = batch.place + len(batch.ids)
            while not len(waiting) or waiting["place"][-1] < end:
                if (more := next(pending, None)) is None:
                    break
                waiting = np.concatenate([waiting, more])
            here, waiting = np.split(waiting, [np.searchsorted(waiting["place"], np.uint64(end))])
            if len(here):
                yield batch.faults(here)
        return {}

    def _documents(self) -> Iterator[_Documents]:
        """Yield the ids of all documents by place: windows, then published rows."""
        for first, batch in self._sidecar(["doc_id"]):
            yield _Documents((WINDOW_SIDE << 63) + first, batch.column(0).to_pylist(), None, first)
        for table in self.tables:
            row = 0
            for batch in read_table(table, ["doc_id"]):
                yield _Documents(
                    (PUBLISHED_SIDE << 63) + table.first + row, batch.column(0).to_pylist(), table.file.path, row
                )
                row += batch.num_rows


@dataclass(frozen=True)
class _Documents:
    """Documents one after the other: the place of the first, and its row in the file; ``file`` None: windows."""

    place: int
    ids: list[str | None]
    file: str | None
    row: int

    def faults(self, found: npt.NDArray[Any]) -> pa.RecordBatch:
        """Return the rows of these faults, `_FAULT` (n,)."""
        offsets = (found["place"] - np.uint64(self.place)).astype(np.int64)
        nothing = [None] * len(found)
        rows = (self.row + offsets).tolist()
        return pa.RecordBatch.from_arrays(
            [
                pa.array([PUBLISHED_FAULTS[fault] for fault in found["fault"].tolist()], pa.string()),
                pa.array(rows if self.file is None else nothing, pa.int64()),
                pa.array([self.file] * len(found), pa.string()),
                pa.array(nothing if self.file is None else rows, pa.int64()),
                pa.array([self.ids[offset] for offset in offsets.tolist()], pa.large_string()),
            ],
            schema=_FAULT_ROWS,
        )


def _without_blank_canaries(batch: pa.RecordBatch, run: GenerationRun) -> pa.RecordBatch:
    """Return rows whose empty canaries are null."""
    if run.canary_column is None:
        return batch
    place = batch.schema.get_field_index(run.canary_column)
    canaries = batch.column(place)
    blank = pc.equal(canaries, "")
    return batch.set_column(
        place, batch.schema.field(place), pc.if_else(blank, pa.scalar(None, canaries.type), canaries)
    )
