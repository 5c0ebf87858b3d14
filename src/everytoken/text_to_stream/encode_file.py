"""One input file, or a byte range of one, becomes tokens: an artifact that a worker makes for itself.

``tokens.bin`` has the ids of all documents one after the other, each document's EOS included, in the type of the final
stream; ``lengths.bin`` the tokens of each document with its EOS, little-endian int32. Both are written and hashed batch
by batch: memory holds one batch of texts, whatever the size of the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, NotRequired, TypedDict

import numpy as np

from everytoken.shards import Built, HashedFile, versioned
from everytoken.text_to_stream.errors import FileError, PreprocessingError, RecheckFailed
from everytoken.text_to_stream.texts import TextRange, Texts, fail, read_texts
from everytoken.tokens import TokenizerError
from everytoken.tokens.encoding import (
    COUNTED,
    DocumentEncoder,
    Encoded,
    EncodedCounts,
    EngineDiffers,
    Recheck,
    Rechecker,
    SpelledSpecialToken,
    counts_in,
    document_counts,
    open_encoder,
)
from everytoken.tokens.streams import stored_dtype
from everytoken.tokens.tokenizer import (
    DocumentTokenizer,
    EncodingRules,
    SpecialTokens,
    TokenizerStatistics,
    probe_record,
)

TOKENS_FILE, LENGTHS_FILE = "tokens.bin", "lengths.bin"

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Encoding:
    """What decides the ids of a document.

    Attributes:
        tokenizer_sha256: of the ``tokenizer.json``.
        eos_token: the token that ends a document.
        special_tokens_in_text: see `everytoken.tokens.encoding.encoder.DocumentEncoder`.
        max_tokens: cap of a document, EOS included; None for none.
    """

    tokenizer_sha256: str
    eos_token: str
    special_tokens_in_text: SpecialTokens
    max_tokens: int | None


class FileRange(TypedDict):
    """Which bytes are encoded: ``begin`` to ``end`` of a file.

    ``sha256`` is of the whole file. ``format`` is that of other files than JSON Lines.
    """

    sha256: str
    begin: int
    end: int
    text_field: str
    format: NotRequired[str]


class FileStatistics(EncodedCounts):
    """Statistics of `encode_file`.

    ``first_lossy``: row of the range, from 0, whose document is the first that loses text; None if none does.
    """

    first_lossy: int | None
    tokenizer: TokenizerStatistics


@versioned("encode_file", 1, unrecorded=["given", "stamp", "tokenizer", "engine", "recheck"])
def encode_file(
    folder: Path,
    *,
    source: FileRange,
    encoding: Encoding,
    proof: None,
    given: TextRange,
    stamp: Stamp,
    tokenizer: Path,
    engine: str,
    recheck: Recheck,
) -> Built:
    """Encode the documents of a file.

    Args:
        folder: where the tokens go.
        source: which bytes.
        encoding: what decides the ids.
        proof: always None. It is recorded, as version 0.1.0 did for the reference, so that its streams count as made.
        given: where these bytes are.
        stamp: of the file when its SHA-256 was taken (`stamp_of`).
        tokenizer: path of the ``tokenizer.json``.
        engine: what encodes; it never changes a byte.
        recheck: which documents the reference encodes again.

    Raises:
        FileError: the file is damaged or changed, or one of its rows is no document that can be encoded.
        RecheckFailed: the engine gave other ids than the reference.
        TokenizerError: the tokenizer cannot be used.
    """
    encoder = _open(tokenizer, encoding, engine)
    rechecker = Rechecker(
        encoder, recheck, int(source["sha256"][:15], 16) + source["begin"], source["end"] - source["begin"]
    )
    dtype = stored_dtype(encoder.tokenizer.dtype)
    counts, first_lossy = dict.fromkeys(COUNTED, 0), None
    with HashedFile(folder / TOKENS_FILE) as tokens, HashedFile(folder / LENGTHS_FILE) as lengths:
        for batch in read_texts(given):
            encoded = _encode(encoder, rechecker, given, batch, encoding.max_tokens)
            if first_lossy is None and encoded.lost_bytes.any():
                first_lossy = batch.row + int(np.argmax(encoded.lost_bytes != 0))
            tokens.write(encoded.values.astype(dtype, copy=False).data)
            lengths.write((encoded.lengths + 1).astype("<i4", copy=False).data)
            for name, column in document_counts(encoded, encoding.max_tokens).items():
                counts[name] += int(column.sum(dtype=np.int64))
        try:
            rechecker.check()
        except EngineDiffers as error:
            _refuse(given, error)
    if stamp_of(given.path) != stamp:
        raise FileError(given.name, None, "it changed while it was read. Leave it alone and run the command again.")
    statistics = FileStatistics(
        **counts_in(counts), first_lossy=first_lossy, tokenizer=_facts(encoder.tokenizer, encoding)
    )
    sha256 = {TOKENS_FILE: tokens.sha256.hexdigest(), LENGTHS_FILE: lengths.sha256.hexdigest()}
    return Built(statistics, {"rechecked_documents": rechecker.documents}, sha256)


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file does: its size, both times, and which file it is."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _facts(tokenizer: DocumentTokenizer, encoding: Encoding) -> TokenizerStatistics:
    return {
        "sha256": encoding.tokenizer_sha256,
        "dtype": stored_dtype(tokenizer.dtype).name,
        "eos_id": tokenizer.eos_id,
        "eos_token": tokenizer.eos_token,
        "vocab_size": tokenizer.vocab_size,
        "missing_bytes": list(tokenizer.missing_bytes),
        "probe": probe_record(tokenizer.tokenizer),
    }


def _open(path: Path, encoding: Encoding, engine: str) -> DocumentEncoder:
    rules = EncodingRules(path, encoding.eos_token, encoding.special_tokens_in_text)
    encoder = open_encoder(rules, engine=engine)
    found = hashlib.sha256(encoder.tokenizer.content).hexdigest()
    if found != encoding.tokenizer_sha256:
        raise PreprocessingError(f"{path} changed during the run (SHA-256 {found}). Run the command again.")
    return encoder


def _refuse(given: TextRange, error: EngineDiffers) -> NoReturn:
    assert isinstance(error.place, int)
    fail(given, error.place, str(error), kind=RecheckFailed)


def _encode(
    encoder: DocumentEncoder, rechecker: Rechecker, given: TextRange, batch: Texts, max_tokens: int | None
) -> Encoded:
    try:
        encoded = encoder.encode(batch.texts, max_tokens)
        rechecker.add(batch.texts, encoded, max_tokens, batch.row.__add__)
    except SpelledSpecialToken as error:
        fail(given, batch.row + error.number, str(error))
    except EngineDiffers as error:
        _refuse(given, error)
    except TokenizerError as error:
        fail(given, batch.row, f"in the {len(batch.texts)} documents from here on: {error}")
    return encoded
