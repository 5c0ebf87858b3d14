"""Tokenization of one part: every column of the input, and ``token_length`` and ``tokens`` beside it.

``tokens`` is content and EOS, at most ``max_tokens``; ``token_length`` counts content alone. The result is a
function of each text alone; batches only set the speed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.shards import Artifact, Part, Rows, versioned
from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer import DocumentTokenizer, Encoded, open_tokenizer

Counts = dict[str, int]

_COUNTED = (
    "documents",
    "tokens",
    "eos",
    "truncated_documents",
    "cut_tokens",
    "empty_documents",
    "lossy_documents",
    "lossy_bytes",
    "normalized_documents",
    "eos_in_text",
    "utf8_bytes",
)


@versioned(1)
def encode_part(part: Part, *, tokenizer: Artifact, eos_token: str, max_tokens: int, max_lossy_share: float) -> Rows:
    """Encode the ``text`` of a part.

    Statistics, for all documents and under ``by_source``: documents, tokens (content after the cut), eos (one
    a document), truncated_documents, cut_tokens (content tokens beyond the cap), empty_documents (no content
    token), lossy_documents and lossy_bytes (see `everytoken.tokens.tokenizer`), normalized_documents,
    eos_in_text, utf8_bytes.

    Args:
        part: rows with ``text`` and ``source``.
        tokenizer: the tokenizer artifact; a process loads it once.
        eos_token: the token that ends a document.
        max_tokens: cap of a document, EOS included.
        max_lossy_share: the part fails when a greater share of its documents loses text.

    Raises:
        TokenizerError: the input lacks a column or is encoded already, has a null text or source, or loses
            too much.
    """
    opened = open_tokenizer(tokenizer, eos_token)
    names = part.schema.names
    if not {"text", "source"} <= set(names) or {"token_length", "tokens"} & set(names):
        raise TokenizerError(f"{part.name} has the columns {names}; expected text and source, and no token columns yet")
    schema = part.schema.append(pa.field("token_length", pa.int32()))
    schema = schema.append(pa.field("tokens", pa.list_(pa.from_numpy_dtype(opened.dtype))))
    return Rows(schema, _encoded(part, schema, opened, max_tokens, max_lossy_share))


def _encoded(
    part: Part, schema: pa.Schema, tokenizer: DocumentTokenizer, max_tokens: int, max_lossy_share: float
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    by_source: dict[str, Counts] = {}
    row, first_lossy = 0, None
    for batch in part.batches():
        for name in ("text", "source"):
            if batch.column(name).null_count:
                null = row + int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
                raise TokenizerError(f"{part.name} row {null}: {name} is null; a document needs one")
        encoded = tokenizer.encode(batch.column("text").to_pylist(), max_tokens)
        _count(by_source, batch.column("source"), encoded)
        if first_lossy is None and encoded.lost_bytes.any():
            first_lossy = row + int(np.argmax(encoded.lost_bytes != 0))
        tokens = pa.ListArray.from_arrays(pa.array(encoded.offsets.astype(np.int32)), pa.array(encoded.values))
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(encoded.lengths), tokens], schema=schema)
        row += batch.num_rows
    total = {name: sum(counts[name] for counts in by_source.values()) for name in _COUNTED}
    if total["lossy_documents"] > max_lossy_share * total["documents"]:
        raise TokenizerError(
            f"{part.name}: {total['lossy_documents']} of {total['documents']} documents lose text "
            f"({total['lossy_bytes']} bytes; the first is row {first_lossy}), allowed is a share of "
            f"{max_lossy_share}. The vocabulary has no symbol for the bytes {list(tokenizer.missing_bytes)}. "
            f"Use a tokenizer that has all bytes, or raise max_lossy_share if the loss is acceptable."
        )
    return {**total, "by_source": dict(sorted(by_source.items()))}


def _count(by_source: dict[str, Counts], source: pa.Array, encoded: Encoded) -> None:
    coded = source.dictionary_encode()
    codes = coded.indices.to_numpy()
    one = np.ones(len(codes), np.int64)
    cut = encoded.full_lengths - encoded.lengths
    columns = (
        one,
        encoded.lengths,
        one,
        cut > 0,
        cut,
        encoded.lengths == 0,
        encoded.lost_bytes != 0,
        np.abs(encoded.lost_bytes),
        encoded.normalized,
        encoded.eos_in_text,
        encoded.text_bytes,
    )
    for name, column in zip(_COUNTED, columns, strict=True):
        sums = np.zeros(len(coded.dictionary), np.int64)
        np.add.at(sums, codes, column.astype(np.int64))
        for key, value in zip(coded.dictionary.to_pylist(), sums.tolist(), strict=True):
            counts = by_source.setdefault(key, dict.fromkeys(_COUNTED, 0))
            counts[name] += value
