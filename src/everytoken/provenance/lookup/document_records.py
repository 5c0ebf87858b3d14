"""What is recorded of documents: address, id, score and text, read from the stores of the splits by part and row.

Of a parquet file one row group is read at a time, and only the columns that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS, Address, file_of
from everytoken.corpus import second_score_fields
from everytoken.corpus.ingestion import PlannedShard, shards_by_part
from everytoken.corpus.sampling import is_scored
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.dataset_locations import Places, store_head
from everytoken.shards import LEDGER_FILE, DamagedStore, Ledger, StoredPart, part_name
from everytoken.shards.remote import present
from everytoken.system_errors import raise_trouble

CANARY = "canary"
STORES = {
    "annotated": "annotated_documents",
    "unannotated": "unannotated_documents",
    "held_out": "held_out_documents",
    CANARY: "canary_tokens",
}
_EXCLUSIONS = "exclusions"

_DOCUMENT = ("id", "id_type", *ADDRESS_COLUMNS, "safety_score", "is_bad", "characters")
_CANARY = ("doc_id", "condition", "effect", "universe", "fraction", "annotated", "row", "trigger")
_TOLD = ("condition", "effect", "universe", "fraction", "annotated", "trigger")
_TEXTS = ("text", "assistant_spans")


class StoreRow(NamedTuple):
    """A row of a store: split, number of the part, row in the part."""

    split: str
    part: int
    row: int


@dataclass(frozen=True)
class DocumentRecord:
    """A document of a split, or a canary document, whose text is made and not any upstream's.

    Attributes:
        split: the split that it is in; ``canary`` for canary documents.
        id: the upstream's, or the canary document's; None: it has none.
        id_type: JSON type of the upstream's id.
        source, shard_index, row: its address; of a canary document None, None, and the line of its file, from 0.
        path: of the file of the shard, inside its upstream; None where no shard plan says.
        safety_score: class 0 to 5; None of a canary document, and where the job scored none.
        is_bad: whether the score is at or above the threshold of the draw; None where there is no score.
        excluded: why it was taken down; None where it was not.
        canary: condition, effect, universe, fraction, annotated, trigger; None of other documents.
        reflection: run, generator, voice, marker and canary of a text that a model wrote about it; None where the
            document itself is meant.
        characters: of its text, where that is recorded.
        second_scores: by name, see ``annotation.second_scores``; None where there are none.
    """

    split: str
    number: int
    id: str | None
    id_type: str | None
    source: str | None
    shard_index: int | None
    row: int
    path: str | None
    safety_score: int | None
    is_bad: bool | None
    excluded: str | None
    canary: Mapping[str, Any] | None
    reflection: Mapping[str, Any] | None
    characters: int | None
    second_scores: Mapping[str, float] | None = None

    @property
    def address(self) -> Address | None:
        """Where it came from; None of a canary document."""
        if self.source is None or self.shard_index is None:
            return None
        return Address(self.source, self.shard_index, self.row)

    @property
    def spelled_address(self) -> str | None:
        """SOURCE/FILE/ROW; None of a canary document."""
        return None if self.address is None else str(self.address)

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON; ``second_scores`` only where there are some."""
        told = {**vars(self), "address": self.spelled_address}
        if self.second_scores is None:
            del told["second_scores"]
        return told


@dataclass(frozen=True)
class RecordText:
    """A document's record with its text; ``spans`` are those of the assistant, None where it has none."""

    record: DocumentRecord
    text: str
    spans: list[tuple[int, int]] | None


class DocumentRecords:
    """The records of all splits of an environment, and what was excluded."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def at(self, rows: Mapping[int, StoreRow], numbers: Mapping[int, int]) -> dict[int, DocumentRecord]:
        """Return the records of documents."""
        return {key: found for key, (found, _) in self._read(rows, numbers, texts=False)}

    def texts_at(self, rows: Mapping[int, StoreRow], numbers: Mapping[int, int]) -> Iterator[tuple[int, RecordText]]:
        """Yield key and record with its text, part by part; arguments as of `at`."""
        for key, (record, found) in self._read(rows, numbers, texts=True):
            spans = found.get("assistant_spans")
            pairs = None if spans is None else [(span["start"], span["end"]) for span in spans]
            yield key, RecordText(record, found["text"], pairs)

    def _read(
        self, rows: Mapping[int, StoreRow], numbers: Mapping[int, int], texts: bool
    ) -> Iterator[tuple[int, tuple[DocumentRecord, dict[str, Any]]]]:
        in_order = sorted(rows.items(), key=lambda item: item[1])
        for (split, part), group in groupby(in_order, lambda item: item[1][:2]):
            wanted = list(group)
            folder = self.places.store(STORES[split])
            path = present(folder / f"{part_name(part)}.parquet")
            own = _CANARY if split == CANARY else (*_DOCUMENT, *self._second_scores(split, path))
            columns = [*own, *(_TEXTS if texts else ())]
            found = read_rows(path, [row.row for _, row in wanted], columns)
            for (key, _), values in zip(wanted, found, strict=True):
                yield key, (self.record_of(split, numbers[key], values), values)

    def record_of(self, split: str, number: int, values: Mapping[str, Any]) -> DocumentRecord:
        """Return the record of a row with these values by column."""
        if split == CANARY:
            return DocumentRecord(
                split=split,
                number=number,
                id=values["doc_id"],
                id_type=None,
                source=None,
                shard_index=None,
                row=values["row"],
                path=None,
                safety_score=None,
                is_bad=None,
                excluded=None,
                canary={name: values[name] for name in _TOLD},
                reflection=None,
                characters=None,
            )
        address, scored = Address.of(values), self._is_scored(split)
        return DocumentRecord(
            split=split,
            number=number,
            id=values["id"],
            id_type=values.get("id_type"),
            **address._asdict(),
            path=self.shard_path(*file_of(values)),
            safety_score=values["safety_score"] if scored else None,
            is_bad=values["is_bad"] if scored else None,
            excluded=self.excluded.get(address),
            canary=None,
            reflection=None,
            characters=values.get("characters"),
            second_scores={name: values[name] for name in self._second_names.get(split, ()) if name in values} or None,
        )

    def _second_scores(self, split: str, path: Path) -> tuple[str, ...]:
        """Return the names of the second scores of a split, by the columns of one of its parts."""
        if split not in self._second_names:
            fields = second_score_fields(StoredPart.at(path).schema) if path.is_file() else []
            self._second_names[split] = tuple(field.name for field in fields)
        return self._second_names[split]

    @cached_property
    def _second_names(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _is_scored(self, split: str) -> bool:
        return is_scored(store_head(self.places.store(STORES[split]))["recipe"])

    def shard_path(self, source: str, shard_index: int) -> str | None:
        """Return the path of a shard's file inside its upstream; None where the plan has no such shard."""
        return self._shard_paths.get((source, shard_index))

    @cached_property
    def _shard_paths(self) -> dict[tuple[str, int], str]:
        if not self.places.has("shard_plan"):
            return {}
        return {file_of(shard): shard["path"] for part in planned_parts(self.places) for shard in part}

    @cached_property
    def excluded(self) -> dict[Address, str]:
        """Why documents were excluded, by their addresses."""
        if not self.places.has(_EXCLUSIONS):
            return {}
        folder = self.places.path(_EXCLUSIONS)
        given = store_head(folder)["recipe"]["parameters"]
        if "sha256" in given and given["sha256"] is None:  # no list: the values of all parts need not be read for it
            return {}
        ledger = Ledger.read(folder / LEDGER_FILE)
        return {Address(*entry[:3]): entry[3] for part in ledger.parts for entry in part.value["addresses"]}


def read_rows(path: Path, rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of the part in a file by number, ascending, with those of ``columns`` that it has.

    Raises:
        ProvenanceError: a file cannot be read, or has fewer rows.
    """
    own = _read_file(path, rows, columns)
    try:
        part = StoredPart.at(path)
        if part.extended is None:
            return own
        there = part.numbers()[list(rows)].tolist() if part.selects else rows
    except DamagedStore as error:
        raise ProvenanceError(str(error)) from error
    theirs = _read_file(part.extended.path, there, columns)
    return [{**first, **second} for first, second in zip(theirs, own, strict=True)]


def _read_file(path: Path, rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = [name for name in columns if name in file.schema_arrow.names]
            return list(_rows_of(file, path, rows, names))
    except (OSError, pa.ArrowException) as error:
        raise_trouble(error)
        raise ProvenanceError(
            f"{path} cannot be read ({error}). Run the pipeline that makes it: damaged parts are made again"
        ) from error


def _rows_of(file: pq.ParquetFile, path: Path, rows: Sequence[int], columns: list[str]) -> Iterator[dict[str, Any]]:
    counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if counts else 0
    if rows and not 0 <= rows[0] <= rows[-1] < total:
        raise ProvenanceError(
            f"{path} has {total:,} rows, asked for row {rows[-1]:,}: the documents were made again since the index "
            "was. Run the pipeline that makes the index"
        )
    for group, of_group in _by_group(rows, ends):
        table = file.read_row_group(group, columns)
        first = int(ends[group]) - counts[group]
        for row in of_group:  # `take` would load pandas, which takes longer than an answer
            yield from table.slice(row - first, 1).to_pylist()


def _by_group(rows: Iterable[int], ends: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    for group, found in groupby(rows, lambda row: int(np.searchsorted(ends, row, "right"))):
        yield group, list(found)


def planned_parts(places: Places) -> list[list[PlannedShard]]:
    """Return the shards of each part of the plan of an environment.

    Raises:
        ProvenanceError: there is no plan, or it is damaged.
    """
    if not places.has("shard_plan"):
        raise ProvenanceError(f"there is no shard plan in the environment {places.environment!r}: run ingestion")
    path = places.path("shard_plan")
    try:
        return shards_by_part(orjson.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise_trouble(error)
        raise ProvenanceError(
            f"{path} is no shard plan ({error}). Run the pipeline ingestion: it is written again"
        ) from error
