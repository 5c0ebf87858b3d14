from __future__ import annotations

import json
import unicodedata
from collections import Counter

import pytest

from everytoken.tokens import TokenizerError
from everytoken.tokens.engines.adversarial import TEXT_FAMILIES, adversarial_cases, family_sizes
from everytoken.tokens.engines.code_points import BLANKS
from everytoken.tokens.tokenizer.document_tokenizer import byte_symbols
from tests.tokens.corpora import EOS

ADDED = ["<|start|>", "   ", "|||PHONE|||"]
MERGED = ["Ġt", "Ġth", "Ġthe", "ca", "cat", "ÐŁ", "ðŁ", "ĊĊ"]


def content(symbols: list[str]) -> bytes:
    vocabulary = {item: number for number, item in enumerate([*symbols, *MERGED])}
    return json.dumps(
        {"model": {"vocab": vocabulary}, "added_tokens": [{"content": token} for token in ADDED]}
    ).encode()


CONTENT = content(list(byte_symbols().values()))


@pytest.fixture(scope="module")
def full() -> list[tuple[str, str]]:
    """The set that a certificate has by default."""
    return list(adversarial_cases(CONTENT, [EOS], 100_000, 42))


def texts_of(content: bytes, special: list[str], cases: int, seed: int) -> list[str]:
    return [text for _, text in adversarial_cases(content, special, cases, seed)]


def of(family: str, cases: list[tuple[str, str]]) -> list[str]:
    return [text for name, text in cases if name == family]


def test_there_are_as_many_texts_as_asked_for_and_they_are_small_and_utf8(full: list[tuple[str, str]]) -> None:
    assert len(full) == 100_000
    assert Counter(name for name, _ in full) == family_sizes(100_000)
    assert 5e6 < sum(len(text.encode("utf-8", errors="strict")) for _, text in full) < 12e6
    assert len({text for _, text in full}) > 90_000


@pytest.mark.parametrize("cases", [0, 1, len(TEXT_FAMILIES), 500, 12_345])
def test_a_small_set_has_every_family_that_it_has_room_for(cases: int) -> None:
    sizes = family_sizes(cases)
    assert tuple(sizes) == TEXT_FAMILIES
    assert sum(sizes.values()) == cases
    assert sum(size > 0 for size in sizes.values()) == min(cases, len(TEXT_FAMILIES))
    made = list(adversarial_cases(CONTENT, [EOS], cases, 7))
    assert Counter(name for name, _ in made) == Counter(sizes)


def test_the_set_is_a_function_of_its_arguments() -> None:
    texts = texts_of(CONTENT, [EOS], 2000, 7)
    assert texts == texts_of(CONTENT, [EOS], 2000, 7)
    for other in (
        texts_of(CONTENT, [EOS], 2000, 8),
        texts_of(CONTENT, ["<end>"], 2000, 7),
        texts_of(content(list(byte_symbols().values())[:200]), [EOS], 2000, 7),
    ):
        assert len(other) == 2000 and other != texts


def test_every_assigned_character_and_every_category_is_in_the_set(full: list[tuple[str, str]]) -> None:
    seen = set().union(*(text for _, text in full))
    assigned = {c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")}
    assert assigned <= seen
    assert {unicodedata.category(c) for c in seen} == {unicodedata.category(c) for c in assigned} | {"Cn", "Co"}
    nonchars = {chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)}
    assert nonchars | set(map(chr, range(0xFDD0, 0xFDF0))) <= seen
    assert {chr(0xD7FF), chr(0xE000), "\ufffd", "\ufeff", "\x00", "\x7f", "\x85"} <= seen
    assert {ord(c) >> 16 for c in seen} == set(range(17))


def test_the_category_of_every_character_shows_by_a_contraction_after_it(full: list[tuple[str, str]]) -> None:
    before = {text[place - 1] for text in of("characters", full) for place, c in enumerate(text) if c == "'" and place}
    assert set(map(chr, [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x33480)])) <= before


@pytest.mark.parametrize("cases", [len(TEXT_FAMILIES), 1000])
def test_even_a_small_set_has_every_byte_of_utf8(cases: int) -> None:
    seen = set(b"".join(text.encode() for text in texts_of(CONTENT, [EOS], cases, 1)))
    assert seen == {*range(0xC0), *range(0xC2, 0xF5)}


def test_added_tokens_come_alone_doubled_cut_and_beside_blanks_and_letters(full: list[tuple[str, str]]) -> None:
    texts = of("added tokens", full)
    plain = set(texts)
    for token in [*ADDED, EOS]:
        assert {token, token * 2, f" {token}", f"{token} ", f"\n{token}\n\n", f"a\r\n{token}\r\nb"} <= plain
        cut = [text for text in texts if 0 < len(text) < len(token)]
        assert any(map(token.startswith, cut)) and any(map(token.endswith, cut))
        assert any(text[:1].isalpha() and text[1:].startswith(token) for text in texts)
        for other in [*ADDED, EOS]:
            assert any(token + other + token in text for text in texts)
        assert all(any(token + blank in text for text in texts) for blank in BLANKS)


def test_blanks_come_in_every_pair_and_every_mixture_of_four(full: list[tuple[str, str]]) -> None:
    texts = of("blanks", full)
    together = "|".join(texts)
    assert all(first + second in together for first in BLANKS for second in BLANKS)
    common = [" ", "\n", "\r", "\t", "\xa0", "a", "1", "."]
    assert {a + b + c + d for a in common for b in common for c in common for d in common} <= set(texts)


def test_every_vocabulary_item_is_in_the_set_alone_and_beside_others(full: list[tuple[str, str]]) -> None:
    together = "|".join(of("vocabulary", full))
    for text in (" t", " th", " the", "ca", "cat", "\u041f", "\n\n", "a", "~"):
        assert text in together
    assert "\ufffd" in together, "items that are no characters by themselves"
    assert any(" thecat" in text for text in of("merges", full))


def test_runs_and_words_pass_the_limits_of_caches_and_of_16_bits(full: list[tuple[str, str]]) -> None:
    runs = of("runs", full)
    assert max(map(len, runs)) > 1 << 16
    assert len({text[0] for text in runs if len(set(text)) == 1 and len(text) > 1000}) > 5
    assert max(map(len, of("long words", full))) > 5000
    assert {len(text) for text in runs} > set(range(15, 18)) | {127, 128, 255, 256, 257}


def test_texts_come_in_all_normal_forms(full: list[tuple[str, str]]) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normal = [unicodedata.is_normalized(form, text) for text in of("normal forms", full)]  # type: ignore[arg-type]
        assert 0.1 < sum(normal) / len(normal) < 0.9


def test_a_file_without_a_bpe_vocabulary_is_refused() -> None:
    for wrong in (b"", b"[]", b"{}", b'{"model": {"vocab": [["a", 0]]}, "added_tokens": []}'):
        with pytest.raises(TokenizerError, match="no vocabulary"):
            next(adversarial_cases(wrong, [EOS], 10, 0))
