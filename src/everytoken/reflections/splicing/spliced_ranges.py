"""Ranges of the windows of a reflected stream: each is compared with the sidecar and written for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.splicing.alignment import check_first_tokens, check_token_lengths
from everytoken.reflections.splicing.annotated_source import AnnotatedSource
from everytoken.reflections.splicing.reflection_tokens import ReflectionEncoder, open_reflection_encoder
from everytoken.reflections.splicing.run_columns import CanaryRule, ColumnRows, RunColumns, RunRow, RunRows
from everytoken.tokens.encoding import SpelledSpecialToken
from everytoken.tokens.streams import (
    NO_REFLECTION,
    REFLECTION_INDEX_FILE,
    REFLECTION_LENGTHS_FILE,
    TOKEN_LENGTHS_FILE,
    TokenizerFacts,
    splice,
)
from everytoken.tokens.tokenizer import EncodingRules

ARRAYS = (TOKEN_LENGTHS_FILE, REFLECTION_INDEX_FILE, REFLECTION_LENGTHS_FILE)
"""The arrays next to a reflected stream."""


@dataclass
class SplicedCounts:
    """What was written: windows by what became of them, tokens, reasons, identity canaries."""

    windows: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    canaries: Counter[str] = field(default_factory=Counter)

    def add(self, other: SplicedCounts) -> None:
        """Add the counts of another range."""
        for name, counted in vars(self).items():
            counted.update(getattr(other, name))


class TakesWindows(Protocol):
    """Where windows go: into the files of a stream, or to be compared with one."""

    def write(self, first: int, windows: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Take the windows from ``first`` on, (n, window), and their values in each of `ARRAYS`, (n,)."""


@dataclass(frozen=True)
class SpliceJob:
    """What all ranges share."""

    source: AnnotatedSource
    placed: TakesWindows
    named: RunColumns
    facts: TokenizerFacts
    rules: EncodingRules
    budget: int
    marker: str | None
    canaries: CanaryRule


@dataclass(frozen=True)
class SpliceRange:
    """Windows [first, stop), and the pieces of the columns that have their rows."""

    job: SpliceJob
    first: int
    stop: int
    pieces: list[ColumnRows]

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"windows {self.first:,} to {self.stop - 1:,}"


def write_range(task: SpliceRange) -> SplicedCounts:
    """Write a range of windows; return what was written."""
    return _RangeWriter(task.job).write(task)


class _Chosen(NamedTuple):
    """A reflection that is put in: number in the batch, tokens before it, its record."""

    number: int
    place: int
    record: RunRow


class _RangeWriter:
    """Writes ranges of windows."""

    def __init__(self, job: SpliceJob) -> None:
        self._job, self._counts = job, SplicedCounts()
        self._windows, self._lengths = job.source.windows(), job.source.token_lengths()

    def write(self, task: SpliceRange) -> SplicedCounts:
        """Write a range; return what was written."""
        job, records = self._job, RunRows(task.pieces, self._job.named)
        encoder = open_reflection_encoder(job.rules, job.budget, job.marker, job.facts)
        for at, batch in job.source.sidecar_rows(task.first, task.stop):
            here = slice(at, at + batch.num_rows)
            windows, lengths = np.array(self._windows[here]), np.array(self._lengths[here])
            check_token_lengths(at, batch.column("token_length").to_numpy(), lengths)
            check_first_tokens(encoder.encoder, at, batch.column("text").to_pylist(), windows, lengths)
            found = records.below(here.stop)
            chosen = self._chosen(at, found, batch.column("doc_id").to_pylist(), lengths, windows)
            job.placed.write(at, windows, self._spliced(encoder, at, windows, lengths, chosen))
        return self._counts

    def _chosen(
        self,
        first: int,
        found: dict[int, RunRow],
        ids: Sequence[str | None],
        lengths: np.ndarray,
        windows: np.ndarray,
    ) -> list[_Chosen]:
        """Return what is put in; masks what is to be masked."""
        chosen = []
        for number, (doc_id, length) in enumerate(zip(ids, lengths.tolist(), strict=True)):
            record = found.get(first + number)
            place = self._place(first + number, doc_id, length, record)
            if record is None or place is None:
                continue
            if record.canary is None or self._job.canaries == "splice":
                chosen.append(_Chosen(number, place, record))
            elif self._job.canaries == "bare":
                self._counts.windows["bare"] += 1
            else:
                windows[number], lengths[number] = windows[number, length], 0  # EOS, which follows the content
                self._counts.windows["masked"] += 1
        return chosen

    def _place(self, row: int, doc_id: str | None, length: int, record: RunRow | None) -> int | None:
        """Return the tokens before a reflection; None, and the reason counted, where there is none."""
        reason = None
        if not length:
            reason = "no content"
        elif record is None:
            reason = "no row"
        elif record.doc_id != doc_id:
            raise ReflectionError(
                f"row {row:,} of the run has the doc_id {record.doc_id!r}, expected {doc_id!r} of the sidecar: they "
                "are of two streams. Generate the run for this one"
            )
        elif not record.is_ok:
            reason = "not ok"
        elif record.text is None or not record.text.strip():
            reason = "blank"
        else:
            place = length if record.place is None else record.place
            if 1 <= place <= length:
                return place
            reason = "no place"
        self._counts.without[reason] += 1
        return None

    def _spliced(
        self, encoder: ReflectionEncoder, first: int, windows: np.ndarray, lengths: np.ndarray, chosen: list[_Chosen]
    ) -> dict[str, np.ndarray]:
        """Put reflections into windows; return the arrays of these."""
        places = np.full(len(windows), NO_REFLECTION, np.int32)
        sizes = np.zeros(len(windows), np.int32)
        inserts: list[np.ndarray | None] = [None] * len(windows)
        for one, ids, is_cut, is_lossy in self._encoded(encoder, first, chosen):
            if ids is None:
                self._counts.without["no tokens"] += 1
                continue
            if (room := windows.shape[1] - 1 - int(lengths[one.number])) < len(ids):
                raise ReflectionError(
                    f"row {first + one.number:,}: its document of {lengths[one.number]:,} tokens leaves {room:,} to a "
                    f"reflection, which has {len(ids):,}. tokenization.reflection_budget was raised since the "
                    "annotated stream was made: run tokenization again"
                )
            places[one.number], sizes[one.number], inserts[one.number] = one.place, len(ids), ids
            self._counts.windows.update({"reflected": 1, "cut": int(is_cut), "lossy": int(is_lossy)})
            if one.record.canary is not None:
                self._counts.canaries[one.record.canary] += 1
        splice(windows, lengths, places, inserts)
        self._counts.tokens.update({"document": int(lengths.sum()), "reflection": int(sizes.sum())})
        return dict(zip(ARRAYS, (lengths + sizes, places, sizes), strict=True))

    def _encoded(
        self, encoder: ReflectionEncoder, first: int, chosen: list[_Chosen]
    ) -> list[tuple[_Chosen, np.ndarray | None, bool, bool]]:
        try:
            made = encoder.encode([str(one.record.text) for one in chosen])
        except SpelledSpecialToken as error:
            raise ReflectionError(f"the reflection of row {first + chosen[error.number].number:,}: {error}") from error
        return list(zip(chosen, made.ids, made.is_cut.tolist(), made.is_lossy.tolist(), strict=True))
