"""Traced windows as lines for a terminal: control characters of texts and ids are spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from everytoken.address import Address
from everytoken.provenance.lookup import DocumentRecord
from everytoken.provenance.trace.spans import NumberedSpan, TextSpan, TracedSpan
from everytoken.provenance.trace.steps import TracedSequence, TracedToken

if TYPE_CHECKING:
    from everytoken.provenance.lookup import UpstreamDocument  # with all that reads upstreams: a quarter of a second

_WIDTH = 120  # of a line about a document
_SHORTEST = 16  # characters of an id are shown at least
_AROUND = 80  # characters of the text on both sides of a traced span
_KINDS = {
    "text": "",
    "special": "; a special token that the text spells",
    "eos": "; EOS, which is no part of the text",
    "padding": "; padding",
    "taken_down": "; EOS in the place of a document that was taken down",
}


def printable(text: str) -> str:
    """Return a text with control, format and other characters that a terminal would act on spelled out."""
    return "".join(
        f"\\u{{{ord(character):x}}}" if _acts(character) else character for character in text.replace("\r", "\\r")
    )


def quoted(text: str | None) -> str:
    """Return a text in quotes on one line, or ``none``."""
    return "none" if text is None else '"' + printable(text).replace("\n", "\\n") + '"'


def _acts(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def sequence_lines(
    sequence: TracedSequence,
    run: str | None,
    *,
    position: TracedToken | None = None,
    texts: Mapping[Address, UpstreamDocument] | None = None,
) -> Iterator[str]:
    """Yield what a window is made of.

    Args:
        run: name of the run that read it; None of a window alone.
        position: one token of it, and then its document alone is told.
        texts: of documents as their upstream has them.
    """
    window = sequence.window
    if sequence.step is not None:
        yield (
            f"step {sequence.step:,}, sequence {sequence.sequence} of {run}: sample {sequence.sample:,} is window "
            f"{window.window:,} of the stream {window.stream}, read for the {_ordinal((sequence.epoch or 0) + 1)} time"
        )
    else:
        yield f"window {window.window:,} of the stream {window.stream}"
    counted = (
        f"{int(window.counted.sum()):,} of them count in the loss"
        if window.counts_known
        else "which count is not known"
    )
    yield f"{len(window.tokens):,} tokens; {counted}"
    if not window.documents_known:
        yield "nothing says which documents they are of: no index of this project, and an .idx of windows alone"
    if not window.ids_known:
        yield (
            "note: the stream was made again since, as by a take-down. Its index says which documents the window held; "
            "no id was compared"
        )
    if position is not None:
        yield from _token_lines(position)
    for span in window.spans:
        if position is None or span.at <= position.position < span.end:
            yield from _span_lines(span, position, texts)
    begin, end = window.padding
    if position is None and begin < end and window.documents_known:
        yield f"[{begin}, {end})  padding: {end - begin} times EOS, none counts in the loss"


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters: a long one with … in its middle."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def record_line(record: DocumentRecord, width: int = _WIDTH, more: str = "") -> str:
    """Return what tells a document: its address, id, score, split, and more; long ids are shortened to fit."""
    if record.canary is not None:
        told = ", ".join(f"{name} {quoted(str(value))}" for name, value in record.canary.items() if value is not None)
        name = quoted(shortened(str(record.id), 40))
        return f"canary document {record.number:,}: id {name}, line {record.row:,} of its file, {told}{more}"
    before = f"{printable(str(record.spelled_address))}, id "
    after = f", safety score {record.safety_score}, {record.split} {record.number:,}"
    if record.excluded is not None:
        after += f", taken down: {quoted(shortened(record.excluded, 30))}"
    after += more
    most = max(_SHORTEST, width - len(before) - len(after) - 2)
    name = "none" if record.id is None else f'"{shortened(quoted(record.id)[1:-1], most)}"'
    return before + name + after


def file_lines(records: Iterable[DocumentRecord | None]) -> Iterator[str]:
    """Yield which file of its upstream each number in the addresses of documents is, each once."""
    told = {(one.source, one.shard_index): one.path for one in records if one is not None and one.path is not None}
    if told:
        yield ""
    for (source, shard_index), path in sorted(told.items(), key=str):
        yield f"{printable(str(source))} file {shard_index}: {printable(str(path))}"


def _token_lines(token: TracedToken) -> Iterator[str]:
    spelled = "" if token.bytes is None else f", bytes {token.bytes.hex(' ')}"
    text = "" if token.text is None else f" {quoted(token.text)}"
    yield f"position {token.position}: token {token.id}{text}{spelled}{_KINDS[token.kind]}"
    if token.counts_in_loss:
        yield f"it counts in the loss, as the target of prediction {token.position - 1}"
    else:
        yield "it does not count in the loss" + (": nothing predicts the first token" if not token.position else "")
    if token.characters is not None:
        part = "" if token.part is None else f", bytes [{token.part[0]}, {token.part[1]}) of their UTF-8"
        yield f"it is made from the characters [{token.characters[0]}, {token.characters[1]}){part} of the document"


def _span_lines(
    span: TracedSpan, position: TracedToken | None, texts: Mapping[Address, UpstreamDocument] | None
) -> Iterator[str]:
    begin = f"[{span.at}, {span.end})"
    length = "" if span.length is None else f" of {span.length:,}"
    characters = ""
    if isinstance(span, TextSpan) and span.characters is not None:
        start, end = span.characters
        characters = f"; characters [{start:,}, {end:,}) of {span.located.characters:,}"
    ended = ", EOS too" if span.has_eos else ""
    cut = ""
    if isinstance(span, TextSpan) and span.is_cut:
        cut = f"; cut to the cap, of {span.located.whole_length:,}"
    down = "; taken down: EOS stands in its place" if span.taken_down else ""
    counted = f"; {span.counted:,} count in the loss" if span.counted is not None else ""
    yield f"{begin}  tokens [{span.first:,}, {span.last:,}){length}{ended}{characters}{counted}{down}"
    indent = " " * (len(begin) + 2)
    if isinstance(span, NumberedSpan):
        of_file = "" if span.file is None else f": document {span.file[1]:,} of {printable(span.file[0])}"
        yield f"{indent}sequence {span.document:,} of the stream's .idx{of_file}"
        return
    yield indent + record_line(span.record, _WIDTH - len(indent), cut)
    marked = position.characters if position is not None else span.characters
    if texts is not None and marked is not None:
        own = span.text if isinstance(span, TextSpan) else None
        text = own if span.record.address is None else texts[span.record.address].text
        yield from (indent + line for line in _marked(str(text), marked))


def _marked(text: str, span: tuple[int, int]) -> Sequence[str]:
    """Return the lines of a text with a span between ``[[[`` and ``]]]``, and what is near it."""
    start, end = span
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    head, tail = "..." if start > _AROUND else "", "..." if end + _AROUND < len(text) else ""
    return f"{head}{printable(before)}[[[{printable(text[start:end])}]]]{printable(after)}{tail}".split("\n")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 % 10 != 1 else "th"
    return f"{number:,}{ending}"
