r"""From the tokens of a document to the characters of its text: every token's half-open range of code points.

Text is encoded again by the reference (`tokenizers`, without post-processor, truncation and padding), which tells for
each token the characters that it was made from. A byte-level token may be a part of a character: each of the tokens
that share one has the whole character as its range, so ranges of neighbours overlap there and nowhere else. What part
it is say the bytes: where neither the normalizer changed the text nor bytes were lost, the bytes of all tokens are the
UTF-8 bytes of the text, in order, and each token's range of bytes follows from the lengths of the tokens before it.

A normalizer may join characters (NFC: e and U+0301 become U+00E9). The library names the first of them alone; the ones
that it leaves out are given to the token before them. EOS, which is no text, has an empty range where the text ends; in
a chat (`everytoken.tokens.chat.conversations`), where its turn ends.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from everytoken.tokens.chat import Spans
from everytoken.tokens.tokenizer import DocumentTokenizer, SpecialTokens, cut_text


@dataclass(frozen=True, eq=False)
class LocatedTokens:
    """The tokens of a document, EOS included, and where each is from.

    Attributes:
        ids: int64 (n,).
        starts: first character of each, int64 (n,).
        ends: the one after its last, int64 (n,); equal to the start where it is no text.
        bytes: first byte of each in the UTF-8 of the text, and the end: int64 (n + 1,); None where bytes of tokens are
            not those of the text.
        whole_length: tokens of the whole text, before any cut, EOS included.
        ends_at_turn: whether they end with the last turn of a chat that is kept, and not at a cap.
        turns: tokens [start, end) of each turn of the assistant in a chat.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bytes: np.ndarray | None
    whole_length: int
    characters: int
    ends_at_turn: bool = False
    turns: tuple[tuple[int, int], ...] = ()

    def range(self, first: int, end: int) -> tuple[int, int]:
        """Return the characters [start, end) that the tokens [first, end) are made from."""
        if end <= first:
            return (0, 0)
        return int(self.starts[first:end].min()), int(self.ends[first:end].max())


def locate_document(
    tokenizer: DocumentTokenizer, text: str, *, special_tokens_in_text: SpecialTokens, max_tokens: int | None
) -> LocatedTokens:
    """Return content and EOS of a document as `everytoken.tokens.encoding.encoder` gives them, with their characters.

    Args:
        special_tokens_in_text: what a special token became that the text spells.
        max_tokens: cap of a document, EOS included; None: no cap.
    """
    whole = _located(tokenizer, text, special_tokens_in_text != "control")
    kept = len(whole.ids) if max_tokens is None else min(len(whole.ids), max_tokens - 1)
    end = int(whole.ends[:kept].max()) if kept else 0
    return LocatedTokens(
        np.append(whole.ids[:kept], tokenizer.eos_id),
        np.append(whole.starts[:kept], end),
        np.append(whole.ends[:kept], end),
        None if whole.bytes is None else np.append(whole.bytes[: kept + 1], whole.bytes[kept]),
        len(whole.ids) + 1,
        len(text),
    )


def locate_chat(
    tokenizer: DocumentTokenizer, text: str, spans: Spans, *, marks: Mapping[str, int], ends_with_eos: bool
) -> LocatedTokens:
    """Return the tokens of a chat as `everytoken.tokens.chat.conversations.encode_chats` gives them, with their
    characters.

    Args:
        marks: ids of the special tokens that the text may name.
        ends_with_eos: whether EOS follows each turn of the assistant.
    """
    pattern = re.compile("|".join(map(re.escape, sorted(marks, key=lambda m: (-len(m), m))))) if marks else None
    ids, starts, ends = [tokenizer.eos_id], [0], [0]
    place, turns = 0, [(0, 0)]

    def add(piece: str, begin: int) -> None:
        found = _located(tokenizer, piece, True)
        ids.extend(found.ids.tolist())
        starts.extend((found.starts + begin).tolist())
        ends.extend((found.ends + begin).tolist())

    borders = [border for span in spans for border in span]
    for number, border in enumerate([*borders, len(text)]):
        before = len(ids)
        for begin, piece in _cut(text[place:border], pattern):
            if piece in marks:
                ids.append(marks[piece])
                starts.append(place + begin)
                ends.append(place + begin + len(piece))
            else:
                add(piece, place + begin)
        if number % 2 and len(ids) > before:
            if ends_with_eos:
                ids.append(tokenizer.eos_id)
                starts.append(border)
                ends.append(border)
            turns.append((before, len(ids)))
        place = border
    kept = turns[-1][1]
    kept_ids, kept_starts, kept_ends = (np.array(values[:kept], np.int64) for values in (ids, starts, ends))
    return LocatedTokens(kept_ids, kept_starts, kept_ends, None, len(ids), len(text), True, tuple(turns[1:]))


def _cut(piece: str, pattern: re.Pattern[str] | None) -> Sequence[tuple[int, str]]:
    """Return plain texts and marks in turn, each with where it begins."""
    if pattern is None:
        return [(0, piece)]
    parts, place = [], 0
    for found in pattern.finditer(piece):
        parts += [(place, piece[place : found.start()]), (found.start(), found[0])]
        place = found.end()
    return [*parts, (place, piece[place:])]


def _located(tokenizer: DocumentTokenizer, text: str, literal: bool) -> LocatedTokens:
    """Return the content tokens of a text, uncut."""
    reference = _reference(tokenizer.content, literal)
    found_ids, found_offsets, begin = [], [], 0
    for piece in cut_text(text) if tokenizer.may_be_cut else [text]:
        encoding = reference.encode(piece, add_special_tokens=False)
        found_ids.append(np.frombuffer(array("I", encoding.ids), np.uintc).astype(np.int64))
        found_offsets.append(np.array(encoding.offsets, np.int64).reshape(-1, 2) + begin)
        begin += len(piece)
    ids, offsets = np.concatenate(found_ids), np.concatenate(found_offsets)
    starts, ends = offsets[:, 0], offsets[:, 1]
    lengths = tokenizer.token_bytes[ids].astype(np.int64)
    normalized = tokenizer.tokenizer.normalizer
    normal = text if normalized is None else normalized.normalize_str(text)
    lossless = int(lengths.sum()) == len(normal.encode())
    if normal != text and lossless and len(ids):
        ends = np.maximum(ends, np.append(starts[1:], len(text)))
    in_bytes = np.concatenate([[0], np.cumsum(lengths)]) if normal == text and lossless else None
    return LocatedTokens(ids, starts, ends, in_bytes, len(ids), len(text))


@lru_cache(maxsize=4)
def _reference(content: bytes, literal: bool) -> Tokenizer:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None  # that of byte-level models takes the space from the range of its word
    tokenizer.encode_special_tokens = literal
    return tokenizer
