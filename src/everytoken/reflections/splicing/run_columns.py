"""The columns of a run that a stream is made of: which they are, and their rows by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.registry import find_generation_run
from everytoken.shards import Part, Shards

CanaryRule = Literal["splice", "bare", "drop"]

IS_OK = "ok"
"""The ``status`` of a row whose reply was taken."""

_BY_VOICE = "reflection_"


@dataclass(frozen=True)
class RunColumns:
    """The columns of a run.

    Attributes:
        kind: name of the kind of stream that the run makes.
        voice: ``1p`` or ``3p``; of a run with one text, its field in the reply.
        text: of what is spliced.
        index: content tokens before it; None: it comes at the end of the content.
        canary: name of the identity canary in it, or null; None: the run draws none.
    """

    kind: str
    voice: str
    text: str
    index: str | None
    canary: str | None

    @property
    def read(self) -> list[str]:
        """The columns that are read."""
        own = [self.text, self.index, self.canary]
        return ["row", "doc_id", "status", *(name for name in own if name is not None)]


def columns_of_run(name: str, voice: str) -> RunColumns:
    """Return the columns of a run; the voice chooses among its texts, where it has several.

    Raises:
        ReflectionError: there is no such run, it makes no stream, or it has no such voice.
    """
    run, _ = find_generation_run(name)
    if run.stream is None:
        raise ReflectionError(f"the run {name} makes no stream: its texts are columns alone")
    texts = {field: column for column, field in run.text_columns.items()}
    spoken = {field.removeprefix(_BY_VOICE): column for field, column in texts.items() if field.startswith(_BY_VOICE)}
    if not spoken:
        ((field, column),) = texts.items()
        return RunColumns(run.stream, field, column, run.index_column, run.canary_column)
    if voice not in spoken:
        raise ReflectionError(
            f"the run {name} has the voices {', '.join(spoken)}, and reflection.splice.voice is {voice!r}: choose one "
            "of these"
        )
    return RunColumns(run.stream, voice, spoken[voice], run.index_column, run.canary_column)


class RunRow(NamedTuple):
    """What a run has for a row; ``place``: the content tokens before it, None: all of them."""

    doc_id: str | None
    is_ok: bool
    text: str | None
    place: int | None
    canary: str | None


@dataclass(frozen=True)
class ColumnRows:
    """Rows [first, end) of a part of the columns."""

    part: Part
    first: int
    end: int


def pieces_by_range(columns: Shards, bounds: Sequence[int], named: RunColumns) -> list[list[ColumnRows]]:
    """Return, for the windows between each two bounds, the pieces of parts that have their rows.

    Memory: 8 bytes a row of one part.

    Args:
        columns: of a run, with the number of the window of each row in ``row``, ascending.
        bounds: ascending, from 0 to the number of windows.

    Raises:
        ReflectionError: a part lacks a column, or rows do not ascend or have no window.
    """
    pieces: list[list[ColumnRows]] = [[] for _ in bounds[1:]]
    last = -1
    for part in columns:
        if missing := [name for name in named.read if name not in part.schema.names]:
            raise ReflectionError(f"{part.name} has no column {missing}, only {part.schema.names}. Merge the run again")
        rows = _rows_of(part)
        if len(rows) and (rows[0] <= last or (np.diff(rows) <= 0).any()):
            raise ReflectionError(f"{part.name}: its rows do not ascend after {last:,}. Merge the run again")
        last = int(rows[-1]) if len(rows) else last
        if last >= bounds[-1] or (len(rows) and rows[0] < 0):
            raise ReflectionError(
                f"{part.name} has rows {int(rows[0]):,} to {last:,}, the annotated stream has {bounds[-1]:,} windows: "
                "they are of another stream. Generate the run for this one"
            )
        cuts = np.searchsorted(rows, bounds).tolist()
        for number, (first, end) in enumerate(pairwise(cuts)):
            if first < end:
                pieces[number].append(ColumnRows(part, first, end))
    return pieces


def _rows_of(part: Part) -> np.ndarray:
    found = [batch.column(0).to_numpy() for batch in part.batches(["row"])]
    return np.concatenate([np.empty(0, np.int64), *found])


class RunRows:
    """The records of pieces, in the order of their rows."""

    def __init__(self, pieces: Sequence[ColumnRows], named: RunColumns) -> None:
        self._named = named
        self._batches = self._read(pieces)
        self._held: pa.RecordBatch | None = None

    def below(self, stop: int) -> dict[int, RunRow]:
        """Return the records of rows below ``stop`` that no call returned before, by row."""
        found: dict[int, RunRow] = {}
        while True:
            batch = self._held if self._held is not None else next(self._batches, None)
            if batch is None:
                return found
            count = int(np.searchsorted(batch.column("row").to_numpy(), stop))
            found |= dict(map(self._record, batch.slice(0, count).to_pylist()))
            self._held = batch.slice(count) if count < batch.num_rows else None
            if self._held is not None:
                return found

    def _read(self, pieces: Sequence[ColumnRows]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            left = piece.end - piece.first
            for batch in piece.part.batches(self._named.read, piece.first):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    break

    def _record(self, values: dict[str, Any]) -> tuple[int, RunRow]:
        named = self._named
        index = None if named.index is None else values[named.index]
        canary = None if named.canary is None else values[named.canary] or None
        if named.index is not None and index is None:
            index = -1
        record = RunRow(values["doc_id"], values["status"] == IS_OK, values[named.text], index, canary)
        return values["row"], record
