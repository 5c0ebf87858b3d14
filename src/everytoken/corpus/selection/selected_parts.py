"""The parts after the selection: the documents that stay, and those that do not, each with its reason.

Both are made from the same decision; `check_selection_conservation` adds them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.corpus.decontamination import contaminated_rows
from everytoken.corpus.dedup import Duplicates, between
from everytoken.corpus.documents import SET_ASIDE
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection.decisions import DECISIONS, KEPT, Codes, Selection, SelectionStatistics
from everytoken.corpus.statistics import DocumentCounts, RowCounts, TextAmounts
from everytoken.shards import Artifact, Part, Rows, Shards, Unchanged, versioned

TALLIED = ["source", "stratum", "characters", "utf8_bytes"]


@versioned("select_part", 1)
def select_part(part: Part, *, selection: Artifact) -> Rows | Unchanged:
    """Return the documents of a part that stay.

    Returns:
        The part itself where all stay. Statistics as those of `everytoken.corpus.ingestion.ingest.read_part`.
    """
    made = Selection(selection)
    start = made.first_position(part)
    if not made.codes[start : start + part.rows].any():
        tally = Tally()
        for batch in part.batches(TALLIED):
            tally.keep(batch)
        return Unchanged(part, tally.statistics(part.rows))
    return Rows(part.schema, _selected(part, made, start))


class TakenCounts(DocumentCounts, total=False):
    """Statistics of the documents of a part that stay; ``first_uses``, of a mixture: by source, those that no earlier
    part has.
    """

    first_uses: dict[str, int]


@versioned("dropped_part", 1)
def dropped_part(
    part: Part, *, selection: Artifact, duplicates: Artifact | None, contamination: Shards | None = None
) -> Rows:
    """Return the documents of a part that do not stay, of schema `SET_ASIDE`.

    Duplicates name the one they repeat, contaminated ones the evaluation example of their first match.

    Returns:
        Statistics: ``rows_in = kept + set_aside`` by reason.
    """
    made = Selection(selection)
    named = None if duplicates is None else Duplicates(duplicates)
    found = None if contamination is None else contaminated_rows(contamination, part)
    return Rows(SET_ASIDE, _dropped(part, made, made.first_position(part), named, found))


def check_selection_conservation(
    selection: Artifact, taken: Sequence[TakenCounts], dropped: Sequence[RowCounts]
) -> None:
    """Check that every document that was read was taken or is among the dropped, by source and reason.

    Raises:
        SelectionError: the sums differ from what the selection decided.
    """
    used: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for entry in taken:
        strata = entry["by_source"].items()
        once = {source: sum(stratum["rows"] for stratum in by_name.values()) for source, by_name in strata}
        used.update(entry.get("first_uses", once))  # a mixture may use a document again
    for left in dropped:
        reasons.update(left["set_aside"])
    decided = selection.statistics_as(SelectionStatistics)
    by_source = decided["by_source"]
    expected_reasons: Counter[str] = Counter()
    for chosen in by_source.values():
        expected_reasons.update(chosen["set_aside"])
    expected = {
        "documents used by source": {source: entry["kept"] for source, entry in by_source.items() if entry["kept"]},
        "documents dropped by reason": dict(sorted(expected_reasons.items())),
        "documents in all": decided["rows"],
    }
    found = {
        "documents used by source": dict(sorted((source, count) for source, count in used.items() if count)),
        "documents dropped by reason": dict(sorted(reasons.items())),
        "documents in all": used.total() + reasons.total(),
    }
    for what, value in expected.items():
        if found[what] != value:
            raise SelectionError(
                f"{what}: expected {value}, found {found[what]}. A document was lost or made up: make the "
                "documents and the dropped ones again from this selection."
            )


def _selected(part: Part, selection: Selection, start: int) -> Generator[pa.RecordBatch, None, DocumentCounts]:
    tally = Tally()
    for batch in part.batches():
        codes = selection.codes[start : start + batch.num_rows]
        stay = batch.filter(pa.array(codes == KEPT))
        if stay.num_rows:
            yield tally.keep(stay)
        if stay.num_rows < batch.num_rows:
            tally.leave(batch, codes)
        start += batch.num_rows
    return tally.statistics(part.rows)


def _dropped(
    part: Part, selection: Selection, start: int, duplicates: Duplicates | None, contaminated: pa.Table | None
) -> Generator[pa.RecordBatch, None, RowCounts]:
    tally = Tally()
    begin = start
    for batch in part.batches([*ADDRESS_COLUMNS, "id"]):
        codes = selection.codes[start : start + batch.num_rows]
        if codes.any():
            tally.leave(batch, codes)
            details = _details(codes, start, duplicates)
            if contaminated is not None:
                details = _contaminated(details, start - begin, contaminated)
            yield _left(batch, codes, details)
        start += batch.num_rows
    counts = tally.statistics(part.rows)
    set_aside = counts["set_aside"]
    return RowCounts(rows_in=part.rows, kept=part.rows - sum(set_aside.values()), set_aside=set_aside)


def _details(codes: Codes, start: int, duplicates: Duplicates | None) -> list[str | None]:
    """Return which document each of a batch repeats, if any; ``start`` is the position of its first one."""
    details: list[str | None] = [None] * len(codes)
    if duplicates is not None:
        for pairs in (duplicates.exact, duplicates.near):
            here = between(pairs, start, start + len(codes))
            for position, first in zip(here[:, 0].tolist(), duplicates.addresses(here[:, 1]), strict=True):
                details[position - start] = f"of source {first.source!r}, shard {first.shard_index}, row {first.row}"
    return details


def _contaminated(details: list[str | None], start: int, contaminated: pa.Table) -> list[str | None]:
    """Add what contaminates each document of a batch, if anything; ``start`` is the number of its first one."""
    numbers = contaminated["document"].to_numpy()
    low, high = np.searchsorted(numbers, (start, start + len(details))).tolist()
    for row in contaminated.slice(low, high - low).to_pylist():
        details[row["document"] - start] = (
            f"evaluation {row['evaluation']!r}, example {row['example']}, from character {row['start']} to "
            f"{row['end']}; {row['matching_ngrams']} of {row['ngrams']} n-grams match"
        )
    return details


def _left(batch: pa.RecordBatch, codes: Codes, details: list[str | None]) -> pa.RecordBatch:
    """Return the rows of ``batch`` that do not stay, of schema `SET_ASIDE`."""
    rows = np.flatnonzero(codes)
    chosen = batch.select([*ADDRESS_COLUMNS, "id"]).take(pa.array(rows))
    nothing = pa.nulls(len(rows))
    columns = {
        **{name: chosen.column(name) for name in chosen.schema.names},
        "offset": nothing,
        "reason": pa.array([DECISIONS[code] for code in codes[rows]]),
        "detail": pa.array([details[row] for row in rows], pa.string()),
        "raw": nothing,
    }
    return pa.record_batch([columns[field.name].cast(field.type) for field in SET_ASIDE], SET_ASIDE)


class Tally:
    """Counts of what stays and what does not, in the form of `everytoken.corpus.ingestion.ingest.read_part`."""

    def __init__(self) -> None:
        self._set_aside: Counter[str] = Counter()
        self._histogram: Counter[str] = Counter()
        self._strata: dict[tuple[str, str], Counter[str]] = {}
        self._sources: set[str] = set()
        self._kept = 0

    def leave(self, batch: pa.RecordBatch, codes: Codes) -> None:
        """Count the rows of a batch that do not stay."""
        self._sources.update(batch.column("source").unique().to_pylist())
        for code, count in enumerate(np.bincount(codes).tolist()):
            if code != KEPT and count:
                self._set_aside[DECISIONS[code]] += count

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count documents that stay; return them."""
        self._kept += batch.num_rows
        lengths = batch.column("characters").to_numpy()
        bins, counts = np.unique(np.frexp(lengths)[1] - 1, return_counts=True)  # floor(log2), exact below 2**53
        for power, count in zip(bins.tolist(), counts.tolist(), strict=True):
            self._histogram["none" if power < 0 else f"{power:02d}"] += count
        table = pa.Table.from_batches([batch.select(TALLIED)]).group_by(["source", "stratum"], use_threads=False)
        sums = table.aggregate([("characters", "count"), ("characters", "sum"), ("utf8_bytes", "sum")])
        for source, stratum, *amounts in zip(*(column.to_pylist() for column in sums.columns), strict=True):
            entry = self._strata.setdefault((source, stratum), Counter())
            entry.update(dict(zip(("rows", "characters", "utf8_bytes"), amounts, strict=True)))
        return batch

    def statistics(self, rows_in: int) -> DocumentCounts:
        """Return the counts."""
        sources = self._sources.union(source for source, _ in self._strata)
        by_source: dict[str, dict[str, TextAmounts]] = {source: {} for source in sorted(sources)}
        for (source, stratum), amounts in sorted(self._strata.items()):
            by_source[source][stratum] = TextAmounts(
                rows=amounts["rows"], characters=amounts["characters"], utf8_bytes=amounts["utf8_bytes"]
            )
        return {
            "rows_in": rows_in,
            "kept": self._kept,
            "set_aside": dict(sorted(self._set_aside.items())),
            "by_source": by_source,
            "length_histogram": dict(sorted(self._histogram.items())),
        }
