r"""Fast engines with a guard: texts on which they are known to go their own way are encoded by the reference.

Two rules of `tokenizers` are copied by no fast engine in full, and both can be seen on the text at hand:

- Bytes without a symbol in the vocabulary (SmolLM2's lacks 0x1D and others). The reference drops them and merges what
  then stands side by side (``.\x1d.`` becomes the token ``..``); splintr-rs drops them and does not merge. Such a text
  shows in its ids, whose bytes do not add up to those of the text.
- Unicode normal forms (NFC of GPT-NeoX). The reference has tables of an older Unicode than splintr-rs and snaptokens,
  so newer combining marks end in another order. Engines get the tokenizer without its normalizer, and only texts that
  the reference's normalizer leaves as they are: parts of these are in normal form too, so nothing is left to normalize.

What remains is compared before use (`everytoken.tokens.engines.certificate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import orjson

from everytoken.tokens.engines import registry
from everytoken.tokens.engines.registry import REFERENCE, TokenizerEngine
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import DocumentTokenizer, SpecialTokens

_NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_IN_UTF8 = {*range(0xC0), *range(0xC2, 0xF5)}


def open_guarded(name: str, tokenizer: DocumentTokenizer, special_tokens_in_text: SpecialTokens) -> TokenizerEngine:
    """Open the reference, or a fast engine with its guard.

    Raises:
        TokenizerError: see `everytoken.tokens.engines.registry.open_engine`.
    """
    if name == REFERENCE:
        return registry.open_engine(name, tokenizer.content, special_tokens_in_text)
    content = tokenizer.content
    if tokenizer.normalizer_kind is not None:
        _require_plain_normalizer(name, tokenizer)
        content = orjson.dumps({**orjson.loads(content), "normalizer": None})
    return _Guarded(
        tokenizer,
        registry.open_engine(name, content, special_tokens_in_text),
        registry.open_engine(REFERENCE, tokenizer.content, special_tokens_in_text),
    )


def _require_plain_normalizer(name: str, tokenizer: DocumentTokenizer) -> None:
    """Refuse what the guard cannot see in a text: normalizers other than normal forms, and added tokens that the
    reference looks for in normal form and the engine as they are written.
    """
    kind, normal = tokenizer.normalizer_kind, tokenizer.tokenizer.normalizer.normalize_str
    if kind not in _NORMAL_FORMS:
        raise TokenizerError(f"the engine {name} is not used with the normalizer {kind}")
    for token in orjson.loads(tokenizer.content)["added_tokens"]:
        if token["normalized"] and normal(token["content"]) != token["content"]:
            raise TokenizerError(
                f"the engine {name} is not used: the added token {token['content']!r} is not in {kind}"
            )


def check_cut(engine: TokenizerEngine, ids: np.ndarray, offsets: np.ndarray, texts: int, vocab_size: int) -> None:
    """Check that ids are ids, and that the offsets cut them into as many texts.

    Raises:
        TokenizerError: they do not.
    """
    whole = len(offsets) == texts + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
    if not whole or (np.diff(offsets) < 0).any():
        raise TokenizerError(
            f"the engine {engine.name} gave {len(ids)} ids with offsets that do not cut them into {texts} texts"
        )
    if len(ids) and int(ids.max()) >= vocab_size:
        raise TokenizerError(
            f"the engine {engine.name} gave the id {int(ids.max())}; the vocabulary ends at {vocab_size - 1}"
        )


class Measured(NamedTuple):
    """Ids of n texts, and what they stand for.

    Attributes:
        ids: of all texts, uint32.
        offsets: where each begins, and the end, int64 (n + 1,).
        covered: bytes of text that the ids of each stand for, int64 (n,).
        special: special tokens among them, int64 (n,).
    """

    ids: np.ndarray
    offsets: np.ndarray
    covered: np.ndarray
    special: np.ndarray


def encode_measured(engine: TokenizerEngine, tokenizer: DocumentTokenizer, texts: Sequence[str]) -> Measured:
    """Encode texts; what the ids stand for is found out once, for the guard and for the caller.

    Raises:
        TokenizerError: see `check_cut`.
    """
    if isinstance(engine, _Guarded):
        return engine.encode_measured(texts)
    ids, offsets = engine.encode(texts)
    check_cut(engine, ids, offsets, len(texts), tokenizer.vocab_size)
    return Measured(ids, offsets, *tokenizer.measured(ids, offsets))


@dataclass(frozen=True)
class _Guarded:
    tokenizer: DocumentTokenizer
    engine: TokenizerEngine
    reference: TokenizerEngine

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> str:
        return self.engine.version

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.encode_measured(texts)[:2]

    def encode_measured(self, texts: Sequence[str]) -> Measured:
        changed = self._changed(texts)
        given = ["" if differs else text for text, differs in zip(texts, changed, strict=True)] if changed else texts
        found = encode_measured(self.engine, self.tokenizer, given)
        left = self._lossy(given, found.covered)
        left[[i for i, differs in enumerate(changed) if differs]] = True
        if not left.any():
            return found
        numbers = np.flatnonzero(left)
        again = encode_measured(self.reference, self.tokenizer, [texts[number] for number in numbers.tolist()])
        found.covered[numbers], found.special[numbers] = again.covered, again.special
        ids, offsets = _spliced(found, again, numbers)
        return Measured(ids, offsets, found.covered, found.special)

    def _changed(self, texts: Sequence[str]) -> list[bool]:
        """Return whether the normalizer changes each text; an empty list when it changes none."""
        if self.tokenizer.normalizer_kind not in _NORMAL_FORMS or all(map(str.isascii, texts)):
            return []
        normal = self.tokenizer.tokenizer.normalizer.normalize_str
        changed = [not text.isascii() and normal(text) != text for text in texts]
        return changed if any(changed) else []

    def _lossy(self, texts: Sequence[str], covered: np.ndarray) -> np.ndarray:
        """Return whether the ids of each text stand for less (or more) than its bytes, bool (texts,)."""
        if _IN_UTF8.isdisjoint(self.tokenizer.missing_bytes):
            return np.zeros(len(texts), bool)
        sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
        lossy: np.ndarray = covered != np.fromiter(sizes, np.int64, len(texts))
        return lossy


def _spliced(found: Measured, again: Measured, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and offsets with those of ``again`` for the texts ``numbers``."""
    lengths = np.diff(found.offsets)
    lengths[numbers] = np.diff(again.offsets)
    pieces, begin = [], 0
    for number, (start, end) in zip(numbers.tolist(), pairwise(again.offsets.tolist()), strict=True):
        pieces += [found.ids[begin : found.offsets[number]], again.ids[start:end]]
        begin = int(found.offsets[number + 1])
    return np.concatenate([*pieces, found.ids[begin:]]), np.concatenate([[0], np.cumsum(lengths)])
