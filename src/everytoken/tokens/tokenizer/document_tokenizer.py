"""What is known of a byte-level BPE tokenizer, from its ``tokenizer.json``.

Only the Rust library is used (``transformers.AutoTokenizer`` disagrees with it on blank lines: SmolLM2 has one token
for two newlines). The EOS token is always given: a file may name another one than a corpus was made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from everytoken.shards import Artifact
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer.probe import ProbedStatistics, check_probe
from everytoken.tokens.tokenizer.text_pieces import may_be_cut

TOKENIZER_FILE = "tokenizer.json"

_MEASURED_IDS = 1 << 15  # at a time: what is made of them stays in the processor's cache
_SPECIAL_BIT = 44  # more bytes than so many ids stand for, and so many special tokens are no 64 bits

# Pre-tokenizers that cut text and keep all of it (those with a behavior lose text when it is "Removed").
_KEEPS_TEXT = {"ByteLevel", "Digits", "Split", "Punctuation", "UnicodeScripts"}


@dataclass(frozen=True, eq=False)
class DocumentTokenizer:
    """A byte-level BPE tokenizer with the EOS token that ends every document (and pads: pad id == EOS id).

    Attributes:
        content: bytes of its ``tokenizer.json``.
        tokenizer: the library's tokenizer, without truncation and padding.
        eos_token: the token that ends a document.
        vocab_size: the largest id + 1: rows that an embedding needs.
        special_tokens: ids of the special tokens, by what they look like in a text; EOS among them.
        missing_bytes: byte values without a symbol in the vocabulary: text that holds them loses them. (0xC0,
            0xC1 and 0xF5..0xFF are in no UTF-8.)
        token_bytes: bytes of text that each id stands for, int32 (vocab_size,).
        normalizer_kind: type of its normalizer (``NFC``), or None.
        may_be_cut: whether a long text can be encoded in pieces (`everytoken.tokens.tokenizer.text_pieces`).
    """

    content: bytes
    tokenizer: Tokenizer
    eos_token: str
    eos_id: int
    vocab_size: int
    special_tokens: Mapping[str, int]
    missing_bytes: tuple[int, ...]
    token_bytes: np.ndarray
    normalizer_kind: str | None
    may_be_cut: bool

    @property
    def why_lossy(self) -> str:
        """A sentence on what may lose text."""
        if self.missing_bytes:
            return f"The vocabulary has no symbol for the bytes {list(self.missing_bytes)}."
        return "An added token swallows the spaces beside it, or stands for another spelling of its text."

    def measured(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of text and the special tokens that the ids of each of n documents stand for, int64 (n,).

        Args:
            ids: of all documents, one after the other, uint32.
            offsets: where each document begins, and the end, int64 (n + 1,).
        """
        covered, special = np.zeros((2, len(offsets) - 1), np.int64)
        starts, ends = offsets[:-1], offsets[1:]
        for start in range(0, len(ids), _MEASURED_IDS):
            stop = min(start + _MEASURED_IDS, len(ids))
            first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, stop)
            here = first + np.flatnonzero(ends[first:last] > starts[first:last])
            cuts = np.maximum(starts[here], start) - start
            sums = np.add.reduceat(self._measures.take(ids[start:stop]), cuts)
            special[here] += sums >> _SPECIAL_BIT
            covered[here] += sums & ((1 << _SPECIAL_BIT) - 1)
        return covered, special

    @cached_property
    def _measures(self) -> np.ndarray:
        """Bytes of text of each id, and the bit above them for special tokens: one pass sums up both, int64."""
        measures = self.token_bytes.astype(np.int64)
        measures[list(self.special_tokens.values())] += 1 << _SPECIAL_BIT
        return measures

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 when every id fits, else uint32."""
        return token_dtype(self.vocab_size)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return uint16 when ``vocab_size`` <= 65,536, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def open_tokenizer(tokenizer: Artifact | Path, eos_token: str) -> DocumentTokenizer:
    """Open a tokenizer artifact, or a ``tokenizer.json``, with the EOS token given explicitly.

    A process opens the same content once. The file's own truncation, padding and post-processor have no
    effect.

    Raises:
        TokenizerError: the file is not a byte-level BPE that keeps its text, has no token ``eos_token``, or the library
            encodes otherwise than when the artifact was made.
    """
    path = tokenizer if isinstance(tokenizer, Path) else tokenizer.path(TOKENIZER_FILE)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error
    opened = _open(content, str(path), eos_token)
    if isinstance(tokenizer, Artifact):
        said = tokenizer.statistics_as(ProbedStatistics)
        check_probe(said, tokenizer.measured, opened.tokenizer, str(path))
    return opened


@lru_cache(maxsize=4)
def library_tokenizer(content: bytes) -> Tokenizer:
    """Return the library's tokenizer, without truncation and padding; a process loads the same content once."""
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=4)
def _open(content: bytes, where: str, eos_token: str) -> DocumentTokenizer:
    try:
        description = orjson.loads(content)
        tokenizer = library_tokenizer(content)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{where} is not a tokenizer.json that the tokenizers library can read: {error}"
        ) from error
    _require_byte_level(description, where)
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise TokenizerError(
            f"{where} has no token {eos_token!r} to end documents with. "
            "Its special tokens are "
            f"{[str(token.content) for token in _added(tokenizer).values() if token.special][:20]}."
        )
    added = _added(tokenizer)
    vocabulary = {**description["model"]["vocab"], **{token.content: token_id for token_id, token in added.items()}}
    ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    vocab_size = int(ids.max()) + 1
    token_bytes = np.zeros(vocab_size, np.int32)
    # A character of a byte-level token is a byte; an added token is plain text.
    token_bytes[ids] = np.fromiter(map(len, vocabulary), np.int32, len(vocabulary))
    for token_id, token in added.items():
        token_bytes[token_id] = len(token.content.encode())
    unknown = description["model"].get("unk_token")
    if unknown is not None and (unknown_id := tokenizer.token_to_id(unknown)) is not None and unknown_id not in added:
        token_bytes[unknown_id] = 0
    token_bytes.setflags(write=False)
    missing = tuple(byte for byte, symbol in byte_symbols().items() if symbol not in vocabulary)
    normalizer = description.get("normalizer")
    return DocumentTokenizer(
        content=content,
        tokenizer=tokenizer,
        eos_token=eos_token,
        eos_id=eos_id,
        vocab_size=vocab_size,
        special_tokens={str(token.content): token_id for token_id, token in sorted(added.items()) if token.special},
        missing_bytes=missing,
        token_bytes=token_bytes,
        normalizer_kind=None if normalizer is None else str(normalizer["type"]),
        may_be_cut=may_be_cut(description, list(_flat(description["pre_tokenizer"]))),
    )


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
    unknown, added = model.get("unk_token"), {token["content"] for token in description.get("added_tokens") or ()}
    if unknown in added and not set(byte_symbols().values()) <= set(model.get("vocab") or ()):
        reasons.append(
            f"its unknown token {unknown!r} is an added token: lost bytes and texts that spell it look alike"
        )
    if len(byte_level) > 1:
        reasons.append("it has more than one ByteLevel pre-tokenizer")
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
