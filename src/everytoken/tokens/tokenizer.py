"""Documents to ids with a byte-level BPE tokenizer, cut to a length that counts EOS; lost text is counted.

Only the Rust library is used (``transformers.AutoTokenizer`` disagrees with it on blank lines: SmolLM2 has
one token for two newlines). The ids of a document are those that the library gives with a post-processor that
appends EOS and with ``enable_truncation(max_length=max_tokens)``: the library makes room for EOS first, so at
most ``max_tokens - 1`` ids of content are left. We ask it for the whole encoding and cut there ourselves. The
ids are equal (a test compares them), whatever post-processor, truncation or padding the tokenizer file
carries, and only the whole encoding shows what was lost:

A byte-level token stands for a known number of bytes, so a document is encoded without loss exactly when the
bytes of its ids add up to the bytes of its text. They do not when the vocabulary lacks byte symbols
(SmolLM2's lacks 21 and has no unknown token: such bytes vanish without a word) or when an added token
swallows the space beside it. What is counted is the whole text, also beyond the cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from everytoken.shards import Artifact
from everytoken.tokens.errors import TokenizerError

TOKENIZER_FILE = "tokenizer.json"

# The library keeps about 100 bytes a token beside the ids, so this bounds memory; smaller batches leave cores
# idle.
_ENCODE_CHARACTERS = 2 << 20

# Pre-tokenizers that cut text and keep all of it (those with a behavior lose text when it is "Removed").
_KEEPS_TEXT = {"ByteLevel", "Digits", "Split", "Punctuation", "UnicodeScripts"}


@dataclass(frozen=True)
class Encoded:
    """The ids of n documents, and what encoding did to each.

    Attributes:
        values: ids of all documents one after the other, each document's EOS included; uint16 or uint32.
        lengths: content tokens of each document after the cut, without EOS, int32 (n,).
        full_lengths: content tokens of each document before the cut, int64 (n,).
        text_bytes: UTF-8 bytes of each text, int64 (n,).
        lost_bytes: bytes of each text that no id stands for, int64 (n,), over the whole text.
        normalized: whether the tokenizer's normalizer (NFC of GPT-NeoX) changed the text, bool (n,).
        eos_in_text: ids of content, after the cut, that equal EOS because the text spells it, int64 (n,).
    """

    values: np.ndarray
    lengths: np.ndarray
    full_lengths: np.ndarray
    text_bytes: np.ndarray
    lost_bytes: np.ndarray
    normalized: np.ndarray
    eos_in_text: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """Start of each document in ``values``, and the end: int64 (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths.astype(np.int64) + 1)])


@dataclass(frozen=True, eq=False)
class DocumentTokenizer:
    """A byte-level BPE tokenizer with the EOS token that ends every document (and pads: pad id == EOS id).

    Attributes:
        tokenizer: the library's tokenizer, without truncation and padding.
        eos_token: the token that ends a document.
        eos_id: its id.
        vocab_size: the largest id + 1: rows that an embedding needs.
        missing_bytes: byte values without a symbol in the vocabulary: text that holds them loses them. (0xC0,
            0xC1 and 0xF5..0xFF are in no UTF-8.)
        token_bytes: bytes of text that each id stands for, int64 (vocab_size,).
    """

    tokenizer: Tokenizer
    eos_token: str
    eos_id: int
    vocab_size: int
    missing_bytes: tuple[int, ...]
    token_bytes: np.ndarray

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 when every id fits, else uint32."""
        return token_dtype(self.vocab_size)

    def encode(self, texts: Sequence[str], max_tokens: int) -> Encoded:
        """Return the ids of each text, at most ``max_tokens`` with EOS. Each text is encoded for itself.

        Raises:
            TokenizerError: there is no room for content in ``max_tokens``.
        """
        if max_tokens < 2:
            raise TokenizerError(f"max_tokens is {max_tokens}: EOS counts, so at least 2 are needed to keep one token")
        chunks = [self._encode(texts[start:stop], max_tokens) for start, stop in _spans(texts)]
        if len(chunks) == 1:
            return chunks[0]
        return Encoded(*(np.concatenate([vars(chunk)[name] for chunk in chunks]) for name in vars(chunks[0])))

    def _encode(self, texts: Sequence[str], max_tokens: int) -> Encoded:
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        full_lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
        ends = np.cumsum(full_lengths)
        starts = ends - full_lengths
        ids = np.empty(int(full_lengths.sum()), self.dtype)  # an id that does not fit raises OverflowError
        for start, end, encoding in zip(starts.tolist(), ends.tolist(), encodings, strict=True):
            ids[start:end] = encoding.ids
        covered = np.concatenate([[0], np.cumsum(self.token_bytes[ids])])
        lengths = np.minimum(full_lengths, max_tokens - 1)

        kept_ends = np.cumsum(lengths + 1)
        kept_starts = kept_ends - lengths - 1
        values = np.full(int((lengths + 1).sum()), self.eos_id, self.dtype)
        content = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values[np.repeat(kept_starts, lengths) + content] = ids[np.repeat(starts, lengths) + content]
        eos_seen = np.concatenate([[0], np.cumsum(values == self.eos_id)])

        normal = self._normal(texts)
        normal_bytes = _utf8_bytes(normal)
        text_bytes = normal_bytes if normal is texts else _utf8_bytes(texts)
        changed = np.fromiter((a != b for a, b in zip(normal, texts, strict=True)), bool, len(texts))
        return Encoded(
            values,
            lengths.astype(np.int32),
            full_lengths,
            text_bytes,
            normal_bytes - (covered[ends] - covered[starts]),
            changed,
            eos_seen[kept_ends] - eos_seen[kept_starts] - 1,
        )

    def _normal(self, texts: Sequence[str]) -> Sequence[str]:
        normalizer = self.tokenizer.normalizer
        return texts if normalizer is None else [normalizer.normalize_str(text) for text in texts]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return uint16 when ``vocab_size`` <= 65,536, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def open_tokenizer(tokenizer: Artifact | Path, eos_token: str) -> DocumentTokenizer:
    """Open a tokenizer artifact, or a ``tokenizer.json``, with the EOS token given explicitly.

    A process opens the same content once. The file's own truncation, padding and post-processor have no
    effect.

    Raises:
        TokenizerError: the file is not a byte-level BPE that keeps its text, or has no token ``eos_token``.
    """
    path = tokenizer if isinstance(tokenizer, Path) else tokenizer.path(TOKENIZER_FILE)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error
    return _open(content, str(path), eos_token)


@lru_cache(maxsize=4)
def _open(content: bytes, where: str, eos_token: str) -> DocumentTokenizer:
    try:
        description = json.loads(content)
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{where} is not a tokenizer.json that the tokenizers library can read: {error}"
        ) from error
    _require_byte_level(description, where)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise TokenizerError(
            f"{where} has no token {eos_token!r} to end documents with. "
            "Its special tokens are "
            f"{[str(token.content) for token in _added(tokenizer).values() if token.special][:20]}."
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    vocab_size = max(vocabulary.values()) + 1
    added = _added(tokenizer)
    token_bytes = np.zeros(vocab_size, np.int64)
    for token, token_id in vocabulary.items():
        # A character of a byte-level token is a byte; an added token is plain text.
        token_bytes[token_id] = len(token.encode()) if token_id in added else len(token)
    unknown = description["model"].get("unk_token")
    if unknown is not None and (unknown_id := tokenizer.token_to_id(unknown)) is not None and unknown_id not in added:
        token_bytes[unknown_id] = 0
    token_bytes.setflags(write=False)
    missing = tuple(byte for byte, symbol in byte_symbols().items() if symbol not in vocabulary)
    return DocumentTokenizer(tokenizer, eos_token, eos_id, vocab_size, missing, token_bytes)


def byte_symbols() -> dict[int, str]:
    """Return the character by which byte-level BPE writes each byte (GPT-2's table).

    Printable Latin-1 characters stand for themselves; the 68 other bytes, in order, are U+0100 and following.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)}
    if set(symbols.values()) != set(ByteLevel.alphabet()):
        raise TokenizerError("the byte alphabet of the tokenizers library is not GPT-2's; pin a version whose is")
    return symbols


def _added(tokenizer: Tokenizer) -> Mapping[int, Any]:
    decoder: Mapping[int, Any] = tokenizer.get_added_tokens_decoder()
    return decoder


def _require_byte_level(description: Mapping[str, Any], where: str) -> None:
    """Refuse what is not byte-level BPE, draws at random, adds text or throws it away: counts of lost text
    need that.
    """
    model = description.get("model") or {}
    cutters = list(_flat(description.get("pre_tokenizer")))
    byte_level = [cutter for cutter in cutters if cutter["type"] == "ByteLevel"]
    reasons = []
    if model.get("type") != "BPE" or not byte_level:
        reasons.append(f"its model is {model.get('type')} with the pre-tokenizers {[c['type'] for c in cutters]}")
    if model.get("dropout"):
        reasons.append(f"its BPE dropout is {model['dropout']}, so ids are drawn at random")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            reasons.append(f"it has a {key}")
    if any(cutter.get("add_prefix_space", True) for cutter in byte_level):
        reasons.append("it adds a space before each text (add_prefix_space)")
    for cutter in cutters:
        if cutter["type"] not in _KEEPS_TEXT or cutter.get("behavior") == "Removed":
            reasons.append(f"its pre-tokenizer {cutter['type']} does not keep all text")
    if reasons:
        raise TokenizerError(f"{where} is not a byte-level BPE tokenizer as needed here: {'; '.join(reasons)}.")


def _flat(cutter: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if cutter is None:
        return
    if cutter["type"] == "Sequence":
        for member in cutter["pretokenizers"]:
            yield from _flat(member)
    else:
        yield cutter


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
