"""A byte range of an input becomes a part (`everytoken.text_to_stream.parts`); memory holds one batch of texts."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, NotRequired, TypedDict

import numpy as np

from everytoken.shards import Recipe, versioned
from everytoken.text_to_stream.errors import FileChanged, PreprocessingError, RecheckFailed
from everytoken.text_to_stream.parts import LENGTHS, TOKENS, MadePart, RangeRecord, SummedFile
from everytoken.text_to_stream.texts import TextRange, Texts, fail, read_texts
from everytoken.tokens import TokenizerError
from everytoken.tokens.encoding import (
    COUNTED,
    DocumentEncoder,
    Encoded,
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


@dataclass(frozen=True)
class RangeTask:
    """A byte range to encode.

    Attributes:
        number: of the range among all of the run.
        given: the range.
        stamp: of the file when the run began (`stamp_of`).
        whole: whether it is the file as a whole.
        seed: of the documents that the reference encodes again.
    """

    number: int
    given: TextRange
    stamp: Stamp
    whole: bool
    seed: int


def part_fingerprint(source: FileRange, encoding: Encoding) -> str:
    """Return the fingerprint of a part.

    ``proof`` is always None. Version 0.1.0 recorded it of the parts that the reference made: its streams count as made.
    """
    return Recipe(encode_file, {"source": source, "encoding": encoding, "proof": None}).fingerprint([])


@versioned("encode_file", 1, unrecorded=["tokenizer", "engine", "recheck"])
def encode_file(
    folder: Path, task: RangeTask, *, encoding: Encoding, tokenizer: Path, engine: str, recheck: Recheck
) -> tuple[MadePart, str | None]:
    """Encode the documents of a range, and take the SHA-256 of the file while it is read.

    Args:
        folder: where the part goes, under a temporary name.
        encoding: what decides the ids.
        tokenizer: path of the ``tokenizer.json``.
        engine: what encodes; it never changes a byte.
        recheck: which documents the reference encodes again.

    Returns:
        The part, and the SHA-256 of the file; None when it is read in more ranges than one.

    Raises:
        FileError: the file is damaged or changed, or one of its rows is no document that can be encoded.
        RecheckFailed: the engine gave other ids than the reference.
        TokenizerError: the tokenizer cannot be used.
    """
    encoder = _open(tokenizer, encoding, engine)
    given, name = task.given, f".{task.number}.{os.getpid()}.tmp"
    rechecker = Rechecker(encoder, recheck, task.seed, given.end - given.begin)
    dtype = stored_dtype(encoder.tokenizer.dtype)
    counts, first_lossy = dict.fromkeys(COUNTED, 0), None
    sha256 = hashlib.sha256() if task.whole else None
    files = {suffix: SummedFile(folder / f"{name}{suffix}") for suffix in (TOKENS, LENGTHS)}
    with files[TOKENS] as tokens, files[LENGTHS] as lengths:
        for batch in read_texts(given, sha256):
            encoded = _encode(encoder, rechecker, given, batch, encoding.max_tokens)
            if first_lossy is None and encoded.lost_bytes.any():
                first_lossy = batch.row + int(np.argmax(encoded.lost_bytes != 0))
            tokens.write(encoded.values.astype(dtype, copy=False).data)
            lengths.write((encoded.lengths + 1).astype("<i4", copy=False).data)
            for counted, column in document_counts(encoded, encoding.max_tokens).items():
                counts[counted] += int(column.sum(dtype=np.int64))
        try:
            rechecker.check()
        except EngineDiffers as error:
            _refuse(given, error)
    if stamp_of(given.path) != task.stamp:
        raise FileChanged(given.name)
    record = RangeRecord(
        bytes={suffix: file.bytes for suffix, file in files.items()},
        crc32={suffix: file.crc32 for suffix, file in files.items()},
        counts=counts_in(counts),
        first_lossy=first_lossy,
        tokenizer=_facts(encoder.tokenizer, encoding),
        rechecked=rechecker.documents,
    )
    return MadePart(folder, name, record), None if sha256 is None else sha256.hexdigest()


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
