"""The text of a document that a model was trained on: up to the end of the last token that its window has."""

from __future__ import annotations

from typing import NamedTuple

from everytoken.tokens.encoding import TokenSpans


class TrainedText(NamedTuple):
    """A text as a window has it, and its content tokens."""

    text: str
    tokens: int


def trained_text(spans: TokenSpans, text: str, length: int | None) -> TrainedText:
    """Return a text up to the end of its token number ``length - 1``.

    Args:
        length: content tokens of its window; None: the text is already as it was trained on.
    """
    if length is None:
        return TrainedText(text, spans.count(text))
    kept = spans.first(text, length) if length else []
    return TrainedText(text[: kept[-1][1]] if kept else "", len(kept))
