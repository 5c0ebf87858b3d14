"""Documents to ids: content and EOS, cut to a length that counts EOS; what was lost, cut and spelled is counted.

The ids of a document are those that the `tokenizers` library gives with a post-processor that appends EOS and with
``enable_truncation(max_length=max_tokens)``: the library makes room for EOS first, so at most ``max_tokens - 1`` ids of
content are left. We ask the engine for the whole encoding and cut there ourselves. The ids are equal (a test compares
them), whatever post-processor, truncation or padding the tokenizer file carries; and one pass over the text gives ids,
counts and what was lost:

A byte-level token stands for a known number of bytes, so a document is encoded without loss exactly when the bytes of
its ids add up to the bytes of its text. They do not when the vocabulary lacks byte symbols (SmolLM2's lacks 21 and has
no unknown token: such bytes vanish without a word) or when an added token swallows the space beside it. What is counted
is the whole text, also beyond the cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile

import numpy as np

from everytoken.tokens.engines import REFERENCE, Measured, TokenizerEngine, check_cut, encode_measured, open_guarded
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import (
    PIECE_CHARACTERS,
    DocumentTokenizer,
    EncodingRules,
    SpecialTokens,
    cut_text,
    open_tokenizer,
)

# Bounds memory: the reference keeps about 100 bytes a token beside the ids. Smaller batches leave its cores idle.
_ENCODE_CHARACTERS = 2 << 20

_UNICODE_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}


@dataclass(frozen=True)
class Encoded:
    """The ids of n documents, and what encoding did to each.

    Attributes:
        values: ids of all documents one after the other, each document's EOS included; uint16 or uint32.
        lengths: content tokens of each document after the cut, without EOS, int32 (n,).
        full_lengths: content tokens of each document before the cut, int64 (n,).
        characters: code points of each text, int64 (n,).
        text_bytes: UTF-8 bytes of each text, int64 (n,).
        lost_bytes: bytes of each text that no id stands for, int64 (n,), over the whole text.
        normalized: whether the tokenizer's normalizer (NFC of GPT-NeoX) changed the text, bool (n,).
        spells_special: whether the text spells a special token, bool (n,).
        special_ids: ids of content, after the cut, that are special tokens because the text spells them, int64
            (n,); EOS among them. Always 0 when special tokens in texts are literal.
    """

    values: np.ndarray
    lengths: np.ndarray
    full_lengths: np.ndarray
    characters: np.ndarray
    text_bytes: np.ndarray
    lost_bytes: np.ndarray
    normalized: np.ndarray
    spells_special: np.ndarray
    special_ids: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """Start of each document in ``values``, and the end: int64 (n + 1,)."""
        return _offsets(self.lengths.astype(np.int64) + 1)


@dataclass(frozen=True, eq=False)
class DocumentEncoder:
    """A tokenizer, the engine that runs it, and the rule for special tokens that a text spells.

    Attributes:
        tokenizer: what is known of the tokenizer.
        special_tokens_in_text: ``literal``: plain text; ``control``: their ids; ``error``: such a document is refused.
    """

    tokenizer: DocumentTokenizer
    engine: TokenizerEngine
    special_tokens_in_text: SpecialTokens

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> Encoded:
        """Return the ids of each text, at most ``max_tokens`` with EOS (None: all). Each text is encoded for itself.

        Raises:
            SpelledSpecialToken: a text spells a special token, and that is an error.
            TokenizerError: there is no room for content in ``max_tokens``, or the engine gave ids that are none.
        """
        if max_tokens is not None and max_tokens < 2:
            raise TokenizerError(f"max_tokens is {max_tokens}: EOS counts, so at least 2 are needed to keep one token")
        chunks = [self._encode(texts[start:stop], max_tokens) for start, stop in _spans(texts)]
        if len(chunks) == 1:
            return chunks[0]
        return Encoded(*(np.concatenate([vars(chunk)[name] for chunk in chunks]) for name in vars(chunks[0])))

    def _encode(self, texts: Sequence[str], max_tokens: int | None) -> Encoded:
        spells = self._spells_special(texts)
        ids, offsets, covered, special = self._ids(texts)
        full_lengths = np.diff(offsets)
        lengths = full_lengths if max_tokens is None else np.minimum(full_lengths, max_tokens - 1)
        values = self._with_eos(ids, offsets, lengths)
        normal = self._normal(texts)
        normal_bytes = _utf8_bytes(normal)
        return Encoded(
            values,
            lengths.astype(np.int32),
            full_lengths,
            np.fromiter(map(len, texts), np.int64, len(texts)),
            normal_bytes if normal is texts else _utf8_bytes(texts),
            normal_bytes - covered,
            np.fromiter((a is not b and a != b for a, b in zip(normal, texts, strict=True)), bool, len(texts)),
            spells,
            self._special_ids(ids, offsets, lengths, special),
        )

    def _ids(self, texts: Sequence[str]) -> Measured:
        if not self.tokenizer.may_be_cut or all(len(text) <= 2 * PIECE_CHARACTERS for text in texts):
            return encode_measured(self.engine, self.tokenizer, texts)
        return self._ids_of_pieces(texts)

    def _ids_of_pieces(self, texts: Sequence[str]) -> Measured:
        found, lengths = [], []
        for text in texts:
            length = 0
            for piece in cut_text(text):
                # The narrow type: what waits for the rest of a long text takes little.
                found.append(self.engine.encode([piece])[0])
                length += len(found[-1])
            lengths.append(length)
        ids, offsets = np.concatenate(found), _offsets(np.array(lengths, np.int64))
        check_cut(self.engine, ids, offsets, len(texts), self.tokenizer.vocab_size)
        return Measured(ids, offsets, *self.tokenizer.measured(ids, offsets))

    def _with_eos(self, ids: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        values = np.empty(int(lengths.sum()) + len(lengths), self.tokenizer.dtype)
        end = 0
        for start, length in zip(offsets[:-1].tolist(), lengths.tolist(), strict=True):
            values[end : end + length] = ids[start : start + length]
            values[end + length] = self.tokenizer.eos_id
            end += length + 1
        return values

    def _special_ids(
        self, ids: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, special: np.ndarray
    ) -> np.ndarray:
        """Return how many of the ``special`` tokens of each document are left after the cut."""
        found = np.zeros(len(lengths), np.int64)
        for i in np.flatnonzero(special).tolist():
            content = ids[offsets[i] : offsets[i + 1]]
            here = np.isin(content, list(self.tokenizer.special_tokens.values()))
            if self.special_tokens_in_text != "control":
                raise TokenizerError(
                    f"{self._named} gave the special token {int(content[here][0])} for plain text: its merges reach "
                    "it, or the engine is wrong. Use another engine; if that is tokenizers, this tokenizer cannot "
                    "write it literally, and special_tokens_in_text must be 'control'"
                )
            found[i] = here[: lengths[i]].sum()
        return found

    def _spells_special(self, texts: Sequence[str]) -> np.ndarray:
        pattern = self._special_pattern
        if pattern is None:
            return np.zeros(len(texts), bool)
        begin = self._begin_of_special  # faster to find than the pattern
        found = [pattern.search(text) if begin in text else None for text in texts]
        if self.special_tokens_in_text == "error":
            for number, match in enumerate(found):
                if match is not None:
                    raise SpelledSpecialToken(number, match.group(), match.start())
        return np.fromiter((match is not None for match in found), bool, len(texts))

    def _normal(self, texts: Sequence[str]) -> Sequence[str]:
        normalizer, kind = self.tokenizer.tokenizer.normalizer, self.tokenizer.normalizer_kind
        if normalizer is None or (kind in _UNICODE_FORMS and all(map(str.isascii, texts))):
            return texts
        ascii_is_normal = kind in _UNICODE_FORMS
        return [text if ascii_is_normal and text.isascii() else normalizer.normalize_str(text) for text in texts]

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        # the longest first, as the library matches them
        spelled = sorted(self.tokenizer.special_tokens, key=lambda token: (-len(token), token))
        return re.compile("|".join(map(re.escape, spelled))) if spelled else None

    @cached_property
    def _begin_of_special(self) -> str:
        """What all special tokens begin with; nothing, perhaps."""
        first, last = min(self.tokenizer.special_tokens), max(self.tokenizer.special_tokens)
        return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))

    @property
    def _named(self) -> str:
        return f"the engine {self.engine.name} {self.engine.version}"


class SpelledSpecialToken(TokenizerError):
    """A text spells a special token, and ``special_tokens_in_text`` is ``error``.

    Attributes:
        number: of the text in what was to be encoded.
    """

    def __init__(self, number: int, token: str, place: int) -> None:
        super().__init__(
            f"the text spells the special token {token!r} at character {place}. Remove it from the text, or set "
            "special_tokens_in_text to 'literal' (plain text) or 'control' (it becomes the token)"
        )
        self.number = number


def open_encoder(rules: EncodingRules, *, engine: str = REFERENCE) -> DocumentEncoder:
    """Open a tokenizer with an engine. A process opens the same content once.

    Raises:
        TokenizerError: see `open_tokenizer` and `everytoken.tokens.engines.registry.open_engine`.
    """
    opened = open_tokenizer(rules.place, rules.eos_token)
    if rules.special_tokens_in_text != "control" and rules.eos_token not in opened.special_tokens:
        raise TokenizerError(
            f"{rules.eos_token!r} is no special token of this tokenizer, so a text that spells it would end its "
            "document. Mark it as special in tokenizer.json, or set special_tokens_in_text to 'control'"
        )
    return _open(opened, rules.special_tokens_in_text, engine)


@lru_cache(maxsize=8)
def _open(tokenizer: DocumentTokenizer, special_tokens_in_text: SpecialTokens, engine: str) -> DocumentEncoder:
    return DocumentEncoder(tokenizer, open_guarded(engine, tokenizer, special_tokens_in_text), special_tokens_in_text)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _spans(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of runs of texts of bounded size; at least one, also for no texts."""
    start = size = 0
    for i, text in enumerate(texts):
        if size and size + len(text) > _ENCODE_CHARACTERS:
            yield start, i
            start, size = i, 0
        size += len(text)
    yield start, len(texts)


def _utf8_bytes(texts: Sequence[str]) -> np.ndarray:
    sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
    return np.fromiter(sizes, np.int64, len(texts))
