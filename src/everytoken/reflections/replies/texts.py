"""Texts as they are stored: without halves of surrogate pairs, summaries cut to a number of tokens."""

from __future__ import annotations

import re

from everytoken.tokens.encoding import TokenSpans

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> tuple[str, int]:
    """Return a text with U+FFFD in place of each half of a surrogate pair, which has no UTF-8; and how many it had."""
    return _SURROGATE.subn("\ufffd", text)


def cut_summary(spans: TokenSpans, text: str, budget: int) -> tuple[str, int]:
    """Return the text of the first ``budget`` tokens, and how many it has; a shorter text stays as it is.

    A character that the cut would divide goes wholly.
    """
    found = spans.first(text, budget + 1)
    if len(found) <= budget:
        return text, len(found)
    kept = budget
    while kept and found[kept][0] < found[kept - 1][1]:
        kept -= 1
    return text[: found[kept - 1][1]] if kept else "", kept
