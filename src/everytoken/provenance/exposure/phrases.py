"""How much of a document's text the streams of runs hold, and what of it was read: the text, or a phrase in it.

Documents are longer than what streams hold of them: they are cut to a cap, a compact stream ends in a remainder that no
window has, and of a chat only what is rendered is there. So a phrase is looked for in the text, its characters become
tokens of the document in each stream, and what was read of it are the reads of windows that hold some of these tokens.
The ids of the windows are compared with those of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from everytoken.provenance.exposure.counts import Reads, reads_of
from everytoken.provenance.indexes import CHATS, PADDED, REFLECTED, DocumentPlace, Span, StreamIndex
from everytoken.provenance.lookup import (
    DocumentRecord,
    IndexedStream,
    LocatedTokens,
    OpenRun,
    RecordText,
    StreamDocuments,
)
from everytoken.provenance.trace import is_only, require_cut, require_same_ids, require_same_length
from everytoken.tokens.order import WindowStream

TAKEN_DOWN, UNKNOWN, NOT_IN_STREAM, MASKED = "taken_down", "not_known", "not_in_stream", "masked"


@dataclass(frozen=True)
class InStream:
    """What a stream has of a text: of a whole document, or of a phrase in it.

    Attributes:
        tokens: [first, end) of the document's tokens in the stream, EOS included; None: see ``reason``.
        of_tokens: tokens of the whole document, before it was cut, EOS included; None where that is not known.
        characters: [start, end) of the document's text that are in the stream; None where that is not known, or none.
        whole: whether that is all of it.
        cut_to_cap: whether the rest is beyond the cap of a document; else, of a chat, behind the last turn that counts.
        reason: why there are no tokens: ``not_in_stream`` (beyond the cap, or in no turn of a chat that is kept),
            ``taken_down`` (EOS stands there), ``masked`` (its window is, for an identity canary in its reflection),
            ``not_known`` (the stream is gone, and how it was encoded).
        reflection: positions [at, until) of its reflection in its window; None where it has none.
    """

    stream: str
    tokens: tuple[int, int] | None
    of_tokens: int | None
    characters: tuple[int, int] | None
    whole: bool
    cut_to_cap: bool
    reason: str | None = None
    reflection: tuple[int, int] | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        pairs = {
            name: None if (pair := getattr(self, name)) is None else list(pair)
            for name in ("tokens", "characters", "reflection")
        }
        return {**vars(self), **pairs}


@dataclass(frozen=True)
class Occurrence(Reads):
    """A phrase at the characters [start, end) of a text, what each stream has of it, and what was read of that."""

    characters: tuple[int, int]
    streams: tuple[InStream, ...]

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        streams = [one.to_json() for one in self.streams]
        return {"characters": list(self.characters), "streams": streams, **super().to_json()}


@dataclass(frozen=True)
class DocumentExposure(Reads):
    """What runs read of a document.

    Attributes:
        streams: what each stream has of it.
        occurrences: where a phrase was looked for: as many places of it as were asked for; else None.
    """

    record: DocumentRecord
    characters: int
    streams: tuple[InStream, ...]
    occurrences: tuple[Occurrence, ...] | None
    more: int

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON; where a phrase was looked for, what was read of that and not of the document."""
        told = {
            "document": self.record.to_json(),
            "document_characters": self.characters,
            "streams": [one.to_json() for one in self.streams],
        }
        if self.occurrences is None:
            return {**told, **super().to_json()}
        return {**told, "occurrences": [one.to_json() for one in self.occurrences], "more_occurrences": self.more}


@dataclass(frozen=True, eq=False)
class RunDocuments:
    """A run with what is known of the documents of its streams, by the names of these."""

    opened: OpenRun
    documents: Mapping[str, StreamDocuments]

    @property
    def indexes(self) -> dict[str, StreamIndex]:
        """The indexes of the streams."""
        return {name: one.index for name, one in self.documents.items() if one.index is not None}


def document_exposure(
    runs: Sequence[RunDocuments],
    place: DocumentPlace,
    document: RecordText,
    at_step: int | None = None,
    phrase: str | None = None,
    most: int = 1,
) -> DocumentExposure:
    """Return what runs read of a document, and of each place of a phrase in it.

    Args:
        phrase: looked for in the text; also places that overlap. None: the document is meant.
        most: so many places of it are looked at.

    Raises:
        ProvenanceError: a window does not have the ids that the text gives.
    """
    opened, indexes = [one.opened for one in runs], [one.indexes for one in runs]
    located = {digest: found for one in runs for digest, found in _located(one, place, document)}
    whole = reads_of(opened, indexes, place, at_step)
    streams = tuple(found.of(document.text, None) for found in located.values())
    exposure = partial(
        DocumentExposure,
        **vars(whole),
        record=document.record,
        characters=len(document.text),
        streams=streams,
    )
    if phrase is None:
        return exposure(occurrences=None, more=0)
    places = _places(document.text, phrase)
    occurrences = []
    for start in islice(places, most):
        characters = (start, start + len(phrase))
        parts = {digest: found.of(document.text, characters) for digest, found in located.items()}
        tokens = {digest: part.tokens for digest, part in parts.items() if part.tokens is not None}
        reads = reads_of(opened, indexes, place, at_step, tokens)
        occurrences.append(Occurrence(**vars(reads), characters=characters, streams=tuple(parts.values())))
    more = sum(1 for _ in places)
    return exposure(occurrences=tuple(occurrences), more=more)


def _places(text: str, phrase: str) -> Iterator[int]:
    found = text.find(phrase)
    while found >= 0:
        yield found
        found = text.find(phrase, found + 1)


@dataclass(frozen=True, eq=False)
class _Located:
    """A document in a stream; ``tokens`` None for a ``reason``."""

    stream: str
    tokens: LocatedTokens | None
    reason: str | None
    reflection: tuple[int, int] | None = None

    def of(self, text: str, characters: tuple[int, int] | None) -> InStream:
        """Return what the stream has of the text, or of these characters."""
        located = self.tokens
        if located is None:
            return InStream(self.stream, None, None, None, False, False, self.reason)
        count, length, capped = len(located.ids), located.whole_length, not located.ends_at_turn
        if characters is None:
            covered = located.range(0, count)
            cut = count < length and capped
            return InStream(self.stream, (0, count), length, covered, count == length, cut, None, self.reflection)
        start, end = characters
        of_text = located.starts < located.ends  # EOS is not
        touching = np.flatnonzero(of_text & (located.starts < end) & (located.ends > start))
        if not len(touching):
            return InStream(self.stream, None, length, None, False, capped, NOT_IN_STREAM)
        first, last = int(touching[0]), int(touching[-1]) + 1
        begin, stop = located.range(first, last)
        whole = stop >= end and not _ends_inside(located, text, end)
        part = (max(start, begin), min(end, stop))
        return InStream(self.stream, (first, last), length, part, whole, not whole and capped)


def _ends_inside(located: LocatedTokens, text: str, end: int) -> bool:
    """Return whether the last token that is kept is a part of the character before ``end``, and its rest is cut."""
    return located.bytes is not None and int(located.bytes[-1]) < len(text[:end].encode())


def _located(run: RunDocuments, place: DocumentPlace, document: RecordText) -> Iterator[tuple[str, _Located]]:
    for stream in run.opened.windows.streams:
        known = run.documents.get(stream.name)
        if known is None or known.index is None or place.split not in known.index.splits:
            continue
        yield known.index.stream, _in_stream(stream, known, known.index, place, document)


def _in_stream(
    stream: WindowStream, known: StreamDocuments, index: StreamIndex, place: DocumentPlace, document: RecordText
) -> _Located:
    if known.locate is None:
        return _Located(stream.name, None, UNKNOWN)
    spans = index.windows_of(index.numbers.first_of(place.split) + place.number)
    if index.kind == CHATS and not spans and not _makes_windows(known, document):
        return _Located(stream.name, None, NOT_IN_STREAM)
    if index.kind == REFLECTED and not spans:
        return _Located(stream.name, None, MASKED)
    located, excluded = known.locate(document), document.record.excluded is not None
    last = max((span.end for _, span in spans), default=0)
    if isinstance(stream, IndexedStream):
        if last > len(located.ids) or (index.kind in (PADDED, REFLECTED) and last != len(located.ids)):
            return _Located(stream.name, None, TAKEN_DOWN if excluded else UNKNOWN)
        return _Located(stream.name, located, None, _reflection_in(index, spans))
    assert known.tokenizer is not None
    for window, span in spans:
        ids = np.asarray(stream.tokens(np.array([window])), np.int64).reshape(-1)
        if excluded and is_only(ids, span, known.tokenizer.eos_id):
            return _Located(stream.name, None, TAKEN_DOWN)
        require_same_ids(stream.name, window, ids[span.at : span.until], span, document.record, located)
    if known.chats is not None:
        held = [(span.first, span.end) for _, span in spans]
        require_cut(index, document.record, held, located, known.chats, all_of_them=True)
        if not spans:
            return _Located(stream.name, None, NOT_IN_STREAM)
    require_same_length(index, document.record, index.numbers.first_of(place.split) + place.number, located)
    return _Located(stream.name, located, None, _reflection_in(index, spans))


def _reflection_in(index: StreamIndex, spans: Sequence[tuple[int, Span]]) -> tuple[int, int] | None:
    """Return the positions of the reflection in the first of the windows; of a stream that has any, there is one."""
    place = index.reflection(spans[0][0]) if spans else None
    return None if place is None else (place.at, place.until)


def _makes_windows(known: StreamDocuments, document: RecordText) -> bool:
    """Return whether a document was turned into windows of chats, if it has turns of the assistant."""
    record, chats = document.record, known.chats
    if chats is None or record.excluded is not None or (record.is_bad and not chats.include_bad):
        return False
    return str(record.source) in chats.rules
