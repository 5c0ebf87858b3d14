"""Engines: what turns text into ids. `tokenizers` is the reference; the others are faster and must be proven equal.

An engine gets texts and gives flat arrays of ids. Python lists of ids would cost more than fast engines need for the
encoding itself. Which engine ran can never show in a byte of the output: a fast one is used only with a certificate
(`everytoken.tokens.engines.certificate`), and a share of the documents is encoded again by the reference.

The fast engines (optional extra ``fast``) load the same ``tokenizer.json``, without its post-processor, truncation
and padding: EOS and the cap are ours. Where special tokens that a text spells shall stay plain text, they get the
file without these tokens; the reference has a switch for it.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import SpecialTokens, library_tokenizer

EngineName = Literal["fastest", "tokenizers", "splintr-rs", "fastokens", "snaptokens"]

REFERENCE = "tokenizers"

# distribution on PyPI -> how it opens the text of a tokenizer.json
_FAST: dict[str, Callable[[str], Any]] = {
    "splintr-rs": lambda text: importlib.import_module("splintr").from_json_bytes(text.encode()),
    "fastokens": lambda text: importlib.import_module("fastokens").Tokenizer.from_json_str(text),
    "snaptokens": lambda text: importlib.import_module("snaptokens").Tokenizer.from_json_str(text),
}


class TokenizerEngine(Protocol):
    """Encodes texts."""

    @property
    def name(self) -> str:
        """Name of its distribution on PyPI."""

    @property
    def version(self) -> str:
        """Version of the distribution."""

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the content ids of all texts, uint32 (n,), and where each begins, and the end, int64 (texts + 1,).

        No EOS, no truncation, nothing that a post-processor adds.
        """


def reference_version() -> str:
    """Return the version of the `tokenizers` library that is installed."""
    return version(REFERENCE)


def installed_engines() -> dict[str, str]:
    """Return the versions of the fast engines that are installed, by name; none without the extra ``fast``."""
    found = {}
    for name in _FAST:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def open_engine(name: str, content: bytes, special_tokens_in_text: SpecialTokens) -> TokenizerEngine:
    """Open an engine on the content of a ``tokenizer.json``; a process opens each once.

    Args:
        name: `REFERENCE` or one of `installed_engines`.
        content: bytes of the file.
        special_tokens_in_text: ``control``: a special token that a text spells becomes its id; ``literal`` and
            ``error``: it is encoded as the plain text that it is.

    Raises:
        TokenizerError: there is no such engine here, or it cannot load this tokenizer.
    """
    return _open(name, content, special_tokens_in_text != "control")


@lru_cache(maxsize=8)
def _open(name: str, content: bytes, literal: bool) -> TokenizerEngine:
    if name == REFERENCE:
        return _Reference(content, literal)
    if name not in _FAST:
        raise TokenizerError(f"there is no engine {name!r}; expected {REFERENCE!r} or one of {sorted(_FAST)}")
    try:
        return _Fast(name, version(name), _FAST[name](_bare(content, literal)))
    except PackageNotFoundError:
        raise TokenizerError(f"the engine {name} is not installed; install it with: pip install '.[fast]'") from None
    except BaseException as error:  # a panic of a Rust library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"the engine {name} cannot load this tokenizer: {error}") from error


class _Reference:
    """The `tokenizers` library."""

    name = REFERENCE

    def __init__(self, content: bytes, literal: bool) -> None:
        self.version = reference_version()
        self._tokenizer, self._literal = library_tokenizer(content), literal

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        self._tokenizer.encode_special_tokens = self._literal  # the tokenizer is shared
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = False
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        ids = np.empty(offsets[-1], np.uint32)
        for encoding, start, end in zip(encodings, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            ids[start:end] = np.frombuffer(array("I", encoding.ids), np.uintc)  # numpy reads a list 3 times slower
        return ids, offsets


@dataclass(frozen=True)
class _Fast:
    """A library whose ``encode_batch_flat`` gives ids and offsets as bytes."""

    name: str
    version: str
    native: Any

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self.native.encode_batch_flat(list(texts))
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)


def _bare(content: bytes, literal: bool) -> str:
    description = orjson.loads(content)
    description.update(post_processor=None, truncation=None, padding=None)
    if literal:
        description["added_tokens"] = [token for token in description["added_tokens"] if not token["special"]]
    return orjson.dumps(description).decode()
