"""Which documents are meant by an id, an address or a text, and what a run read of each: ``everytoken exposure``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.document_index import DocumentIndex, open_document_index
from everytoken.provenance.indexes.document_numbers import DocumentPlace
from everytoken.provenance.indexes.spans import StreamIndex
from everytoken.provenance.questions.document_records import (
    CANARY,
    STORES,
    DocumentRecord,
    DocumentRecords,
    Row,
)
from everytoken.provenance.questions.exposure import DocumentExposure, document_exposure
from everytoken.provenance.questions.runs import OpenRun, Run, open_run, past_of
from everytoken.provenance.questions.stream_documents import index_of_stream
from everytoken.provenance.questions.text_search import canary_documents_with_id, documents_containing
from everytoken.provenance.questions.unread_splits import unread_splits
from everytoken.provenance.questions.unused_documents import Unused, unused_at, unused_with_id
from everytoken.shards import Store

DOCUMENT_INDEX = "document_index"


@dataclass(frozen=True)
class Answer:
    """What is known of the documents that a question is about.

    Attributes:
        runs: the run that was asked about, after those that it began from.
        documents: those that are in a split, as many as were asked for; with them those whose text one repeats that
            was dropped as their duplicate.
        more: how many more there are.
        unused: those that are in no split, and why.
        notes: what is not counted, and why.
    """

    runs: tuple[Run, ...]
    documents: tuple[DocumentExposure, ...]
    more: int
    unused: tuple[Unused, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        run = self.runs[-1]
        return {
            "run": {"name": run.name, "digest": run.digest, "steps": run.steps, "batch_size": run.batch_size},
            "began_from": [{"name": one.name, "digest": one.digest, "steps": one.steps} for one in self.runs[:-1]],
            "documents": [one.to_json() for one in self.documents],
            "more_documents": self.more,
            "not_in_a_split": [one.to_json() for one in self.unused],
            "notes": list(self.notes),
        }


class Questions:
    """Questions about what a run read.

    Args:
        records: of the environment that made its streams.
        run: the run.
        given: where streams of the run lie that are not in the environment, by name.
        checkpoint_folders: where checkpoints of runs are kept.
    """

    def __init__(
        self,
        records: DocumentRecords,
        run: Run,
        given: Mapping[str, Path] | None = None,
        checkpoint_folders: Sequence[Path] = (),
    ) -> None:
        self._records, self._places, self._run = records, records.places, run
        runs, unknown = past_of(self._places, run, checkpoint_folders)
        self._notes = [] if unknown is None else [unknown]
        self._runs: list[OpenRun] = []
        self._indexes: list[dict[str, StreamIndex]] = []
        for one in reversed(runs):
            try:
                self._open(one, given or {})
            except ProvenanceError as error:
                if one is run:
                    raise
                self._notes.append(f"what {one.name} read, and what it began from, is not counted here: {error}")
                break

    def _open(self, run: Run, given: Mapping[str, Path]) -> None:
        names = {name for name, _ in run.streams}
        own = given if run is self._run else {name: path for name, path in given.items() if name in names}
        opened = open_run(self._places, run, own)
        indexes = self._indexes_of(opened)
        self._runs.insert(0, opened)
        self._indexes.insert(0, indexes)

    def _indexes_of(self, opened: OpenRun) -> dict[str, StreamIndex]:
        found: dict[str, StreamIndex] = {}
        for name, folder in opened.folders.items():
            index = index_of_stream(self._places, name, folder, opened.run.seq_length)
            if index is None:
                self._notes.append(
                    f"the stream {name} of {opened.run.name} ({folder}) was not made from documents of this "
                    "environment: what it holds is not counted here"
                )
            else:
                found[name] = index
        for name, compared in opened.compared.items():
            if not compared:
                self._notes.append(f"the stream {name} has no ledger and is large: its digest was not compared")
        return found

    def with_id(self, id: str, *, most: int, at_step: int | None = None, everywhere: bool = False) -> Answer:
        """Return what was read of all documents with an id; arguments and errors as of `at_address`.

        Where no split has the id, or ``everywhere``, all ids that were read are scanned for those in no split.
        """
        places = [*self._index.find_id(id), *canary_documents_with_id(self._places, id)]
        if places and not everywhere:
            return self._answer(places, most, at_step)
        used = {one.address for one in self._records_at(places) if one.address is not None}
        return self._answer(places, most, at_step, unused_with_id(self._records, id, used))

    def at_address(self, source: str, shard_index: int, row: int, *, most: int, at_step: int | None = None) -> Answer:
        """Return what was read of the documents at an address.

        Args:
            source: of the address.
            shard_index: of the address.
            row: of the address.
            most: so many documents are looked at; others are counted.
            at_step: steps of the run that count; None: all.

        Raises:
            ProvenanceError: an index or a store is missing, or not of this making.
        """
        found = self._index.find_address(source, shard_index, row)
        unused = [] if found else [unused_at(self._records, source, shard_index, row)]
        return self._answer(found, most, at_step, unused)

    def containing(self, text: str, *, most: int, at_step: int | None = None) -> Answer:
        """Return what was read of all documents of a split whose text contains a text; a scan of all texts."""
        return self._answer(documents_containing(self._places, text), most, at_step)

    def _answer(
        self, places: Iterable[DocumentPlace], most: int, at_step: int | None, unused: Iterable[Unused] = ()
    ) -> Answer:
        left_out = tuple(unused)
        repeated = [address for one in left_out if (address := one.same_text_as) is not None]
        found = iter(dict.fromkeys([*places, *(place for one in repeated for place in self._index.find_address(*one))]))
        chosen = list(islice(found, most))
        more = sum(1 for _ in found)
        exposures = tuple(
            document_exposure(self._runs, self._indexes, place, record, at_step)
            for place, record in zip(chosen, self._records_at(chosen), strict=True)
        )
        return Answer(tuple(one.run for one in self._runs), exposures, more, left_out, tuple(self._notes))

    def _records_at(self, places: Sequence[DocumentPlace]) -> list[DocumentRecord]:
        rows = {key: self._row(place) for key, place in enumerate(places)}
        found = self._records.at(rows, {key: place.number for key, place in enumerate(places)})
        return [found[key] for key in range(len(places))]

    def _row(self, place: DocumentPlace) -> Row:
        if place.split != CANARY:
            numbers = self._index.numbers
            return Row(*numbers.row(numbers.first_of(place.split) + place.number))
        first = 0
        for part in Store(self._places.store(STORES[CANARY])).load():
            if place.number < first + part.rows:
                return Row(CANARY, part.index, place.number - first)
            first += part.rows
        raise ProvenanceError(f"there are {first:,} canary documents, asked for number {place.number:,}")

    @cached_property
    def _index(self) -> DocumentIndex:
        if DOCUMENT_INDEX not in self._places.artifacts:
            raise ProvenanceError(
                f"there is no index of documents in the environment {self._places.environment!r}. Make it: kedro run"
                f"{self._places.options} --pipelines provenance"
            )
        stores = {split: dataset for split, dataset in STORES.items() if split != CANARY}
        return open_document_index(self._places.artifacts[DOCUMENT_INDEX], unread_splits(self._places, stores))
