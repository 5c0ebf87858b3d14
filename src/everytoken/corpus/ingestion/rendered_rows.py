"""A row of a file becomes a document: by the renderer of its source, and by its rule about personal data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from everytoken.corpus.personal_data import find_personal_data, masked_spans, masked_text
from everytoken.corpus.reading import Reading, Row
from everytoken.corpus.rendering import RENDERERS, RenderedDocument


class RenderedRow(NamedTuple):
    """A document, and how much personal data of each kind was found in it, where it is looked for."""

    document: RenderedDocument
    personal_data: Mapping[str, int]


def render_row(row: Row, reading: Reading) -> RenderedRow:
    """Return the document of a row, with what its rule masks.

    Raises:
        BadRow: the row is no document.
    """
    document = RENDERERS[reading.renderer.kind](row.key, row.record, reading.renderer)
    rule = reading.personal_data
    if rule is None:
        return RenderedRow(document, {})
    found = find_personal_data(document.text, rule.kinds)
    if found and rule.rule == "mask":
        spans = document.assistant_spans
        document = document._replace(
            text=masked_text(document.text, found),
            assistant_spans=None if spans is None else masked_spans(spans, found),
        )
    return RenderedRow(document, Counter(one.kind for one in found))
