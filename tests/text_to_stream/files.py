"""Small files of documents, a tokenizer, and parameters for the tests of preprocessing."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from backports import zstd
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.shards.engines import Engine, Inline
from everytoken.text_to_stream.stream import Tokenization, Tokenized, tokenize
from everytoken.text_to_stream.texts import TextRange
from everytoken.tokens.streams.megatron import IndexedTokens, open_indexed

EOS = "<|endoftext|>"
WORDS = re.split(" ", "the cat sat on a mat and read 1234 books; naïve café 日本 \t\tdef f(x): return x")


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of various lengths, all different."""
    return [
        f"{seed} {i} " + " ".join(WORDS[(i * 7 + j * 3 + seed) % len(WORDS)] for j in range(i % 23))
        for i in range(count)
    ]


def lines_of(documents: Sequence[str], field: str = "text") -> bytes:
    return b"".join(orjson.dumps({"id": i, field: text}) + b"\n" for i, text in enumerate(documents))


def packed(data: bytes, name: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstd.compress(data) if name.endswith(".zst") else data


def write(path: Path, documents: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(lines_of(documents), path.name))
    return path


def write_tokenizer(path: Path, vocab_size: int = 300, missing: str = "") -> Path:
    """Train a small tokenizer; the byte symbols in ``missing`` are then taken out of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(EOS, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(200), trainer)
    description = orjson.loads(tokenizer.to_str())
    for symbol in missing:
        del description["model"]["vocab"][symbol]
    path.write_bytes(orjson.dumps(description))
    return path


def parameters(tokenizer: Path, **changed: Any) -> Tokenization:
    values: dict[str, Any] = {
        "tokenizer": tokenizer,
        "eos": EOS,
        "text_field": "text",
        "special_tokens_in_text": "literal",
        "max_tokens": None,
        "max_lossy_share": 0.0,
        "engine": "tokenizers",
        "certificate": None,
        "cases": 50,
        "recheck_share": 0.5,
        "recheck_documents": 1000,
        "seed": 0,
        "max_line_bytes": 1 << 29,
        "keep_parts": False,
    }
    return Tokenization(**{**values, **changed})


def make(files: Sequence[Path], out: Path, given: Tokenization, workers: Engine | None = None) -> Tokenized:
    return tokenize(files, out, given, workers or Inline(), 2)


def stream_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("documents.*"))}


def stream(folder: Path) -> IndexedTokens:
    opened = open_indexed(folder / "documents")
    opened.check()
    return opened


def expected(documents: Sequence[str], tokenizer: Path) -> list[list[int]]:
    """Return what the bare library gives: content, special tokens as plain text, and EOS."""
    library = Tokenizer.from_file(str(tokenizer))
    library.encode_special_tokens = True
    eos = library.token_to_id(EOS)
    return [[*library.encode(text, add_special_tokens=False).ids, eos] for text in documents]


def documents_in(folder: Path) -> list[list[int]]:
    opened = stream(folder)
    return [np.asarray(opened[i]).tolist() for i in range(len(opened))]


def whole(path: Path, begin: int = 0, end: int | None = None, max_line_bytes: int = 1 << 29) -> TextRange:
    return TextRange(path, path.name, begin, path.stat().st_size if end is None else end, "text", max_line_bytes)
