r"""Chats to ids, with the turns of the assistant exact to the token.

BPE may join what stands on both sides of a border, so ids of a whole text do not tell where a turn begins. Here a chat
is cut where the assistant begins and where it ends, and nowhere else, and each piece is encoded for itself:

    EOS | all before the first turn | turn | all up to the next turn | turn ...        a turn: its span, then EOS

A border of text is a border of ids by construction, and a program that talks with the model gets the same ids: it
encodes what was said since the assistant's last word, up to where the assistant begins, and appends what the model
draws until EOS. No special token is needed for that, so it serves a tokenizer with nothing but EOS; where the template
has marks that are special tokens (`ChatParameters.marks`), the text is cut at those too and they become their ids. EOS
comes first as before every prompt and every document of the compact stream. Where ``turn_ends`` is ``template``, the
span holds the mark that ends the turn, and no EOS follows.

What follows the assistant's last turn teaches nothing, and is left out (and counted).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from everytoken.tokens.chat.parameters import SpansAfter, SpansOfLines
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.tokens.errors import TokenizerError

Spans = Sequence[tuple[int, int]]  # half-open ranges of code points, in order, apart


@dataclass(frozen=True, eq=False)
class ChatTokens:
    """A chat up to the end of the assistant's last turn.

    Attributes:
        ids: EOS, then all pieces, (n,).
        starts: where each turn of the assistant begins in ``ids``, ascending and above 0.
        ends: where it ends, its EOS included.
        left_out: tokens after the last turn, which are not in ``ids``.
        lost_bytes: bytes of its text that no id stands for.
    """

    ids: np.ndarray
    starts: list[int]
    ends: list[int]
    left_out: int
    lost_bytes: int


def spans_of_lines(text: str, rule: SpansOfLines) -> Spans:
    """Return what the assistant says in lines of speakers; see `SpansOfLines`."""
    marks = list(_line_marks(rule.speakers).finditer(text))
    spans, first = [], 0
    for last, mark in enumerate(marks):
        following = marks[last + 1] if last + 1 < len(marks) else None
        if following is not None and following[1] == mark[1]:
            continue
        run, first = marks[first : last + 1], last + 1
        ends = [*(one.start() for one in run[1:]), len(text) if following is None else following.start()]
        said = "".join(text[one.end() : end] for one, end in zip(run, ends, strict=True))
        if mark[1] in rule.assistant and said.strip():
            spans.append((run[0].end(), ends[-1]))
    return spans


def spans_after(text: str, rule: SpansAfter) -> Spans:
    """Return what follows the first mark; see `SpansAfter`."""
    place = text.find(rule.mark)
    start = place + len(rule.mark)
    return [(start, len(text))] if place >= 0 and text[start:].strip() else []


def mark_ids(encoder: DocumentEncoder, marks: Sequence[str]) -> dict[str, int]:
    """Return the id of each mark.

    Raises:
        TokenizerError: the tokenizer has no such special token.
    """
    known = encoder.tokenizer.special_tokens
    if missing := [mark for mark in marks if mark not in known]:
        raise TokenizerError(
            f"the tokenizer has no special token {missing[0]!r}, its special tokens are {sorted(known)[:20]}. Take a "
            "tokenizer that has the marks of the chat template, or leave them out of marks: they are plain text then"
        )
    return {mark: known[mark] for mark in marks}


def encode_chats(
    encoder: DocumentEncoder,
    texts: Sequence[str],
    spans: Sequence[Spans],
    *,
    marks: Mapping[str, int],
    turn_ends: Literal["eos", "template"],
) -> Iterator[ChatTokens]:
    """Yield the tokens of each chat; see the module's docstring.

    Args:
        encoder: with special tokens literal.
        spans: what the assistant says in each; a turn without tokens is none.
        marks: ids of the special tokens that a text may name, see `mark_ids`.
    """
    pattern = (
        re.compile("|".join(map(re.escape, sorted(marks, key=lambda mark: (-len(mark), mark))))) if marks else None
    )
    pieces = [_pieces(text, of_chat) for text, of_chat in zip(texts, spans, strict=True)]
    cut = [[_cut(piece, pattern) for piece in of_chat] for of_chat in pieces]
    plain = [text for of_chat in cut for parts in of_chat for text in parts[::2]]
    encoded = encoder.encode(plain)
    offsets, lengths, eos = encoded.offsets, encoded.lengths, encoder.tokenizer.eos_id
    number = 0
    for of_chat in cut:
        first, place = number, 1
        ids: list[np.ndarray] = [np.array([eos], encoded.values.dtype)]
        starts: list[int] = []
        ends: list[int] = []
        for i, parts in enumerate(of_chat):
            start = place
            for j, part in enumerate(parts):
                if j % 2:
                    ids.append(np.array([marks[part]], encoded.values.dtype))
                else:
                    ids.append(encoded.values[offsets[number] : offsets[number] + lengths[number]])
                    number += 1
                place += len(ids[-1])
            if i % 2 and place > start:
                if turn_ends == "eos":
                    ids.append(ids[0])
                    place += 1
                starts.append(start)
                ends.append(place)
        end = ends[-1] if ends else 0
        yield ChatTokens(
            np.concatenate(ids)[:end], starts, ends, place - end, int(encoded.lost_bytes[first:number].sum())
        )


@lru_cache(maxsize=64)
def _line_marks(speakers: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, sorted(speakers, key=lambda name: (-len(name), name))))
    return re.compile(rf"(?:\A|\n)({names}):(?= )")


def _pieces(text: str, spans: Spans) -> list[str]:
    """Return context, turn, context, turn, ..., and what follows the last turn."""
    pieces, place = [], 0
    for start, end in spans:
        pieces += [text[place:start], text[start:end]]
        place = end
    return [*pieces, text[place:]]


def _cut(piece: str, pattern: re.Pattern[str] | None) -> list[str]:
    """Return plain text, mark, plain text, ..., plain text."""
    if pattern is None:
        return [piece]
    parts, place = [], 0
    for found in pattern.finditer(piece):
        parts += [piece[place : found.start()], found[0]]
        place = found.end()
    return [*parts, piece[place:]]
