"""A page that shows every token of a batch: coloured by document, with the provenance of the one that is pointed at.

One file of HTML that asks no network. Tokens stand in it as ids (base64 of uint16 or uint32, 2.7 or 5.3 bytes a token)
beside a table of what each id that occurs spells; the page makes elements of those sequences alone that are in view, so
a batch of 960 sequences of 2,049 tokens (two million) can be scrolled. Texts and ids are data in a block that they
cannot end, and enter the page as text nodes only; control characters, marks of direction and lone bytes are spelled
out. A content security policy allows the page's own script and style, by their digests, and nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.html_pages import page_with
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.trace.spans import (
    IndexSpan,
    NumberedSpan,
    ReflectionSpan,
    TakenDownSpan,
    TextSpan,
    TracedSpan,
)
from everytoken.provenance.trace.steps import TracedSequence
from everytoken.shards import write_text
from everytoken.tokens.tokenizer import DocumentTokenizer, bytes_of_token, decoded

_TEMPLATE = "batch_page.html"


def write_batch_page(path: Path, sequences: Sequence[TracedSequence], title: str, options: str = "") -> int:
    """Write the page of traced sequences; return its bytes. Arguments as of `batch_page`."""
    page = batch_page(sequences, title, options)
    write_text(path, page)
    return len(page.encode())


def batch_page(sequences: Sequence[TracedSequence], title: str, options: str = "") -> str:
    """Return the page of traced sequences.

    Args:
        options: of the command that traced them, which the page names for each token.

    Raises:
        ProvenanceError: a stream is gone, and its index is there alone.
    """
    if gone := next((one.window for one in sequences if not one.window.ids_known), None):
        raise ProvenanceError(
            f"the stream {gone.stream} was made again since the run, and only the index of the former one is here: "
            "there are no tokens that a page could show. Ask without --html"
        )
    documents = _Documents()
    wide = any(int(one.window.tokens.max(initial=0)) >= 1 << 16 for one in sequences)
    data = {
        "title": title,
        "options": options,
        "wide": wide,
        "sequences": [_sequence(one, documents, wide) for one in sequences],
        "documents": documents.told,
        "spelled": _spelled(sequences),
        "eos": sorted({one.tokenizer.eos_id for one in sequences if one.tokenizer is not None}),
    }
    return page_with(__package__, _TEMPLATE, data)


class _Documents:
    """What is told of each document, once however many windows it is in; as pairs of a name and a text."""

    def __init__(self) -> None:
        self.told: list[list[list[str]]] = []
        self._numbers: dict[Any, int] = {}

    def number(self, sequence: TracedSequence, span: TracedSpan) -> int:
        """Return the number of a span's document."""
        key: Any
        if isinstance(span, NumberedSpan):
            key, told = (sequence.window.stream, span.document), _of_file(span)
        elif isinstance(span, ReflectionSpan):
            key, told = (sequence.window.stream, span.document, "reflection"), _of_reflection(span)
        else:
            key, told = (span.record.split, span.record.number), _of_record(span)
        if key not in self._numbers:
            self._numbers[key] = len(self.told)
            self.told.append(told)
        return self._numbers[key]


def _of_file(span: NumberedSpan) -> list[list[str]]:
    file = [] if span.file is None else [["file", span.file[0]], ["document of the file", f"{span.file[1]:,}"]]
    return [["sequence of the .idx", f"{span.document:,}"], *file]


def _of_reflection(span: ReflectionSpan) -> list[list[str]]:
    """Return who wrote it, then of which document it is."""
    said = span.record.reflection or {}
    told = [[name, str(value)] for name, value in said.items() if value is not None]
    return [["reflection", "generated, not the document's"], *told, *_of_record(span)]


def _of_record(span: TextSpan | TakenDownSpan | IndexSpan | ReflectionSpan) -> list[list[str]]:
    record = span.record
    told: list[tuple[str, Any]] = []
    if record.canary is not None:
        told += [("canary", "made, not an upstream's"), ("id", record.id), ("line", record.row), *record.canary.items()]
    else:
        told += [
            ("source", record.source),
            ("address", record.spelled_address),
            ("file", record.path),
            ("id", record.id),
            ("safety score", "not scored" if record.safety_score is None else record.safety_score),
            ("excluded", record.excluded),
        ]
    told += [("split", f"{record.split}, document {record.number:,}")]
    if isinstance(span, TextSpan):
        told += [("characters", f"{span.located.characters:,}"), ("tokens", f"{len(span.located.ids):,}")]
    return [[name, str(value)] for name, value in told if value is not None]


def _sequence(one: TracedSequence, documents: _Documents, wide: bool) -> dict[str, object]:
    window = one.window
    place = f"window {window.window:,} of {window.stream}"
    if one.step is not None:
        place = f"sequence {one.sequence}: sample {one.sample:,}, {place}, epoch {one.epoch}"
    changes = np.flatnonzero(np.diff(window.counted, prepend=False, append=False))
    return {
        "name": place,
        "where": f"--step {one.step} --sequence {one.sequence}"
        if one.step is not None
        else f"--stream {window.stream} --window {window.window}",
        "count": len(window.tokens),
        "ids": base64.b64encode(window.tokens.astype("<u4" if wide else "<u2").tobytes()).decode(),
        "counted": changes.tolist(),  # where it begins, where it ends, ...
        "spans": [
            [
                documents.number(one, span),
                span.at,
                span.end,
                span.first,
                -1 if span.length is None else span.length,
                *(span.characters or (-1, -1)),
                span.counted,
                int(span.taken_down),
                int(isinstance(span, ReflectionSpan)),
            ]
            for span in window.spans
        ],
        "known": window.documents_known,
    }


def _spelled(sequences: Sequence[TracedSequence]) -> dict[str, object]:
    """Return what each id that occurs spells: its text, or its bytes where these are no whole characters."""
    by_tokenizer: dict[int, tuple[DocumentTokenizer, list[np.ndarray]]] = {}
    for one in sequences:
        if one.tokenizer is not None:
            by_tokenizer.setdefault(id(one.tokenizer), (one.tokenizer, []))[1].append(one.window.tokens)
    spelled: dict[str, Any] = {}
    for tokenizer, tokens in by_tokenizer.values():
        for token in np.unique(np.concatenate(tokens)).tolist():
            found = bytes_of_token(tokenizer, token)
            text = decoded(found)
            spelled[str(token)] = list(found) if text is None else text
    return spelled
