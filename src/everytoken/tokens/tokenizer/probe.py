r"""Ids of one fixed text, recorded with every tokenizer: whether the library installed now is still the one that was.

A ``tokenizer.json`` alone does not decide the ids: the library that reads it does, and its versions differ. Seen with
published files: version 0.13 of tokenizers cuts runs of spaces of GPT-NeoX otherwise, versions before 0.19.1 ignore
``ignore_merges`` (Llama 3) without a word, and 1.0.0rc3 normalizes characters of Unicode 16 otherwise than 0.23.
So a tokenizer artifact carries the ids of a text that has all of this, and who opens it compares. Another version that
gives the same ids is welcome.

The text is encoded twice, with special tokens that it spells as plain text and as the tokens: both are used here
(``special_tokens_in_text``), and the library treats them by different code.

A text is never edited: tokenizers that were made with it could not be checked any more. A better one gets the next
number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypedDict

import numpy as np
from tokenizers import Tokenizer, __version__

from everytoken.tokens.errors import TokenizerError

LIBRARY = "tokenizers"

_TEXTS = {
    1: "".join(
        (
            "The cat's here, I'LL see; they've 1234567 of 3.14\u00bd \u0664\u0665 \u2167.\n\n",
            "def f(x):\n    if x:\n\t\treturn  x   #     y\n\r\n\r\n \n  \n",
            "na\u00efve cafe\u0301 A\u030a \u1e9b\u0323 \u1112\u1161\u11ab\ud55c \u2126\ufb01 ",
            "\u65e5\u672c\u8a9e\u3002\u4e2d\u6587 \u041f\u0440\u0438 \u0939\u093f \u0e44\u0e17\u0e22 \u0639\u0631 ",
            "\U000113c2\U000113c2 \U0001611e\U0001611e \U00016d67\U00016d67 ",
            "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2728\ufe0f",
            "\x00\x01\x04\x16\x1b\x7f\U00040000\x85\xa0\u2028\u200b\ufeff\x0b\x0c\u3000",
            f"Donaudampfschiff {'a' * 40} {'=' * 30} ab0cd1ef2\u00b2 don\u2019t...!?",
            " <|endoftext|>\n  <|endoftext|>x <|im_start|>[INST]</s>  ",
        )
    )
}
PROBE_VERSION = max(_TEXTS)
PROBE_TEXT = _TEXTS[PROBE_VERSION]
"""What versions of the library differ in: contractions, numbers of several scripts, blank lines and ``\\r\\n``, runs
of spaces and tabs, combining marks and letters with two normal forms (some of Unicode 16), scripts of one to four
bytes, emoji of several code points, control characters (some that SmolLM2 has no symbol for), long words, and special
tokens of several families."""


def probe_ids(tokenizer: Tokenizer, version: int = PROBE_VERSION) -> list[int]:
    """Return the ids of a probe text: with the special tokens that it spells as plain text, then as the tokens.

    Args:
        tokenizer: without truncation; it is left as it was.
    """
    before = tokenizer.encode_special_tokens
    ids: list[int] = []
    try:
        for literal in (True, False):
            tokenizer.encode_special_tokens = literal
            ids += tokenizer.encode(_TEXTS[version], add_special_tokens=False).ids
    finally:
        tokenizer.encode_special_tokens = before
    return ids


class ProbeRecord(TypedDict):
    """What a tokenizer's statistics keep under ``probe``."""

    version: int
    ids: list[int]
    sha256: str


class ProbedStatistics(TypedDict, total=False):
    """Statistics of a tokenizer as far as this module reads them; one of an earlier version has no probe."""

    probe: ProbeRecord


def probe_record(tokenizer: Tokenizer) -> ProbeRecord:
    """Return what a tokenizer's statistics keep under ``probe``.

    Returns:
        ``version`` of the text, ``ids``, and the ``sha256`` of these as little-endian uint32.
    """
    ids = probe_ids(tokenizer)
    return {"version": PROBE_VERSION, "ids": ids, "sha256": hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest()}


def library_record() -> dict[str, str]:
    """Return what a tokenizer's measurements keep: the library that read it, and its version."""
    return {"library": LIBRARY, "library_version": str(__version__)}


def check_probe(statistics: ProbedStatistics, measured: Mapping[str, Any], tokenizer: Tokenizer, where: str) -> None:
    """Compare the ids that the library gives now with those that were recorded; a process does it once for each.

    Raises:
        TokenizerError: they differ, or nothing is recorded.
    """
    probe = statistics.get("probe")
    if probe is None:
        raise TokenizerError(
            f"{where} has no ids of a probe text, so nothing tells whether {_installed()} encodes as the library did "
            f"that it was made with. Run the tokenization pipeline again: it makes the tokenizer anew, with these ids."
        )
    _check(tokenizer, probe["version"], tuple(probe["ids"]), str(measured.get("library_version", "unknown")), where)


@lru_cache(maxsize=4)
def _check(tokenizer: Tokenizer, version: int, recorded: tuple[int, ...], made_with: str, where: str) -> None:
    if version not in _TEXTS:
        raise TokenizerError(
            f"{where} has ids of probe text {version}, which a newer everytoken has; this one has texts up to "
            f"{PROBE_VERSION}. Install the everytoken that made it, or make the tokenizer again."
        )
    found = probe_ids(tokenizer, version)
    if found == list(recorded):
        return
    place = next((i for i, pair in enumerate(zip_longest(recorded, found)) if pair[0] != pair[1]), 0)
    raise TokenizerError(
        f"{where} was made with {LIBRARY} {made_with}, and {_installed()} encodes otherwise. Of the ids of probe text "
        f"{version}, number {place} and the next were {list(recorded[place : place + 5])}, and are now "
        f"{found[place : place + 5]}. Tokens of both may not be mixed: install the first one (pip install "
        f"'{LIBRARY}=={made_with}'), or remove the tokenizer's folder to make it and all token data again."
    )


def _installed() -> str:
    return f"{LIBRARY} {__version__}, which is installed,"
