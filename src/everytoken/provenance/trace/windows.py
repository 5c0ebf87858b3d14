"""Which documents the tokens of a window are from, each with its address and the characters of its text.

The index of the stream says which tokens of which documents a window holds. Their texts are read from the stores of the
splits and encoded again: every id must be that of the window, so an answer is never about another document than the one
that was read. The text as its upstream has it is a matter of `everytoken.provenance.lookup.upstream_text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import FlatWindowIndex, Span, StreamIndex
from everytoken.provenance.lookup import (
    DocumentRecord,
    DocumentRecords,
    IndexedStream,
    LocatedTokens,
    StoreRow,
    StreamDocuments,
    file_of,
)
from everytoken.tokens.chat import ChatParameters, cut_chat
from everytoken.tokens.order import WindowStream


@dataclass(frozen=True, eq=False)
class TracedSpan:
    """Tokens of one document in a window.

    Attributes:
        at, end: positions [at, end) in the window.
        first: number of the first in the document; its EOS is the last token of a document.
        record: the document; None in a stream whose documents are known by number alone.
        document: its number in the index.
        file: input file and the number in it, where only that is known.
        located: all tokens of the document with their characters; None where there is no text: of documents known by
            number alone, and of those that were taken down.
        text: of the document, where it was asked for.
        counted: how many of the tokens count in the loss, as targets; None where the stream is gone, and its index does
            not tell.
        length: tokens of the document, EOS included, in all windows; None of a document that was taken down, and where
            the stream is gone.
        ids_known: whether the stream is there.
    """

    at: int
    end: int
    first: int
    record: DocumentRecord | None
    document: int
    file: tuple[str, int] | None
    located: LocatedTokens | None
    text: str | None
    counted: int | None
    length: int | None
    ids_known: bool = True

    @property
    def last(self) -> int:
        """Behind the last of the document's tokens that the window has."""
        return self.first + self.end - self.at

    @property
    def taken_down(self) -> bool:
        """Whether EOS stands where the document's tokens were."""
        return self.record is not None and self.located is None and self.ids_known

    @property
    def characters(self) -> tuple[int, int] | None:
        """Characters [start, end) of the document's text that the tokens are made from."""
        return None if self.located is None else self.located.range(self.first, self.last)

    @property
    def has_eos(self) -> bool:
        """Whether the document's end is in the window."""
        return self.record is not None and self.last == self.length

    @property
    def is_cut(self) -> bool:
        """Whether the text goes on behind the document's last token: it was longer than the cap."""
        located = self.located
        return located is not None and located.whole_length > len(located.ids) and not located.ends_at_turn

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "positions": [self.at, self.end],
            "tokens": [self.first, self.last],
            "document_tokens": self.length,
            "characters": None if self.characters is None else list(self.characters),
            "document_characters": None if self.located is None else self.located.characters,
            "cut_to_cap": self.is_cut,
            "has_eos": self.has_eos,
            "counted_in_loss": self.counted,
            "taken_down": self.taken_down,
            "document": {"number": self.document, "file": None if self.file is None else list(self.file)}
            if self.record is None
            else self.record.to_json(),
        }


@dataclass(frozen=True, eq=False)
class TracedWindow:
    """A window, and what its tokens are from.

    Attributes:
        stream: name of its stream.
        window: its number.
        tokens: int64 (n,).
        counted: whether each counts in the loss as the target of a prediction, bool (n,); the first never does.
        spans: the documents, by position; padding is in none.
        documents_known: whether anything says which documents there are.
        ids_known: whether the stream is there; if not, its index alone says what the window held, ``tokens`` are -1,
            and nothing was compared.
    """

    stream: str
    window: int
    tokens: np.ndarray
    counted: np.ndarray
    spans: tuple[TracedSpan, ...]
    documents_known: bool
    ids_known: bool = True

    @property
    def padding(self) -> tuple[int, int]:
        """The positions [begin, end) behind the last document."""
        begin = max((span.end for span in self.spans), default=0 if self.documents_known else len(self.tokens))
        return begin, len(self.tokens)

    @property
    def counts_known(self) -> bool:
        """Whether it is known which tokens count in the loss."""
        return all(span.counted is not None for span in self.spans)

    def span_at(self, position: int) -> TracedSpan | None:
        """Return the document of a position; None where it is padding, or documents are not known.

        Raises:
            ProvenanceError: there is no such position.
        """
        if not 0 <= position < len(self.tokens):
            raise ProvenanceError(f"a window has {len(self.tokens):,} tokens, asked for position {position:,}")
        return next((span for span in self.spans if span.at <= position < span.end), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "stream": self.stream,
            "window": self.window,
            "tokens": len(self.tokens),
            "counted_in_loss": int(self.counted.sum()) if self.counts_known else None,
            "padding": list(self.padding),
            "documents_known": self.documents_known,
            "ids_compared": self.ids_known and any(span.located is not None for span in self.spans),
            "documents": [span.to_json() for span in self.spans],
        }


def trace_windows(
    stream: WindowStream,
    documents: StreamDocuments,
    records: DocumentRecords,
    numbers: Sequence[int],
    *,
    keep_texts: bool = False,
) -> list[TracedWindow]:
    """Return what windows of one stream are made of.

    Each document's text is read and encoded once, however many of the windows have tokens of it.

    Args:
        stream: the stream.
        documents: what is known of its documents.
        records: of the environment that made it.
        numbers: of the windows.
        keep_texts: whether the spans keep the text of their document.

    Raises:
        ProvenanceError: there is no such window, or its tokens are not those of its documents.
    """
    wanted = [int(number) for number in numbers]
    for number in wanted:
        if not 0 <= number < len(stream):
            raise ProvenanceError(f"stream {stream.name} has {len(stream):,} windows, asked for window {number:,}")
    if isinstance(stream, IndexedStream):
        tokens = np.full((len(wanted), stream.seq_length + 1), -1, np.int64)
    else:
        tokens = np.asarray(stream.tokens(np.array(wanted, np.int64)), np.int64).reshape(len(wanted), -1)
    counted = np.ones((len(wanted), stream.seq_length), bool)
    stream.clear(counted, np.arange(len(wanted)), np.array(wanted, np.int64))
    counted = np.concatenate([np.zeros((len(wanted), 1), bool), counted], axis=1)
    index = documents.index
    if index is None:
        return [
            TracedWindow(stream.name, *one, (), documents_known=False)
            for one in zip(wanted, tokens, counted, strict=True)
        ]
    if index.windows != len(stream) or index.window != tokens.shape[1]:
        raise ProvenanceError(
            f"stream {stream.name} has {len(stream):,} windows of {tokens.shape[1]:,} tokens, its index "
            f"{index.windows:,} of {index.window:,}: it is the index of another stream. Make it again"
        )
    held = [index.spans(number) for number in wanted]
    if isinstance(stream, IndexedStream):
        return [
            TracedWindow(stream.name, number, ids, mask, spans, documents_known=True, ids_known=False)
            for number, ids, mask, spans in zip(
                wanted, tokens, counted, _of_index(stream, index, records, counted, held), strict=True
            )
        ]
    if documents.locate is None:
        return [
            TracedWindow(stream.name, number, ids, mask, tuple(_of_file(documents, mask, span) for span in spans), True)
            for number, ids, mask, spans in zip(wanted, tokens, counted, held, strict=True)
        ]
    assert documents.tokenizer is not None
    eos_id = documents.tokenizer.eos_id
    uses: dict[int, list[tuple[int, int]]] = {}
    for row, spans in enumerate(held):
        for place, span in enumerate(spans):
            uses.setdefault(span.document, []).append((row, place))
    rows = {number: StoreRow(*index.numbers.row(number)) for number in uses}
    own = {number: index.numbers.place(number).number for number in uses}
    made: dict[tuple[int, int], TracedSpan] = {}
    for number, document in records.texts_at(rows, own):
        located: LocatedTokens | None = None
        for row, place in uses[number]:
            span, ids = held[row][place], tokens[row]
            taken_down = document.record.excluded is not None and is_only(ids, span, eos_id)
            if not taken_down and located is None:
                located = documents.locate(document)
                require_same_length(index, document.record, span.document, located)
            if not taken_down and documents.chats is not None and located is not None:
                require_cut(index, document.record, [(span.first, span.end)], located, documents.chats)
            made[row, place] = _traced(
                stream,
                wanted[row],
                ids,
                counted[row],
                span,
                document.record,
                None if taken_down else located,
                document.text if keep_texts and not taken_down else None,
            )
    return [
        TracedWindow(stream.name, number, ids, mask, tuple(made[row, place] for place in range(len(held[row]))), True)
        for row, (number, ids, mask) in enumerate(zip(wanted, tokens, counted, strict=True))
    ]


def _of_index(
    stream: IndexedStream,
    index: StreamIndex,
    records: DocumentRecords,
    counted: np.ndarray,
    held: Sequence[Sequence[Span]],
) -> Iterator[tuple[TracedSpan, ...]]:
    """Yield what the index alone says of windows."""
    numbers = {span.document for spans in held for span in spans}
    rows = {number: StoreRow(*index.numbers.row(number)) for number in numbers}
    found = records.at(rows, {number: index.numbers.place(number).number for number in numbers})
    for mask, spans in zip(counted, held, strict=True):
        yield tuple(
            TracedSpan(
                at=span.at,
                end=span.until,
                first=span.first,
                record=found[span.document],
                document=span.document,
                file=None,
                located=None,
                text=None,
                counted=int(mask[span.at : span.until].sum()) if stream.counts_known else None,
                length=None,
                ids_known=False,
            )
            for span in spans
        )


def _of_file(documents: StreamDocuments, counted: np.ndarray, span: Span) -> TracedSpan:
    assert isinstance(documents.index, FlatWindowIndex)
    first, last = documents.index.flat.range_of(span.document)
    end = span.until
    return TracedSpan(
        at=span.at,
        end=end,
        first=span.first,
        record=None,
        document=span.document,
        file=file_of(span.document, documents.files),
        located=None,
        text=None,
        counted=int(counted[span.at : end].sum()),
        length=last - first,
    )


def _traced(
    stream: WindowStream,
    window: int,
    ids: np.ndarray,
    counted: np.ndarray,
    span: Span,
    record: DocumentRecord,
    located: LocatedTokens | None,
    text: str | None,
) -> TracedSpan:
    end = span.until
    if located is not None:
        require_same_ids(stream.name, window, ids[span.at : end], span, record, located)
    return TracedSpan(
        at=span.at,
        end=end,
        first=span.first,
        record=record,
        document=span.document,
        file=None,
        located=located,
        text=text,
        counted=int(counted[span.at : end].sum()),
        length=None if located is None else len(located.ids),
    )


def require_same_length(index: StreamIndex, record: DocumentRecord, document: int, located: LocatedTokens) -> None:
    """Check that a document has as many tokens by its text as by the index.

    Raises:
        ProvenanceError: it has not.
    """
    if (expected := index.tokens_of(document)) is not None and expected != len(located.ids):
        raise ProvenanceError(
            f"{record.split} document {record.number:,} ({record.spelled_address or repr(record.id)}) has "
            f"{len(located.ids):,} tokens by its text and {expected:,} by the index of the stream: documents and index "
            "come from different runs, or the index is damaged: run `everytoken verify --full`, and the pipelines again"
        )


def require_cut(
    index: StreamIndex,
    record: DocumentRecord,
    spans: Sequence[tuple[int, int]],
    located: LocatedTokens,
    chats: ChatParameters,
    *,
    all_of_them: bool = False,
) -> None:
    """Check that spans of a chat are those that its windows have, as it is cut; ``all_of_them``: and no fewer.

    Raises:
        ProvenanceError: they are not.
    """
    starts, ends = [start for start, _ in located.turns], [end for _, end in located.turns]
    expected = [(first, end) for first, end, _ in cut_chat(starts, ends, index.window, chats.context_tokens)]
    if not set(spans) <= set(expected) or (all_of_them and list(spans) != expected):
        raise ProvenanceError(
            f"{record.split} document {record.number:,} ({record.spelled_address or repr(record.id)}) is in windows "
            f"with its tokens {list(spans)[:5]} by the index of the stream, {expected[:5]} by its text: documents and "
            "index come from different runs, or the index is damaged: run `everytoken verify --full`, and the "
            "pipelines again"
        )


def is_only(ids: np.ndarray, span: Span, token: int) -> bool:
    """Return whether a window, int64 (n,), has nothing but this token where a span is."""
    return bool((ids[span.at : span.until] == token).all())


def require_same_ids(
    stream: str, window: int, found: np.ndarray, span: Span, record: DocumentRecord, located: LocatedTokens
) -> None:
    """Check that the ids of a span in a window are those that the document's text gives.

    Args:
        stream: name, for the message.
        window: number, for the message.
        found: ids of the span, int64 (n,).
        span: which tokens of the document they are.
        record: of the document.
        located: the tokens of its text.

    Raises:
        ProvenanceError: they are not.
    """
    expected = located.ids[span.first : span.end]
    if len(expected) == len(found) and (expected == found).all():
        return
    same = expected[: len(found)] == found[: len(expected)]
    offset = int(np.argmin(same)) if not same.all() else min(len(expected), len(found))
    token = int(expected[offset]) if offset < len(expected) else None
    raise ProvenanceError(
        f"stream {stream}, window {window:,}, position {span.at + offset:,}: the text of {record.split} document "
        f"{record.number:,} ({record.spelled_address or repr(record.id)}) gives the id {token} as its token "
        f"{span.first + offset:,}, the window has {int(found[offset])}. Stream, documents and index are not of one "
        "making, or the stream is damaged: run `everytoken verify`, and the pipelines again"
    )
