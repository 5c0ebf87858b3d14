"""The reflections of a stream: their texts, from the columns of the run, encoded as they were spliced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import StreamIndex
from everytoken.provenance.lookup.dataset_locations import Places, store_head
from everytoken.provenance.lookup.document_records import CANARY, STORES
from everytoken.provenance.stored_rows import record_at
from everytoken.reflections.splicing import (
    EncodedReflections,
    ReflectedStatistics,
    ReflectionEncoder,
    RunColumns,
    SplicedCanaryStatistics,
    columns_of_run,
    open_reflection_encoder,
)
from everytoken.shards import Artifact, Part, Shards
from everytoken.shards.remote import open_parts
from everytoken.tokens.canary import CanarySplicing
from everytoken.tokens.streams import TokenizerFacts
from everytoken.tokens.tokenizer import EncodingRules


@dataclass(frozen=True, eq=False)
class ReflectionText:
    """A reflection that a model wrote about a document.

    Attributes:
        run, generator: None of a canary document, which came with it.
        ids: as they were spliced, the marker included, int64 (n,).
        text: as it was generated, also beyond the budget.
        characters: of the text that the ids are made from.
        uncut_tokens: without the budget, the marker included.
    """

    run: str | None
    generator: str | None
    voice: str
    marker: str | None
    canary: str | None
    ids: np.ndarray
    text: str
    characters: int
    uncut_tokens: int

    def told(self) -> dict[str, str | None]:
        """Return who wrote it, and as what; its text apart."""
        return {name: getattr(self, name) for name in ("run", "generator", "voice", "marker", "canary")}


@dataclass(frozen=True, eq=False)
class Reflections:
    """The reflections of a stream, by the number of their window."""

    run: str
    generator: str
    named: RunColumns
    marker: str | None
    encoder: ReflectionEncoder
    columns: Shards

    def of_window(self, window: int) -> ReflectionText:
        """Return the reflection of a window that has one.

        Raises:
            ProvenanceError: the columns have none for it.
        """
        values = self._row(window)
        text = str(values[self.named.text])
        canary = None if self.named.canary is None else values[self.named.canary]
        spliced = _spliced(self.encoder, text, f"{self._named}: row {window:,}")
        return ReflectionText(self.run, self.generator, self.named.voice, self.marker, canary or None, *spliced)

    def _row(self, window: int) -> Mapping[str, Any]:
        """Return the row of a window; rows ascend, in parts and over all."""
        parts = [part for part in self.columns if part.rows]
        low, high = 0, len(parts)
        while high - low > 1:  # the last part that does not begin behind the window
            middle = (low + high) // 2
            low, high = (middle, high) if _first_row(parts[middle]) <= window else (low, middle)
        if parts:
            at = 0
            for batch in parts[low].batches(["row"]):
                rows = np.asarray(batch.column(0))
                if len(rows) and int(rows[-1]) >= window:
                    found = at + int(np.searchsorted(rows, window))
                    if int(rows[found - at]) == window:
                        return record_at(parts[low], found, self.named.read)
                    break
                at += len(rows)
        raise ProvenanceError(f"{self._named} has no row {window:,}, whose window has a reflection")

    @property
    def _named(self) -> str:
        return f"the columns of the run {self.run}"


@dataclass(frozen=True, eq=False)
class CanaryReflections:
    """The reflections that canary documents came with, by the number of their window."""

    index: StreamIndex
    splicing: CanarySplicing
    encoder: ReflectionEncoder
    tokens: Shards

    def of_window(self, window: int) -> ReflectionText:
        """Return the reflection of a window that has one.

        Raises:
            ProvenanceError: its document has none.
        """
        place = self.index.reflection(window)
        if place is None:
            raise ProvenanceError(f"window {window:,} of the canary stream has no reflection")
        _, number, row = self.index.numbers.row(place.document)
        text = str(record_at(self.tokens.parts[number], row, [self.splicing.field])[self.splicing.field])
        spliced = _spliced(self.encoder, text, f"canary document {place.document:,}")
        return ReflectionText(None, None, self.splicing.voice, self.splicing.marker, None, *spliced)


def _spliced(encoder: ReflectionEncoder, text: str, what: str) -> tuple[np.ndarray, str, int, int]:
    """Return the ids of a text, the text, how much of it they are, and how many ids all of it has."""
    made: EncodedReflections = encoder.encode([text])
    (ids,) = made.ids
    if ids is None:
        raise ProvenanceError(f"{what} has a blank text, and its window a reflection")
    return ids.astype(np.int64), text, encoder.spliced_characters(text), int(made.uncut[0])


def canary_reflections(places: Places, stream: Artifact, index: StreamIndex, tokenizer: Artifact) -> CanaryReflections:
    """Return the reflections of a canary stream, whose documents are those of ``canary_tokens``."""
    given, said = stream.ledger["recipe"]["parameters"], stream.statistics_as(SplicedCanaryStatistics)
    splicing = CanarySplicing.model_validate(given["splicing"])
    rules = EncodingRules(tokenizer, given["eos_token"], given["special_tokens_in_text"])
    encoder = open_reflection_encoder(
        rules, given["reflection_budget"], splicing.marker, TokenizerFacts(**said["tokenizer"])
    )
    return CanaryReflections(index, splicing, encoder, open_parts(places.store(STORES[CANARY])).load())


def _first_row(part: Part) -> int:
    return int(record_at(part, 0, ["row"])["row"])


def reflections_of(places: Places, name: str, stream: Artifact, tokenizer: Artifact) -> Reflections:
    """Return the reflections of a stream.

    Raises:
        ProvenanceError: the columns that it was made from are not there, or were made again since.
    """
    given, said = stream.ledger["recipe"]["parameters"], stream.statistics_as(ReflectedStatistics)
    run, digest = given["run"], given["columns"]["digest"]
    dataset = f"{run}_columns"
    head = store_head(places.store(dataset))
    if head["root_digest"] != digest:
        raise ProvenanceError(
            f"the stream {name} was made from {dataset} with the digest {digest}; now {dataset} has "
            f"{head['root_digest']}: the run was merged again since. Make the stream again"
        )
    rules = EncodingRules(tokenizer, given["eos_token"], given["special_tokens_in_text"])
    encoder = open_reflection_encoder(
        rules, given["reflection_budget"], given["marker"], TokenizerFacts(**said["tokenizer"])
    )
    named = columns_of_run(run, given["voice"])
    return Reflections(
        run, said["generator"], named, given["marker"], encoder, open_parts(places.store(dataset)).load()
    )
