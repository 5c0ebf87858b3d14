"""Texts on which tokenizer engines are likely to differ: a generated set, a pure function of tokenizer, cases and seed.

Engines that agree on a corpus still differ where their Unicode tables, regular expressions, caches or treatment of
added tokens do. Each family below aims at one of these. Families that go through something (every code point of the
planes in use, every item of the vocabulary, every added token in every surrounding) do so completely when they have
cases enough - with 10**5 cases they have - and evenly spaced otherwise; the others draw. Code points come from the
ranges of `everytoken.tokens.engines.code_points`, not from Python's Unicode tables: the set is the same for every
Python.

All texts are Unicode without lone surrogates, which UTF-8 cannot write. 10**5 cases are about 7 MB.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from everytoken.seeds import numpy_generator
from everytoken.tokens.engines.code_points import (
    APOSTROPHES,
    ASCII_LETTERS,
    BLANKS,
    COMPOSED,
    DIRECTIONS,
    EDGES,
    EMOJI,
    ENDINGS,
    FORMS,
    IN_USE,
    JAMO,
    LETTERS,
    LONG_RUN_LENGTHS,
    MARKS,
    MIXED,
    NUMBERS,
    PUNCTUATION,
    RIGHT_TO_LEFT,
    RUN_LENGTHS,
    ZEROS,
)
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import byte_symbols

_CHARACTERS_A_TEXT = 24
_ITEMS_A_TEXT = 8
_LONG_EVERY = 60  # one text of its family in so many is very long


def adversarial_cases(content: bytes, special: Sequence[str], cases: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield ``cases`` texts, each with the name of its family, family by family.

    Args:
        content: bytes of a ``tokenizer.json``: its vocabulary and added tokens go into the texts.
        special: more strings to treat as added tokens (EOS).
        cases: how many texts; each family has one at least from `TEXT_FAMILIES` cases on.

    Raises:
        TokenizerError: the content has no vocabulary of a BPE tokenizer.
    """
    vocabulary = _read_vocabulary(content, special)
    for index, (family, count) in enumerate(family_sizes(cases).items()):
        draw = _Draws(seed, index)
        make = _FAMILIES[family][1]
        for case in range(count):
            yield family, make(draw, vocabulary, case, count)


def family_sizes(cases: int) -> dict[str, int]:
    """Return how many of ``cases`` texts each family has: one at least if there are enough, the rest by weight."""
    weights = [weight for weight, _ in _FAMILIES.values()]
    rest, shares, sizes = max(0, cases - len(weights)), 0, {}
    for i, (family, weight) in enumerate(zip(_FAMILIES, weights, strict=True)):
        before, shares = shares, shares + weight
        sizes[family] = int(i < cases) + shares * rest // sum(weights) - before * rest // sum(weights)
    return sizes


class _Draws:
    """Numbers of one family's generator, drawn in blocks: a call of numpy for each would cost more than the texts."""

    def __init__(self, seed: int, family: int) -> None:
        self._numbers = self._blocks(seed, family)

    @staticmethod
    def _blocks(seed: int, family: int) -> Iterator[int]:
        generator = numpy_generator(seed, family)
        while True:
            yield from map(int, generator.integers(0, 1 << 48, 4096))

    def below(self, n: int) -> int:
        return next(self._numbers) % n

    def one(self, items: Sequence[str]) -> str:
        return items[next(self._numbers) % len(items)]

    def some(self, items: Sequence[str], least: int, most: int) -> str:
        return "".join(self.one(items) for _ in range(least + self.below(most - least + 1)))

    def character(self, ranges: Sequence[tuple[int, int]]) -> str:
        first, end = ranges[self.below(len(ranges))]
        return chr(first + self.below(end - first))


@dataclass(frozen=True)
class _Vocabulary:
    """Bytes of the items in the order of their ids, added tokens, and the items that are ASCII letters alone."""

    items: Sequence[bytes]
    added: Sequence[str]
    words: Sequence[str]


def _read_vocabulary(content: bytes, special: Sequence[str]) -> _Vocabulary:
    try:
        description = json.loads(content)
        ids = description["model"]["vocab"]
        items = sorted(ids, key=ids.__getitem__)
        added = [token["content"] for token in description["added_tokens"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"the tokenizer.json has no vocabulary as BPE tokenizers do ({error!r})") from error
    bytes_of = {symbol: bytes([byte]) for byte, symbol in byte_symbols().items()}
    plain = [b"".join(bytes_of.get(character) or character.encode() for character in item) for item in items]
    words = [item for item in ids if item.isascii() and item.isalpha()]
    return _Vocabulary(plain or [b""], list(dict.fromkeys([*added, *special])) or ["<|endoftext|>"], words or ["a"])


_Make = Callable[[_Draws, _Vocabulary, int, int], str]
_FAMILIES: dict[str, tuple[int, _Make]] = {}


def _family(name: str, weight: int) -> Callable[[_Make], _Make]:
    def declare(make: _Make) -> _Make:
        _FAMILIES[name] = (weight, make)
        return make

    return declare


def _turn(case: int, cases: int, things: int) -> tuple[int, int]:
    """Return (thing, round) of a case: all things in turn, round after round; too few cases are spread evenly."""
    return (case % things, case // things) if cases >= things else (case * things // cases, 0)


@cache
def _characters_in_use() -> str:
    return "".join(chr(code) for first, end in IN_USE for code in range(first, end))


@cache
def _characters_by_byte() -> list[str]:
    """Characters whose UTF-8 has every byte that UTF-8 can have: ASCII, each last byte, each first byte."""
    two = [chr((byte & 0x1F) << 6 | 0x3F) for byte in range(0xC2, 0xE0)]
    three = [chr((byte & 0xF) << 12 | (0x7FF if byte == 0xED else 0x800)) for byte in range(0xE0, 0xF0)]
    four = [chr(max(0x10000, (byte & 7) << 18)) for byte in range(0xF0, 0xF5)]
    return [*map(chr, range(0x80)), *map(chr, range(0xC0, 0x100)), *two, *three, *four]


@_family("single", 1000)
def _single(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """The empty text and single characters."""
    things: list[str] = ["", *map(chr, range(0x180)), *EDGES, *BLANKS]
    thing, again = _turn(case, cases, len(things))
    return draw.one(_characters_in_use()) if again else things[thing]


@_family("bytes", 1500)
def _bytes(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Every byte that UTF-8 can have, between spaces, letters, digits and other bytes; few cases have many each."""
    characters = _characters_by_byte()
    mine = characters[case % len(characters) :: max(1, min(cases, len(characters)))]
    between = ("", " ", "a", "1", "\n", draw.one(characters))
    return "".join(draw.one(between) + character + draw.one(between) for character in mine)


@_family("added tokens", 9000)
def _added_tokens(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Added tokens alone, in words, doubled, cut short, changed, beside blanks and beside each other."""
    thing, again = _turn(case, cases, len(vocabulary.added) * 24)
    token = vocabulary.added[thing // 24]
    other, blank, letters = draw.one(vocabulary.added), draw.one(BLANKS), draw.some(LETTERS, 1, 4)
    cut, place = 1 + draw.below(max(1, len(token) - 1)), draw.below(len(token) + 1)
    around = (letters, blank, "1", "'s", draw.one(PUNCTUATION), draw.one(_characters_in_use()))
    text = (
        token,
        token + token,
        token * (3 + draw.below(6)),
        token[:cut],
        token[cut:],
        token[:cut] + token,
        token + token[cut:],
        letters + token + letters,
        letters + token,
        token + letters,
        f" {token}",
        f"{token} ",
        f"  {token}  a",
        f"\n{token}\n\n",
        f"a\r\n{token}\r\nb",
        blank + token + blank + token,
        token + draw.one(BLANKS) + other,
        token + other + token,
        token + draw.some(PUNCTUATION, 1, 3) + draw.some("0123456789", 1, 3) + token,
        token.upper() + token.swapcase(),
        token[:place] + draw.one(BLANKS) + token[place:],
        token[:place] + draw.one(EDGES) + token[place:] + other[:cut],
        draw.one(MARKS) + token + draw.one(MARKS) + token,
        draw.some([*vocabulary.added, *BLANKS, "a", "1", ".", "a "], 3, 12),
    )[thing % 24]
    return text if again == 0 else draw.some(around, 0, 2) + text + draw.some(around, 0, 2)


@_family("characters", 35_000)
def _characters(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Every code point of the planes in use: side by side, before ``'s``, then among letters, digits and blanks."""
    characters = _characters_in_use()
    things = -(-len(characters) // _CHARACTERS_A_TEXT)
    thing, again = _turn(case, cases, things) if cases > 3 * things else (case * things // cases, case % 3)
    mine = characters[thing * _CHARACTERS_A_TEXT : (thing + 1) * _CHARACTERS_A_TEXT]
    if again == 0:
        return mine
    if again == 1:  # after a letter, digit or blank 's is a word, after anything else ' is no part of it
        return " ".join(character + draw.one(("'s", "'s", "'t", "'ll", "'re")) for character in mine)
    return "".join(draw.one(("", "", " ", "a", "1", ".", "\n", "  ", "'")) + character for character in mine)


@_family("blocks", 9000)
def _blocks(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Characters of one block of 128, or of two, as words of a script are."""
    characters = _characters_in_use()
    starts = [draw.below(len(characters)) & ~127 for _ in range(1 + draw.below(2))]
    words = []
    for _ in range(1 + draw.below(5)):
        start = starts[draw.below(len(starts))]
        words.append(draw.some(characters[start : start + 128], 1, 8))
    return draw.one((" ", "", "\n", ". ", "-")).join(words)


@_family("planes", 3000)
def _planes(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Unassigned and private code points of the other planes, noncharacters, and the edges of ranges."""
    thing, again = _turn(case, cases, 17 * 8)
    if again == 0:
        last = (thing // 8 << 16) + 0xFFFF
        return draw.one(("", "a", " ")) + chr(last - thing % 2) + draw.one(EDGES) + draw.one(("", "1", "\n"))
    ranges = ((0x30000, 0x110000), (0xE000, 0xF900), (0xFDD0, 0xFDF0), (0xFFF0, 0x10000))
    return "".join(draw.character(ranges) + draw.one(("", "", " ", "a", "1", "_")) for _ in range(1 + draw.below(12)))


@_family("controls", 5000)
def _controls(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """NUL, control characters and code points at edges among plain text, and inside items of the vocabulary."""
    things = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *EDGES]
    if draw.below(2):
        return draw.some([*things, "a", " ", "1", "the"], 1, 16)
    texts = []
    for _ in range(1 + draw.below(6)):
        item = vocabulary.items[draw.below(len(vocabulary.items))]
        cut = draw.below(len(item) + 1)
        texts.append(item[:cut] + draw.one(things).encode() + item[cut:])
    return b"".join(texts).decode(errors="replace")


@_family("digits", 5000)
def _digits(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Digits of every script, numbers that are no digits, and what stands between digits."""
    thing, again = _turn(case, cases, len(ZEROS))
    mine = [chr(ZEROS[thing] + i) for i in range(10)]
    if again == 0:
        return "".join(mine) + " a".join(mine[:3])
    between = ("", "", "", " ", ",", ".", "-", "/", ":", "a", "\n", "_", "\u066b", "\u2044", "'")
    numbers = (lambda: draw.one(mine), lambda: draw.one("0123456789"), lambda: draw.character(NUMBERS))
    return "".join(draw.one(between) + numbers[draw.below(3)]() for _ in range(1 + draw.below(24)))


@_family("blanks", 12_000)
def _blanks(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Newlines and spaces of every kind: every pair between letters, every mixture of four common ones, others."""
    pairs, fours = len(BLANKS) ** 2, len(MIXED) ** 4
    thing, again = _turn(case, cases, pairs + fours)
    if again == 0 and thing < pairs:
        around = draw.one(("", "a", "1", ".", " ", "\xe9")), draw.one(("", "b", "2", "!", " ", "\u0416"))
        return around[0] + BLANKS[thing // len(BLANKS)] + BLANKS[thing % len(BLANKS)] + around[1]
    if again == 0:
        return "".join(MIXED[(thing - pairs) // len(MIXED) ** place % len(MIXED)] for place in range(4))
    if draw.below(3):
        return draw.some([*BLANKS, " ", " ", "\n", "\n", "a", "1", ".", "the", "'s"], 1, 16)
    return "".join(draw.one(BLANKS) * (1 + draw.below(9)) + draw.one(("", "a", "1", ".")) for _ in range(6))


@_family("contractions", 4000)
def _contractions(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Contractions in every case and with every apostrophe, also with letters that fold to those of English."""
    apostrophe, ending = list(product(APOSTROPHES, ENDINGS))[_turn(case, cases, len(APOSTROPHES) * len(ENDINGS))[0]]
    ending = (ending, ending.upper(), ending.title(), ending.swapcase())[draw.below(4)]
    word = draw.one(("", "I", "don", "WE", " he", "1", "_", "\xe9", "\n", "''", "x ", "."))
    after = draw.one(("", "a", " a", "1", "'", "'s", "T", ".", "\n", "\u0301", "_"))
    return word + apostrophe + ending + after + draw.one(("", f"{word}{apostrophe}{ending}"))


@_family("runs", 2400)
def _runs(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """One thing repeated: lengths at powers of two, some up to 2**16 + 1; and such a run between others."""
    things = (
        *("a", "A", "0", "7", " ", "\n", "\t", "\r\n", ".", "-", "=", "#", "_", "'", "\x00", "\xa0", "\xe9", "\u3042"),
        *("\u0301", "e\u0301", "\u200d", "\U0001f600", "ab", "the ", " a", "a1", "a\n", "'s", "\uac00", "\u1100\u1161"),
    )
    turn, rest = divmod(case, _LONG_EVERY)
    thing = things[(turn if rest == 0 else case) % len(things)] if draw.below(8) else draw.one(_characters_in_use())
    if rest == 0:
        return thing * (LONG_RUN_LENGTHS[draw.below(len(LONG_RUN_LENGTHS))] // len(thing.encode()))
    length = RUN_LENGTHS[draw.below(len(RUN_LENGTHS))] if draw.below(4) else 1 + draw.below(600)
    return draw.one(("", "", "a", " ", "1", "\n")) + thing * length + draw.one(("", "", "b", " ", "2", " c", "."))


@_family("long words", 900)
def _long_words(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Letters of the vocabulary without a blank, as in base64: some beyond any cache of words, some of 2**15."""
    longest = 1 << (15 if case % _LONG_EVERY == 0 else 5 + draw.below(6))
    word = draw.some(vocabulary.words, 1, longest // 3)[:longest]
    return draw.one(("", " ", "1", "\n")) + word + draw.one(("", " a", ".", "1"))


@_family("normal forms", 5000)
def _normal_forms(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """The same text composed and decomposed, marks in any order, Hangul as syllables and as jamo."""
    pieces = (
        lambda: draw.character(COMPOSED),
        lambda: draw.one(LETTERS) + draw.some(MARKS, 1, 3),
        lambda: "".join(chr(first + draw.below(end - first)) for first, end in JAMO[:3]),
        lambda: draw.character(JAMO),
        lambda: draw.one((" ", "a", "1", "\u212b", "\u2126", "\u0344", "\ufb01", "\u1e9b\u0323")),
    )
    text = "".join(pieces[draw.below(len(pieces))]() for _ in range(1 + draw.below(8)))
    return text if case % 5 == 4 else unicodedata.normalize(FORMS[case % 5], text)


@_family("emoji", 2500)
def _emoji(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Sequences with joiners, selectors, skin tones and flags, whole and cut."""
    text = draw.some([*EMOJI, *EMOJI, " ", "a", "1", "\n"], 1, 8)
    return text[draw.below(len(text)) :] if draw.below(3) == 0 else text


@_family("right to left", 2000)
def _right_to_left(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Hebrew, Arabic and others with points and marks, and the controls of direction among Latin letters."""
    words = ["".join(draw.character(RIGHT_TO_LEFT) for _ in range(1 + draw.below(7))) for _ in range(3)]
    return draw.some([*words, *DIRECTIONS, " ", "abc", "12"], 2, 10)


@_family("vocabulary", 9000)
def _vocabulary_items(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Every item of the vocabulary in turn, several in a text; then apart from each other; then in any order."""
    thing, again = _turn(case, cases, -(-len(vocabulary.items) // _ITEMS_A_TEXT))
    mine = vocabulary.items[thing * _ITEMS_A_TEXT : (thing + 1) * _ITEMS_A_TEXT]
    if again > 1:
        mine = [mine[draw.below(len(mine))] for _ in mine]
    return (b"", b" ", b"\n", b"_")[again % 4].join(mine).decode(errors="replace")


@_family("merges", 9000)
def _merges(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Items of the vocabulary drawn and joined, whole or cut, also inside a character."""
    items = [vocabulary.items[draw.below(len(vocabulary.items))] for _ in range(1 + draw.below(12))]
    if draw.below(3) == 0:
        items = [item[draw.below(2) : 1 + draw.below(len(item) + 1)] for item in items]
    return b"".join(items).decode(errors=draw.one(("replace", "ignore")))


@_family("boundaries", 6000)
def _boundaries(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Letters, digits, underscores, punctuation and blanks in short turns: where a pre-tokenizer cuts."""
    kinds = (ASCII_LETTERS, LETTERS, "0123456789", "_", PUNCTUATION, " ", " ", BLANKS, MARKS, EDGES)
    return "".join(draw.some(kinds[draw.below(len(kinds))], 1, 4) for _ in range(1 + draw.below(12)))


@_family("splices", 6000)
def _splices(draw: _Draws, vocabulary: _Vocabulary, case: int, cases: int) -> str:
    """Two texts of other families, cut anywhere and joined."""
    halves = []
    for _ in range(2):
        name = draw.one(_SPLICED)
        text = _FAMILIES[name][1](draw, vocabulary, draw.below(100_000), 100_000)[:400]
        start = draw.below(len(text) + 1)
        halves.append(text[start:] if draw.below(2) else text[:start])
    return halves[0] + halves[1]


TEXT_FAMILIES = tuple(_FAMILIES)
_SPLICED = [name for name in TEXT_FAMILIES if name != "splices"]
