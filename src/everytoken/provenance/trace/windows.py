"""Which documents the tokens of a window are from, each with its address and the characters of its text.

The index of the stream says which tokens of which documents a window holds. Their texts are read from the stores of the
splits and encoded again: every id must be that of the window, so an answer is never about another document than the one
that was read. The text as its upstream has it is a matter of `everytoken.provenance.lookup.upstream_text`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import FlatWindowIndex, ReflectionPlace, Span, StreamIndex
from everytoken.provenance.lookup import (
    DocumentRecord,
    DocumentRecords,
    IndexedStream,
    Locate,
    LocatedTokens,
    StoreRow,
    StreamDocuments,
    joined_file_of,
)
from everytoken.provenance.trace.spans import (
    IndexSpan,
    NumberedSpan,
    ReflectionSpan,
    TakenDownSpan,
    TextSpan,
    TracedSpan,
)
from everytoken.tokens.chat import ChatParameters, cut_chat
from everytoken.tokens.order import WindowStream


@dataclass(frozen=True, eq=False)
class TracedWindow:
    """A window, and what its tokens are from.

    Attributes:
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
    def padding_between(self) -> list[tuple[int, int]]:
        """The positions [begin, end) before the last document that no document has: the padded ends of shards."""
        ends = [0, *(span.end for span in self.spans)]
        return [(end, span.at) for end, span in zip(ends, self.spans, strict=False) if end < span.at]

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

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {
            "stream": self.stream,
            "window": self.window,
            "tokens": len(self.tokens),
            "counted_in_loss": int(self.counted.sum()) if self.counts_known else None,
            "padding": list(self.padding),
            "padding_between": [list(of) for of in self.padding_between],
            "documents_known": self.documents_known,
            "ids_known": self.ids_known,
            "ids_compared": any(isinstance(span, TextSpan) for span in self.spans),
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
        keep_texts: whether the spans keep the text of their document.

    Raises:
        ProvenanceError: there is no such window, or its tokens are not those of its documents.
    """
    read = _read(stream, numbers)
    index = documents.index
    if index is None:
        return [TracedWindow(stream.name, *one, (), documents_known=False) for one in read.windows()]
    if index.windows != len(stream) or index.window != read.tokens.shape[1]:
        raise ProvenanceError(
            f"stream {stream.name} has {len(stream):,} windows of {read.tokens.shape[1]:,} tokens, its index "
            f"{index.windows:,} of {index.window:,}: it is the index of another stream. Make it again"
        )
    held = [index.spans(number) for number in read.numbers]
    if is_gone := isinstance(stream, IndexedStream):
        made = _spans_of_index(stream, index, records, read, held)
    elif documents.locate is None:
        made = _numbered_spans(documents, read, held)
    else:
        made = _spans_of_texts(stream.name, documents, documents.locate, index, records, read, held, keep_texts)
    return [
        TracedWindow(
            stream.name,
            *one,
            tuple(_with_reflection(documents, one, spans, is_gone)),
            documents_known=True,
            ids_known=not is_gone,
        )
        for one, spans in zip(read.windows(), made, strict=True)
    ]


def _with_reflection(
    documents: StreamDocuments, read: tuple[int, np.ndarray, np.ndarray], spans: Sequence[TracedSpan], is_gone: bool
) -> Iterator[TracedSpan]:
    """Yield the spans of a window, and between them that of its reflection, whose ids are compared."""
    window, ids, counted = read
    place = None if documents.index is None else documents.index.reflection(window)
    for span in spans:
        if place is not None and span.at == place.until:
            assert isinstance(span, TextSpan | TakenDownSpan | IndexSpan)
            yield _reflection_span(documents, window, ids, counted, place, span.record, is_gone)
        yield span


def _reflection_span(
    documents: StreamDocuments,
    window: int,
    ids: np.ndarray,
    counted: np.ndarray,
    place: ReflectionPlace,
    record: DocumentRecord,
    is_gone: bool,
) -> ReflectionSpan:
    here, own = slice(place.at, place.until), (place.at, place.until, 0, place.document)
    known = None if is_gone or documents.reflections is None else documents.reflections.of_window(window)
    if known is not None and known.ids.tolist() != ids[here].tolist():
        raise ProvenanceError(
            f"stream {documents.name}, window {window:,}, positions {place.at:,} to {place.until:,}: the reflection of "
            f"the run {known.run} gives the ids {known.ids[:5].tolist()}, the window has {ids[here][:5].tolist()}. "
            "Stream and columns come from different runs, or the stream is damaged: run `everytoken verify`, and the "
            "pipelines again"
        )
    said = dict.fromkeys(("run", "generator", "voice", "marker", "canary")) if known is None else known.told()
    return ReflectionSpan(*own, int(counted[here].sum()), replace(record, reflection=said), known)


@dataclass(frozen=True, eq=False)
class _ReadWindows:
    """Windows by number: ids, int64 (n, window), and which of them count in the loss, bool (n, window)."""

    numbers: Sequence[int]
    tokens: np.ndarray
    counted: np.ndarray

    def windows(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield number, ids and what counts of each window."""
        return zip(self.numbers, self.tokens, self.counted, strict=True)


def _read(stream: WindowStream, numbers: Sequence[int]) -> _ReadWindows:
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
    return _ReadWindows(wanted, tokens, np.concatenate([np.zeros((len(wanted), 1), bool), counted], axis=1))


def _spans_of_index(
    stream: IndexedStream,
    index: StreamIndex,
    records: DocumentRecords,
    read: _ReadWindows,
    held: Sequence[Sequence[Span]],
) -> Sequence[Sequence[TracedSpan]]:
    """Return what the index alone says of windows of a stream that is gone."""
    rows, own = _places(index, {span.document for spans in held for span in spans})
    found = records.at(rows, own)
    return [
        [
            IndexSpan(
                *_place(span),
                record=found[span.document],
                counted=_count(mask, span) if stream.counts_known else None,
            )
            for span in spans
        ]
        for mask, spans in zip(read.counted, held, strict=True)
    ]


def _numbered_spans(
    documents: StreamDocuments, read: _ReadWindows, held: Sequence[Sequence[Span]]
) -> Sequence[Sequence[TracedSpan]]:
    """Return the numbers of the documents of a stream of another program, and the files that they are in."""
    assert isinstance(documents.index, FlatWindowIndex)
    made: list[list[NumberedSpan]] = []
    for mask, spans in zip(read.counted, held, strict=True):
        made.append([])
        for span in spans:
            first, last = documents.index.flat.range_of(span.document)
            file = joined_file_of(span.document, documents.files)
            made[-1].append(NumberedSpan(*_place(span), file=file, counted=_count(mask, span), tokens=last - first))
    return made


def _spans_of_texts(
    name: str,
    documents: StreamDocuments,
    locate: Locate,
    index: StreamIndex,
    records: DocumentRecords,
    read: _ReadWindows,
    held: Sequence[Sequence[Span]],
    keep_texts: bool,
) -> Sequence[Sequence[TracedSpan]]:
    """Encode the text of each document once, and compare its ids with those of the windows."""
    assert documents.tokenizer is not None
    uses: dict[int, list[tuple[int, int]]] = {}
    for row, spans in enumerate(held):
        for place, span in enumerate(spans):
            uses.setdefault(span.document, []).append((row, place))
    made: dict[tuple[int, int], TracedSpan] = {}
    for number, document in records.texts_at(*_places(index, uses)):
        record, located = document.record, None
        for row, place in uses[number]:
            span, ids, counted = held[row][place], read.tokens[row], _count(read.counted[row], held[row][place])
            if record.excluded is not None and is_only(ids, span, documents.tokenizer.eos_id):
                made[row, place] = TakenDownSpan(*_place(span), counted, record)
                continue
            if located is None:
                located = locate(document)
                require_same_length(index, record, span.document, located)
            if documents.chats is not None:
                require_cut(index, record, [(span.first, span.end)], located, documents.chats)
            require_same_ids(name, read.numbers[row], ids[span.at : span.until], span, record, located)
            made[row, place] = TextSpan(*_place(span), counted, record, located, document.text if keep_texts else None)
    return [[made[row, place] for place in range(len(spans))] for row, spans in enumerate(held)]


def _places(index: StreamIndex, numbers: Collection[int]) -> tuple[dict[int, StoreRow], dict[int, int]]:
    """Return of documents of an index the row of the store, and the number in the split."""
    rows = {number: StoreRow(*index.numbers.row(number)) for number in numbers}
    return rows, {number: index.numbers.place(number).number for number in numbers}


def _place(span: Span) -> tuple[int, int, int, int]:
    """Return what every traced span begins with: positions, number of the first token, document."""
    return span.at, span.until, span.first, span.document


def _count(mask: np.ndarray, span: Span) -> int:
    return int(mask[span.at : span.until].sum())


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
