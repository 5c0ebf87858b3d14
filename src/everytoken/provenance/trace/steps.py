"""The sequences of a step of a run, or a window of a stream, traced: what ``everytoken trace`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup import (
    DocumentRecords,
    IndexedStream,
    OpenRun,
    documents_of,
    documents_of_gone,
    folder_of_stream,
)
from everytoken.provenance.trace.spans import ReflectionSpan, TextSpan, TracedSpan
from everytoken.provenance.trace.windows import TracedWindow, trace_windows
from everytoken.tokens.order import open_one_stream
from everytoken.tokens.tokenizer import DocumentTokenizer, bytes_of_token, decoded


@dataclass(frozen=True, eq=False)
class TracedSequence:
    """A window, and as which sample of a run it was read.

    Attributes:
        tokenizer: that of its stream; None where that is not known.
        step, sequence, sample, epoch: of the run; None of a window that was asked for without one.
    """

    window: TracedWindow
    tokenizer: DocumentTokenizer | None
    step: int | None = None
    sequence: int | None = None
    sample: int | None = None
    epoch: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        own = {name: getattr(self, name) for name in ("step", "sequence", "sample", "epoch")}
        return {**{name: value for name, value in own.items() if value is not None}, **self.window.to_json()}


@dataclass(frozen=True)
class TracedToken:
    """One token of a window.

    Attributes:
        text: what its bytes spell; None where the tokenizer is not known, or they are no whole characters.
        bytes: that it stands for; None where the tokenizer is not known.
        number: in its document; None of padding.
        characters: [start, end) in the text of the document that it is made from; None of padding and EOS.
        part: bytes [first, end) of these characters' UTF-8 that are the token's, where they are not all of them.
        kind: ``text``, ``eos`` (ends its document) or ``padding``; ``special`` for a special token in a text;
            ``reflection`` for one that a model wrote, or the marker before it.
        counts_in_loss: whether it is the target of a prediction that counts.
    """

    position: int
    id: int
    text: str | None
    bytes: bytes | None
    number: int | None
    characters: tuple[int, int] | None
    part: tuple[int, int] | None
    kind: str
    counts_in_loss: bool

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        pairs = {name: None if (pair := getattr(self, name)) is None else list(pair) for name in ("characters", "part")}
        return {**vars(self), **pairs, "bytes": None if self.bytes is None else self.bytes.hex()}


def trace_step(
    opened: OpenRun,
    records: DocumentRecords,
    step: int,
    sequences: Sequence[int] | None = None,
    *,
    keep_texts: bool = False,
) -> list[TracedSequence]:
    """Return the sequences of the batch of a step, traced.

    Args:
        step: number of the step, from 0; also one that the run did not come to.
        sequences: their places in the batch; None: all.

    Raises:
        ProvenanceError: there is no such sequence, or a stream cannot be traced.
        StreamError: there is no such step.
    """
    samples, order = opened.order.samples_of_step(step), opened.order
    chosen = list(range(len(samples))) if sequences is None else list(sequences)
    if wrong := [one for one in chosen if not 0 <= one < len(samples)]:
        raise ProvenanceError(f"a step reads {len(samples):,} sequences, numbered from 0; asked for {wrong[0]:,}")
    of_stream, ordinals = order.ordinals(samples[chosen])
    _, windows = order.locate(samples[chosen])
    traced: dict[int, TracedSequence] = {}
    for number, name in enumerate(order.names):
        rows = np.flatnonzero(of_stream == number)
        if not len(rows):
            continue
        stream = opened.windows.streams[number]
        if isinstance(stream, IndexedStream):
            known = documents_of_gone(records.places, name, stream)
        else:
            known = documents_of(records.places, name, opened.folders[name], opened.run.seq_length)
        found = trace_windows(stream, known, records, windows[rows].tolist(), keep_texts=keep_texts)
        for row, window in zip(rows.tolist(), found, strict=True):
            sample, epoch = int(samples[chosen[row]]), int(ordinals[row]) // order.sizes[number]
            traced[row] = TracedSequence(window, known.tokenizer, step, chosen[row], sample, epoch)
    return [traced[row] for row in range(len(chosen))]


def trace_window(
    records: DocumentRecords, name: str, window: int, seq_length: int | None, *, keep_texts: bool = False
) -> TracedSequence:
    """Return a window of a stream, traced.

    Args:
        seq_length: predictions of a window, where the stream is flat tokens; else not looked at.

    Raises:
        ProvenanceError: there is no such stream or window, or it cannot be traced.
        StreamError: the stream cannot be read.
    """
    folder = folder_of_stream(records.places, name)
    stream = open_one_stream(name, folder, "sizes", seq_length)
    known = documents_of(records.places, name, folder, stream.seq_length)
    return TracedSequence(trace_windows(stream, known, records, [window], keep_texts=keep_texts)[0], known.tokenizer)


def token_at(sequence: TracedSequence, position: int) -> TracedToken:
    """Return one token of a window.

    Raises:
        ProvenanceError: there is no such position.
    """
    window, tokenizer = sequence.window, sequence.tokenizer
    if not window.ids_known:
        raise ProvenanceError(
            f"the stream {window.stream} was made again since the run, and only the index of the former one is here: "
            "which token stood at a position is not known. Ask for the window without --position"
        )
    span, token = window.span_at(position), int(window.tokens[position])
    spelled = None if tokenizer is None else bytes_of_token(tokenizer, token)
    number = None if span is None else span.first + position - span.at
    characters, part = _characters(span, number)
    return TracedToken(
        position=position,
        id=token,
        text=None if spelled is None else decoded(spelled),
        bytes=spelled,
        number=number,
        characters=characters,
        part=part,
        kind=_kind(sequence, span, token, number),
        counts_in_loss=bool(window.counted[position]),
    )


def _characters(span: TracedSpan | None, number: int | None) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    if not isinstance(span, TextSpan) or number is None:
        return None, None
    located = span.located
    start, end = located.range(number, number + 1)
    if start == end:
        return None, None
    if located.bytes is None or span.text is None:
        return (start, end), None
    before = len(span.text[:start].encode())
    first, last = int(located.bytes[number]) - before, int(located.bytes[number + 1]) - before
    whole = len(span.text[start:end].encode())
    return (start, end), None if (first, last) == (0, whole) else (first, last)


def _kind(sequence: TracedSequence, span: TracedSpan | None, token: int, number: int | None) -> str:
    if span is None:
        return "padding" if sequence.window.documents_known else "text"
    if isinstance(span, ReflectionSpan):
        return "reflection"
    tokenizer = sequence.tokenizer
    if tokenizer is None or token not in tokenizer.special_tokens.values():
        return "text"
    if token != tokenizer.eos_id:
        return "special"
    if not isinstance(span, TextSpan):
        return "taken_down"
    assert number is not None
    return "eos" if int(span.located.starts[number]) == int(span.located.ends[number]) else "special"
