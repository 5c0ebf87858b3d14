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
        changed = self._changed(texts)
        given = ["" if differs else text for text, differs in zip(texts, changed, strict=True)] if changed else texts
        ids, offsets = self.engine.encode(given)
        check_cut(self.engine, ids, offsets, len(texts), self.tokenizer.vocab_size)
        left = self._lossy(given, ids, offsets)
        left[[i for i, differs in enumerate(changed) if differs]] = True
        return (
            self._with_reference(texts, ids, offsets, np.flatnonzero(left).tolist()) if left.any() else (ids, offsets)
        )

    def _changed(self, texts: Sequence[str]) -> list[bool]:
        """Return whether the normalizer changes each text; an empty list when it changes none."""
        if self.tokenizer.normalizer_kind not in _NORMAL_FORMS or all(map(str.isascii, texts)):
            return []
        normal = self.tokenizer.tokenizer.normalizer.normalize_str
        changed = [not text.isascii() and normal(text) != text for text in texts]
        return changed if any(changed) else []

    def _lossy(self, texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return whether the ids of each text stand for less (or more) than its bytes, bool (texts,)."""
        if _IN_UTF8.isdisjoint(self.tokenizer.missing_bytes):
            return np.zeros(len(texts), bool)
        covered = np.zeros(len(texts), np.int64)
        filled = np.flatnonzero(np.diff(offsets))
        if len(filled):
            covered[filled] = np.add.reduceat(self.tokenizer.token_bytes.take(ids), offsets[filled], dtype=np.int64)
        sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
        return np.not_equal(covered, np.fromiter(sizes, np.int64, len(texts)))

    def _with_reference(
        self, texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray, numbers: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and offsets with those of the reference for the texts ``numbers``."""
        again, cuts = self.reference.encode([texts[number] for number in numbers])
        lengths = np.diff(offsets)
        lengths[numbers] = np.diff(cuts)
        pieces, begin = [], 0
        for number, start, end in zip(numbers, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            pieces += [ids[begin : offsets[number]], again[start:end]]
            begin = int(offsets[number + 1])
        return np.concatenate([*pieces, ids[begin:]]), np.concatenate([[0], np.cumsum(lengths)])
