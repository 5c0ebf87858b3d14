r"""Very long texts in pieces, with the ids that the whole text has: a text of 300 MB needs no more memory than others.

A text may be cut between a letter and a space that another letter follows (``a| b``), when the pre-tokenizer is
GPT-2's regular expression, alone or after cutters that look at single characters. Every alternative of that
expression that can match a letter ends before the space, and the next match begins with the space; neither looks
back, and the look-ahead of ``\s+(?!\S)`` matters only in runs of whitespace, which a single space between letters
is not. Normal forms of Unicode never join a letter and a space. Added tokens are searched before all of this, so none
may hold a letter beside a space, or swallow the space after it. Other tokenizers are not cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PIECE_CHARACTERS = 1 << 20

_CUT = re.compile("[A-Za-z](?= [A-Za-z])", re.ASCII)
_LETTER_BESIDE_SPACE = re.compile("[A-Za-z] | [A-Za-z]", re.ASCII)
_CUTTERS = {"ByteLevel", "Digits", "Punctuation"}
_NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}


def may_be_cut(description: Mapping[str, Any], cutters: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether texts can be encoded in pieces with a tokenizer.

    Args:
        description: the parsed ``tokenizer.json``.
        cutters: its pre-tokenizers, in order.
    """
    normalizer = description.get("normalizer")
    return (
        {cutter["type"] for cutter in cutters} <= _CUTTERS
        and any(cutter["type"] == "ByteLevel" and cutter.get("use_regex", True) for cutter in cutters)
        and (normalizer is None or normalizer["type"] in _NORMAL_FORMS)
        and not any(
            token["rstrip"] or _LETTER_BESIDE_SPACE.search(token["content"]) for token in description["added_tokens"]
        )
    )


def cut_text(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at least ``characters`` code points, cut at the next place where it may be."""
    start = 0
    while len(text) - start > characters and (found := _CUT.search(text, start + characters - 1)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]
