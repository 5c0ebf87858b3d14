"""Traced windows and exposures as lines for a terminal: control characters of texts and ids are spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from everytoken.provenance.questions.document_records import DocumentRecord
from everytoken.provenance.questions.exposure import DocumentExposure, Exposure
from everytoken.provenance.questions.exposure_questions import Answer
from everytoken.provenance.questions.trace import TracedSpan
from everytoken.provenance.questions.traced_steps import TracedSequence, TracedToken
from everytoken.provenance.questions.unused_documents import EXCLUDED, NO_ROW, NOT_DRAWN, NOT_PLANNED, Unused
from everytoken.provenance.questions.upstream_text import Address, UpstreamDocument

_AROUND = 80  # characters of the text on both sides of a traced span
_KINDS = {
    "text": "",
    "special": "; a special token that the text spells",
    "eos": "; EOS, which is no part of the text",
    "padding": "; padding",
    "taken_down": "; EOS in the place of a document that was taken down",
}


def shown(text: str) -> str:
    """Return a text with control, format and other characters that a terminal would act on spelled out."""
    return "".join(
        f"\\u{{{ord(character):x}}}" if _acts(character) else character for character in text.replace("\r", "\\r")
    )


def quoted(text: str | None) -> str:
    """Return a text in quotes on one line, or ``none``."""
    return "none" if text is None else '"' + shown(text).replace("\n", "\\n") + '"'


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
        sequence: the window.
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
    yield f"{len(window.tokens):,} tokens; {int(window.counted.sum()):,} of them count in the loss"
    if not window.documents_known:
        yield "nothing says which documents they are of: no index of this project, and an .idx of windows alone"
    if position is not None:
        yield from _token_lines(position)
    for span in window.spans:
        if position is None or span.at <= position.position < span.end:
            yield from _span_lines(span, position, texts)
    begin, end = window.padding
    if position is None and begin < end and window.documents_known:
        yield f"[{begin}, {end})  padding: {end - begin} times EOS, none counts in the loss"


def record_line(record: DocumentRecord) -> str:
    """Return what tells a document: where it is from, its id, its score, its split."""
    if record.canary is not None:
        told = ", ".join(f"{name} {quoted(str(value))}" for name, value in record.canary.items() if value is not None)
        return (
            f"canary document {record.number:,} (its text is made, it is no upstream's): id {quoted(record.id)}, "
            f"line {record.row:,} of its file, {told}"
        )
    path = "" if record.path is None else f" ({shown(record.path)})"
    excluded = "" if record.excluded is None else f", taken down: {quoted(record.excluded)}"
    return (
        f"{shown(str(record.source))} / shard {record.shard_index} / row {record.row}{path}, id {quoted(record.id)}, "
        f"safety score {record.safety_score}, {record.split} document {record.number:,}{excluded}"
    )


def answer_lines(answer: Answer, limit: int, at_step: int | None) -> Iterator[str]:
    """Yield what a run read of documents; of each at most ``limit`` times that it did."""
    run = answer.runs[-1]
    steps = run.steps if at_step is None else at_step
    began = "".join(f", begun from {one.name} ({one.steps:,} steps)" for one in reversed(answer.runs[:-1]))
    beyond = f"; the run ended after {run.steps:,}, beyond that it is what it would read" if steps > run.steps else ""
    yield f"{run.name}: the first {steps:,} steps of {run.batch_size:,} sequences{began}{beyond}"
    for note in answer.notes:
        yield f"note: {note}"
    for document in answer.documents:
        yield ""
        yield from _exposure_lines(document, limit, several=len(answer.runs) > 1)
    for unused in answer.unused:
        yield ""
        yield _unused_line(unused)
    if answer.more:
        yield ""
        yield f"and {answer.more:,} more documents (--limit)"
    if not answer.documents and not answer.unused:
        yield "no document was found"


def _exposure_lines(document: DocumentExposure, limit: int, several: bool) -> Iterator[str]:
    yield record_line(document.record)
    if document.record.split == "held_out":
        yield "  held out: no stream has it"
    elif not document.held:
        yield "  no window of the run's streams holds it"
    for held in document.held[:limit]:
        end = held.at + held.end - held.first
        yield f"  window {held.window:,} of {held.stream}: its tokens [{held.first}, {held.end}) at [{held.at}, {end})"
    if len(document.held) > limit:
        yield f"  and {len(document.held) - limit:,} more windows (--limit)"
    seen = document.exposures
    if not seen:
        if document.held:
            yield "  not read in these steps"
        return
    tokens, counted = sum(one.tokens for one in seen), sum(one.held.counted for one in seen)
    yield (
        f"  read {_times(len(seen))}: {tokens:,} tokens, {counted:,} of them counted in the loss; first in step "
        f"{_step(seen[0], several)}, last in step {_step(seen[-1], several)}"
    )
    for one in seen[:limit]:
        skipped = "; the step was skipped and updated nothing" if one.skipped else ""
        end = one.held.at + one.tokens
        yield (
            f"    step {_step(one, several)}, sequence {one.sequence} (sample {one.sample:,}, epoch {one.epoch}): "
            f"window {one.held.window:,} of {one.held.stream}, positions [{one.held.at}, {end}){skipped}"
        )
    if len(seen) > limit:
        yield f"    and {len(seen) - limit:,} more times (--limit)"
    past = [f"step {one.step:,} ({_times(one.times)})" for one in document.checkpoints]
    yield f"  before the checkpoints of {', '.join(past) or 'no step that is kept'}"


def _step(exposure: Exposure, several: bool) -> str:
    return f"{exposure.step:,}" + (f" of {exposure.run}" if several else "")


def _unused_line(unused: Unused) -> str:
    told = {
        NOT_PLANNED: "it was not read",
        NO_ROW: "there is no such row",
        NOT_DRAWN: "it is a document, and no split drew it",
        EXCLUDED: "it was taken down",
    }.get(unused.reason, f"set aside as {unused.reason}")
    detail = "" if unused.detail is None else f" ({shown(unused.detail)})"
    return (
        f"{shown(unused.source)} / shard {unused.shard_index} / row {unused.row}, id {quoted(unused.id)}: in no split; "
        f"{told}{detail}"
    )


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
    if span.characters is not None and span.located is not None:
        start, end = span.characters
        characters = f"; characters [{start:,}, {end:,}) of {span.located.characters:,}"
    ended = ", EOS with them" if span.has_eos else ""
    cut = "; the text goes on, it was cut to the cap" if span.is_cut and span.has_eos else ""
    down = "; taken down: EOS stands in its place" if span.taken_down else ""
    yield (
        f"{begin}  tokens [{span.first:,}, {span.last:,}){length} of the document{ended}{characters}; "
        f"{span.counted:,} count in the loss{cut}{down}"
    )
    indent = " " * (len(begin) + 2)
    if span.record is None:
        of_file = "" if span.file is None else f": document {span.file[1]:,} of {shown(span.file[0])}"
        yield f"{indent}sequence {span.document:,} of the stream's .idx{of_file}"
        return
    yield indent + record_line(span.record)
    marked = position.characters if position is not None else span.characters
    if texts is not None and marked is not None:
        text = span.text if span.record.address is None else texts[span.record.address].text
        yield from (indent + line for line in _marked(str(text), marked))


def _marked(text: str, span: tuple[int, int]) -> Sequence[str]:
    """Return the lines of a text with a span between ``[[[`` and ``]]]``, and what is near it."""
    start, end = span
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    head, tail = "..." if start > _AROUND else "", "..." if end + _AROUND < len(text) else ""
    return f"{head}{shown(before)}[[[{shown(text[start:end])}]]]{shown(after)}{tail}".split("\n")


def _times(count: int) -> str:
    return "once" if count == 1 else "never" if not count else f"{count:,} times"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 % 10 != 1 else "th"
    return f"{number:,}{ending}"
