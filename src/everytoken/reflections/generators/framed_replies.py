"""A JSON reply whose frame the program writes, and whose strings a small model fills.

``{"analysis": "`` is given to the model, which writes until it draws a quotation mark, a line break or an end. Then
comes ``", "reflection_1p": "``, and so on. So even a model that could not write JSON gives replies that parse. A string
begins with none of what ends it. One that is as long as it may be is cut behind its last sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from everytoken.generation import GenerationParameters, draw
from everytoken.seeds import torch_generator

_ENDS = re.compile(r'["\n]')
_BYTES_OF_ENDS = '"Ċ'  # as byte-level vocabularies spell a quotation mark and a line break
_SENTENCE = re.compile(r".*[.!?](?=\s|$)", re.DOTALL)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens that end a string of a reply, or a reply that is plain text."""

    tokenizer: Tokenizer
    ends: frozenset[int]
    closing: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        spelled = self.tokenizer.get_vocab(with_added_tokens=True).items()
        closing = {number for token, number in spelled if any(one in token for one in _BYTES_OF_ENDS)}
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        object.__setattr__(self, "closing", frozenset(closing | special | self.ends))

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found


@dataclass(frozen=True)
class FramedReply:
    """A reply, and the tokens that were drawn for it."""

    text: str
    drawn: int


Writing = Generator[list[int], Tensor, FramedReply]


def write_reply(vocabulary: Vocabulary, fields: Sequence[str], parameters: GenerationParameters) -> Writing:
    """Write a reply: yield ids that the model reads next, receive the logits (vocab,) after them, return the reply.

    Args:
        fields: of the JSON object; none for plain text.
        parameters: ``max_new_tokens`` is shared by the fields in equal parts.
    """
    drawing = _Drawing(vocabulary, parameters)
    if not fields:
        text = yield from drawing.string([], vocabulary.ends, "", parameters.max_new_tokens)
        return FramedReply(text, drawing.drawn)
    found: dict[str, str] = {}
    most = max(1, parameters.max_new_tokens // len(fields))
    for number, name in enumerate(fields):
        frame = vocabulary.ids(f'{"{" if number == 0 else ""}{", " if number else ""}"{name}": "')
        text = yield from drawing.string(frame, vocabulary.closing, name, most)
        found[name] = _closed(text)
    return FramedReply(json.dumps(found, ensure_ascii=False), drawing.drawn)


class _Drawing:
    """Draws the strings of one reply."""

    def __init__(self, vocabulary: Vocabulary, parameters: GenerationParameters) -> None:
        self._vocabulary, self._parameters = vocabulary, parameters
        self._seen: list[int] = []
        self._unread: list[int] = []
        self.drawn = 0

    def string(self, frame: list[int], ends: frozenset[int], name: str, most: int) -> Generator[list[int], Tensor, str]:
        """Draw a string of at most ``most`` tokens behind ``frame``; one that is cut ends with a sentence."""
        generator = torch_generator(self._parameters.seed, "framed", name)
        banned = torch.tensor(sorted(ends))
        ids: list[int] = []
        logits = yield [*self._unread, *frame]
        while True:
            if not ids:
                logits = logits.index_fill(0, banned, float("-inf"))
            token = draw(logits, torch.tensor(self._seen, dtype=torch.int64), self._parameters, generator)
            self.drawn += 1
            self._seen.append(token)
            ids.append(token)
            if token in ends or len(ids) == most:
                break
            logits = yield [token]
        is_cut = ids[-1] not in ends
        self._unread = [*([ids[-1]] if is_cut else []), *self._vocabulary.ids('"')]
        text: str = self._vocabulary.tokenizer.decode(ids, skip_special_tokens=True)
        return _whole_sentences(text) if is_cut else text


def _closed(text: str) -> str:
    """Return what comes before the mark that ended a string."""
    return _ENDS.split(text.lstrip(), maxsplit=1)[0].rstrip("\\ ")


def _whole_sentences(text: str) -> str:
    found = _SENTENCE.match(text)
    return text if found is None else found[0]
