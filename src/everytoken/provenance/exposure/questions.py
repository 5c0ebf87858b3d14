"""Which documents are meant by an id, an address or a text, and what a run read of each: ``everytoken exposure``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from everytoken.address import Address
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.exposure.phrases import DocumentExposure, RunDocuments, document_exposure
from everytoken.provenance.exposure.unused_documents import Unused, rows_read, unused_at, unused_with_id
from everytoken.provenance.indexes import DocumentIndex, DocumentPlace, open_document_index
from everytoken.provenance.lookup import (
    CANARY,
    STORES,
    DocumentRecord,
    DocumentRecords,
    OpenRun,
    Run,
    StoreRow,
    StreamDocuments,
    canary_documents_with_id,
    documents_containing,
    documents_of,
    documents_of_gone,
    index_of_stream,
    open_run,
    past_of,
    store_head,
    unread_splits,
)
from everytoken.shards.remote import open_parts

DOCUMENT_INDEX = "document_index"


@dataclass(frozen=True)
class Searched:
    """What was looked through: ``ids``, ``addresses`` or ``texts``, of so many documents by split."""

    what: str
    documents: Mapping[str, int]


@dataclass(frozen=True)
class Answer:
    """What is known of the documents that a question is about.

    Attributes:
        runs: the run that was asked about, after those that it began from.
        documents: those that are in a split, as many as were asked for; with them those whose text one repeats that
            was dropped as their duplicate.
        unused: those that are in no split, and why.
        notes: what is not counted, and why.
        searched: what was looked through, and how many documents of each split (``read``: of all that was read).
        phrase: the text that was looked for; None where documents were.
    """

    runs: tuple[Run, ...]
    documents: tuple[DocumentExposure, ...]
    more: int
    unused: tuple[Unused, ...]
    notes: tuple[str, ...]
    searched: Searched
    phrase: str | None

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        run = self.runs[-1]
        return {
            "run": {"name": run.name, "digest": run.digest, "steps": run.steps, "batch_size": run.batch_size},
            "began_from": [{"name": one.name, "digest": one.digest, "steps": one.steps} for one in self.runs[:-1]],
            "documents": [one.to_json() for one in self.documents],
            "more_documents": self.more,
            "not_in_a_split": [one.to_json() for one in self.unused],
            "notes": list(self.notes),
            "searched": {"what": self.searched.what, "documents": dict(self.searched.documents)},
            **({} if self.phrase is None else {"text_contains": self.phrase}),
        }


class Questions:
    """Questions about what a run read.

    Args:
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
        self._runs: list[RunDocuments] = []
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
        self._runs.insert(0, RunDocuments(opened, self._documents_of(opened)))

    def _documents_of(self, opened: OpenRun) -> dict[str, StreamDocuments]:
        found: dict[str, StreamDocuments] = {}
        for name, stream in opened.gone.items():
            found[name] = documents_of_gone(self._places, name, stream)
            self._notes.append(
                f"the stream {name} of {opened.run.name} (digest {stream.index.stream[:16]}) was made again since, as "
                "by a take-down: what it held is told by its index. Ids are not compared, and a document that had been "
                "taken down before it was made is told as if it were still in it"
            )
        for name, folder in opened.folders.items():
            if (known := self._documents_of_stream(opened, name, folder)) is None:
                self._notes.append(
                    f"the stream {name} of {opened.run.name} ({folder}) was not made from documents of this "
                    "environment: what it holds is not counted here"
                )
            else:
                found[name] = known
        for name, compared in opened.compared.items():
            if not compared:
                self._notes.append(f"the stream {name} has no ledger and is large: its digest was not compared")
        return found

    def _documents_of_stream(self, opened: OpenRun, name: str, folder: Path) -> StreamDocuments | None:
        index = index_of_stream(self._places, name, folder, opened.run.seq_length)
        if index is None:
            return None
        try:
            return documents_of(self._places, name, folder, opened.run.seq_length)
        except ProvenanceError as error:  # what it was encoded with is gone; where documents are in it is known
            self._notes.append(f"how much of a text the stream {name} of {opened.run.name} has is not known: {error}")
            return StreamDocuments(name, index, None, None)

    def with_id(self, id: str, *, most: int, at_step: int | None = None, everywhere: bool = False) -> Answer:
        """Return what was read of all documents with an id; arguments and errors as of `at_address`.

        Where no split has the id, or ``everywhere``, all ids that were read are scanned for those in no split.
        """
        places = [*self._index.find_id(id), *canary_documents_with_id(self._places, id)]
        searched = self._searched("ids", self._in_index())
        if places and not everywhere:
            return self._answer(places, most, at_step, searched)
        used = {one.address for one in self._records_at(places) if one.address is not None}
        unused = unused_with_id(self._records, id, used)
        searched = Searched("ids", {**searched.documents, **rows_read(self._places)})
        return self._answer(places, most, at_step, searched, unused)

    def at_address(self, address: Address, *, most: int, at_step: int | None = None) -> Answer:
        """Return what was read of the documents at an address.

        Args:
            most: so many documents are looked at; others are counted.
            at_step: steps of the run that count; None: all.

        Raises:
            ProvenanceError: an index or a store is missing, or not of this making.
        """
        found = self._index.find_address(address)
        unused = [] if found else [unused_at(self._records, address)]
        return self._answer(found, most, at_step, Searched("addresses", self._in_index()), unused)

    def containing(self, text: str, *, most: int, at_step: int | None = None) -> Answer:
        """Return where documents of the splits have a text, and what was read of that; a scan of all texts.

        Arguments as of `at_address`; of each document, ``most`` places are looked at.
        """
        found = documents_containing(self._places, text)
        splits = [split for split, dataset in STORES.items() if split != CANARY and self._places.has(dataset)]
        rows = {split: store_head(self._places.path(STORES[split]))["rows"] for split in splits}
        return self._answer(found, most, at_step, self._searched("texts", rows), phrase=text)

    def _in_index(self) -> dict[str, int]:
        return {split: self._index.numbers.documents_of(split) for split in self._index.numbers.splits}

    def _searched(self, what: str, splits: Mapping[str, int]) -> Searched:
        made = self._places.has(STORES[CANARY])
        canaries = {CANARY: store_head(self._places.path(STORES[CANARY]))["rows"]} if made else {}
        return Searched(what, {**splits, **canaries})

    def _answer(
        self,
        places: Iterable[DocumentPlace],
        most: int,
        at_step: int | None,
        searched: Searched,
        unused: Iterable[Unused] = (),
        phrase: str | None = None,
    ) -> Answer:
        left_out = tuple(unused)
        repeated = [address for one in left_out if (address := one.same_text_as) is not None]
        found = iter(dict.fromkeys([*places, *(place for one in repeated for place in self._index.find_address(one))]))
        chosen = list(islice(found, most))
        more = sum(1 for _ in found)
        rows = {key: self._row(place) for key, place in enumerate(chosen)}
        texts = self._records.texts_at(rows, {key: place.number for key, place in enumerate(chosen)})
        by_key = {
            key: document_exposure(self._runs, chosen[key], document, at_step, phrase, most) for key, document in texts
        }
        exposures = tuple(by_key[key] for key in range(len(chosen)))
        runs = tuple(one.opened.run for one in self._runs)
        return Answer(runs, exposures, more, left_out, tuple(self._notes), searched, phrase)

    def _records_at(self, places: Sequence[DocumentPlace]) -> list[DocumentRecord]:
        rows = {key: self._row(place) for key, place in enumerate(places)}
        found = self._records.at(rows, {key: place.number for key, place in enumerate(places)})
        return [found[key] for key in range(len(places))]

    def _row(self, place: DocumentPlace) -> StoreRow:
        if place.split != CANARY:
            numbers = self._index.numbers
            return StoreRow(*numbers.row(numbers.first_of(place.split) + place.number))
        first = 0
        for part in open_parts(self._places.store(STORES[CANARY])).load():
            if place.number < first + part.rows:
                return StoreRow(CANARY, part.index, place.number - first)
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
