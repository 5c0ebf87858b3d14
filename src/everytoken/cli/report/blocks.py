"""What a report contains, apart from how it is written: sections of texts, tables, quotations and pictures.

Three writers show the same blocks: plain text for a terminal, Markdown, and elements of HTML.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from everytoken.html_pages import Markup, element

_COLUMNS = 120
_MARKS = re.compile(r"([\\`*{}\[\]<>|~#]|(?<!\w)_|_(?!\w))")


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True)
class DataTable:
    """Rows of texts.

    Attributes:
        head: a title for each column; all empty for a list of names and values.
        texts: how many columns from the left are text; the others are numbers, and aligned to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


@dataclass(frozen=True)
class Quotation:
    """A text that somebody or something wrote: shown as it is."""

    said_by: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A chart, and the sentence that says what it shows: all that plain text and Markdown have of it."""

    chart: Markup
    says: str


ReportBlock = Paragraph | DataTable | Quotation | Picture


@dataclass(frozen=True)
class Section:
    """Blocks under a title."""

    title: str
    blocks: Sequence[ReportBlock]


def plain_lines(section: Section) -> Iterator[str]:
    """Yield the lines of a section for a terminal of 120 columns."""
    yield section.title
    for block in section.blocks:
        match block:
            case Paragraph(text):
                yield from textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
            case DataTable():
                yield from _plain_table(block)
            case Quotation(said_by, text):
                yield from textwrap.wrap(f"{said_by}: {text!r}", _COLUMNS, initial_indent="  ", subsequent_indent="  ")
            case Picture():
                pass


def _plain_table(table: DataTable) -> Iterator[str]:
    rows = [*([table.head] if any(table.head) else []), *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    for row in rows:
        cells = (
            f"{cell:<{width}}" if number < table.texts else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(cells)}".rstrip()


def markdown(sections: Iterable[Section], level: int = 2) -> str:
    """Return sections as Markdown of GitHub's and Hugging Face's kind.

    Args:
        level: of the headings of sections.
    """
    return "\n\n".join(_markdown_lines(sections, level)) + "\n"


def _markdown_lines(sections: Iterable[Section], level: int) -> Iterator[str]:
    for section in sections:
        yield f"{'#' * level} {_escaped(section.title)}"
        for block in section.blocks:
            match block:
                case Paragraph(text):
                    yield _escaped(text)
                case DataTable():
                    yield "\n".join(_markdown_table(block))
                case Quotation(said_by, text):
                    yield f"{_escaped(said_by)}:"
                    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
                    yield f"{fence}text\n{text}\n{fence}"
                case Picture(_, says):
                    yield f"*{_escaped(says)} The chart is in the HTML page.*"


def _markdown_table(table: DataTable) -> Iterator[str]:
    yield _markdown_row(table.head)
    yield _markdown_row(["---" if number < table.texts else "---:" for number in range(len(table.head))], as_is=True)
    yield from map(_markdown_row, table.rows)


def _markdown_row(cells: Sequence[str], *, as_is: bool = False) -> str:
    return f"| {' | '.join(cells if as_is else map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Return a text on one line whose characters mean nothing in Markdown; half a character is spelled out."""
    one_line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return _MARKS.sub(r"\\\1", one_line)


def html_elements(sections: Iterable[Section]) -> Iterator[Markup]:
    """Yield sections as elements of HTML."""
    for section in sections:
        yield element("h2", section.title)
        for block in section.blocks:
            match block:
                case Paragraph(text):
                    yield element("p", text)
                case DataTable():
                    yield _html_table(block)
                case Quotation(said_by, text):
                    yield element("h3", said_by)
                    yield element("pre", text)
                case Picture(chart, says):
                    yield element("figure", chart, element("figcaption", says))


def _html_table(table: DataTable) -> Markup:
    def row(cells: Sequence[str], name: str) -> Markup:
        return element(
            "tr", *(element(name, cell, **{"class": _kind(number, table)}) for number, cell in enumerate(cells))
        )

    head = [element("thead", row(table.head, "th"))] if any(table.head) else []
    body = element("tbody", *(row(cells, "td") for cells in table.rows))
    return element("div", element("table", *head, body), **{"class": "wide"})


def _kind(number: int, table: DataTable) -> str:
    return "text" if number < table.texts else "number"
