"""A picture of a batch: the text of its windows as SVG, coloured by document, with the address of each.

The picture asks no network and has a ground of its own, so it is readable on a light and on a dark page. Its letters
are in columns of equal width: a run of letters that a font draws wider is pressed into its columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everytoken.html_pages import Markup, element
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.trace.spans import NumberedSpan, ReflectionSpan, TracedSpan
from everytoken.provenance.trace.steps import TracedSequence
from everytoken.shards import write_text
from everytoken.tokens.tokenizer import DocumentTokenizer, bytes_of_token

_COLUMNS = 110
_ADVANCE, _ROW, _MARGIN = 7.8, 20, 16
_COLOURS = 6
_LONGEST_ID = 36
_EOS, _LINE_END, _UNSEEN = "■", "↵", "·"
_LIGHT = ("#cfe3ff", "#ffe0b8", "#cdeecb", "#f6cfe4", "#e2d6fb", "#f3eba6")
_DARK = ("#173f73", "#6b3d00", "#1b5128", "#6d2350", "#46307f", "#545009")
_HEAD = "font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"


def write_batch_picture(path: Path, sequences: Sequence[TracedSequence], title: str) -> int:
    """Write the picture of traced sequences; return its bytes. Arguments and errors as of `batch_picture`."""
    picture = batch_picture(sequences, title)
    write_text(path, picture)
    return len(picture.encode())


def batch_picture(sequences: Sequence[TracedSequence], title: str) -> str:
    """Return the picture of traced sequences, an SVG document.

    Documents have colours in the order in which they come. An EOS is ■, a line end ↵, and what one cannot see ·.

    Raises:
        ProvenanceError: the text of a sequence is not known, as its stream or its tokenizer is gone.
    """
    rows = [_Row(((0, title, "head"),))]
    colours: dict[str, int] = {}
    for sequence in sequences:
        rows += [_Row(()), _Row(((0, _name(sequence), "soft"),)), *_text_rows(sequence, colours), _Row(())]
        told = dict.fromkeys(_told(span) for span in sequence.window.spans)
        rows += [_Row(((0, "  ", _colour(colours, one)), (3, one, "soft"))) for one in told]
    width, height = _COLUMNS * _ADVANCE + 2 * _MARGIN, len(rows) * _ROW + 2 * _MARGIN
    ground = element("rect", width="100%", height="100%", rx=6, **{"class": "ground"})
    drawn = [part for number, row in enumerate(rows) for part in _drawn(row, _MARGIN + number * _ROW)]
    picture = element(
        "svg",
        element("title", _visible(title)),
        element("style", Markup(_style())),
        ground,
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
    )
    return f"{picture}\n"


@dataclass(frozen=True)
class _Row:
    """Pieces of a line: the column where each begins, its letters, and its class."""

    pieces: tuple[tuple[int, str, str], ...]


def _name(sequence: TracedSequence) -> str:
    window = sequence.window
    place = f"window {window.window:,} of the stream {window.stream}"
    return place if sequence.step is None else f"sequence {sequence.sequence}: sample {sequence.sample:,}, {place}"


def _told(span: TracedSpan) -> str:
    """Return which document a span is of."""
    if isinstance(span, NumberedSpan):
        return f"document {span.document:,}" + ("" if span.file is None else f" of {span.file[0]}")
    record = span.record
    name = record.spelled_address or f"canary document {record.number:,}"
    score = "" if record.safety_score is None else f", safety score {record.safety_score:g}"
    written = "reflection about " if isinstance(span, ReflectionSpan) else ""
    named = f", id {record.id}" if record.spelled_address and record.id and len(record.id) <= _LONGEST_ID else ""
    return f"{written}{name}{named}, {record.split} document {record.number:,}{score}"


def _colour(colours: dict[str, int], told: str) -> str:
    return f"d{colours.setdefault(told, len(colours)) % _COLOURS}"


def _text_rows(sequence: TracedSequence, colours: dict[str, int]) -> Iterator[_Row]:
    """Yield the text of a window in rows of `_COLUMNS` letters; the last says how many tokens are padding."""
    tokenizer, window = sequence.tokenizer, sequence.window
    if tokenizer is None or not window.ids_known:
        raise ProvenanceError(
            f"window {window.window:,} of {window.stream}: its text is not known, as the stream or its tokenizer is "
            "gone. Ask without --svg"
        )
    letters: list[tuple[str, str]] = []
    for span in window.spans:
        text = _letters(tokenizer, window.tokens[span.at : span.end].tolist())
        letters += [(letter, _colour(colours, _told(span))) for letter in text]
    for begin in range(0, len(letters), _COLUMNS):
        yield _Row(tuple(_pieces(letters[begin : begin + _COLUMNS])))
    if padding := len(window.tokens) - sum(span.end - span.at for span in window.spans):
        yield _Row(((0, f"and padding: {padding:,} times EOS", "soft"),))


def _letters(tokenizer: DocumentTokenizer, tokens: Sequence[int]) -> list[str]:
    """Return the letters of tokens, one a column, each with its combining marks."""
    found: list[str] = []
    spelled = b""
    for token in [*tokens, tokenizer.eos_id]:
        if token != tokenizer.eos_id:
            spelled += bytes_of_token(tokenizer, token)
            continue
        for character in spelled.decode(errors="replace"):
            if found and _is_mark(character):
                found[-1] += character
            else:
                found.append(_letter(character))
        found.append(_EOS)
        spelled = b""
    return found[:-1]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _visible(text: str) -> str:
    """Return a text without what XML forbids or one cannot see."""
    return "".join(one if _is_mark(one) else _letter(one) for one in text)


def _letter(character: str) -> str:
    if character == "\n":
        return _LINE_END
    if character.isspace():
        return " "
    return _UNSEEN if unicodedata.category(character)[0] in "CM" else character


def _pieces(letters: Sequence[tuple[str, str]]) -> Iterator[tuple[int, str, str]]:
    begin = 0
    for place in range(1, len(letters) + 1):
        if place == len(letters) or letters[place][1] != letters[begin][1]:
            yield begin, "".join(letter for letter, _ in letters[begin:place]), letters[begin][1]
            begin = place


def _drawn(row: _Row, top: float) -> Iterator[Markup]:
    for column, letters, kind in row.pieces:
        x, width = _MARGIN + column * _ADVANCE, sum(not _is_mark(letter) for letter in letters) * _ADVANCE
        is_text = kind.startswith("d")
        if is_text:
            yield element("rect", x=f"{x:g}", y=f"{top:g}", width=f"{width:g}", height=_ROW, **{"class": kind})
        if not letters.strip():
            continue
        pressed = {"textLength": f"{width:g}", "lengthAdjust": "spacingAndGlyphs"} if is_text else {}
        space = {"xml:space": "preserve"} if is_text else {}
        given = {**pressed, **space, **({} if is_text else {"class": kind})}
        yield element("text", _visible(letters), x=f"{x:g}", y=f"{top + 14:g}", **given)


def _style() -> str:
    def palette(ground: str, ink: str, soft: str, colours: Sequence[str]) -> str:
        of_documents = "".join(f".d{number}{{fill:{colour}}}" for number, colour in enumerate(colours))
        return f".ground{{fill:{ground}}}text{{fill:{ink}}}text.soft{{fill:{soft}}}{of_documents}"

    light = palette("#ffffff", "#1f2328", "#59636e", _LIGHT)
    dark = palette("#0d1117", "#f0f6fc", "#9198a1", _DARK)
    shape = f"text{{{_HEAD};white-space:pre;direction:ltr;unicode-bidi:bidi-override}}text.head{{font-weight:600}}"
    return f"{shape}{light}@media (prefers-color-scheme:dark){{{dark}}}"
