"""Tokens of each document as they came, for a mixture whose budgets are in tokens of the job's tokenizer.

They are counted before the selection, so without a cap and without the list of excluded documents: a document that is
taken down later changes no selection. Where a text that spells a special token is an error, it is one when the document
is encoded, and only if the document was selected.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TypedDict

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.shards import Artifact, Part, Rows, versioned
from everytoken.tokens.encoding.encoded_parts import described_document, difference_named
from everytoken.tokens.encoding.encoder import DocumentEncoder, open_encoder
from everytoken.tokens.encoding.recheck import Recheck, Rechecker
from everytoken.tokens.engines import chosen_engine
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer

TOKEN_COUNTS = pa.schema([pa.field("tokens", pa.int64(), nullable=False)])


class CountedTokens(TypedDict):
    """Documents of a part, their tokens with EOS, and how many the reference encoded again."""

    documents: int
    tokens: int
    rechecked_documents: int


@versioned("count_part_tokens", 1, unrecorded=["certificate", "engine", "recheck"])
def count_part_tokens(
    part: Part, *, rules: EncodingRules, certificate: Artifact, engine: str, recheck: Recheck
) -> Rows:
    """Count the tokens of each document of a part: a column ``tokens``, content and EOS. Statistics: `CountedTokens`.

    Args:
        part: rows with ``text``.
        certificate: says which engines are proven equal.

    Raises:
        TokenizerError: the engine is not proven, or differs from the reference.
    """
    chosen = chosen_engine(
        certificate,
        engine,
        content=open_tokenizer(rules.place, rules.eos_token).content,
        special_tokens_in_text=rules.special_tokens_in_text,
    )
    return Rows(TOKEN_COUNTS, _counted(part, open_encoder(rules, engine=chosen), recheck))


def _counted(part: Part, encoder: DocumentEncoder, recheck: Recheck) -> Generator[pa.RecordBatch, None, CountedTokens]:
    rechecker = Rechecker(encoder, recheck, part.index, part.rows)
    row = tokens = 0
    for batch in part.batches(["id", *ADDRESS_COLUMNS, "text"]):
        texts = batch.column("text").to_pylist()
        encoded = encoder.encode(texts)
        with difference_named():
            rechecker.add(texts, encoded, None, partial(described_document, part, batch, row))
        counts = encoded.lengths.astype(np.int64) + 1
        yield pa.record_batch([pa.array(counts)], TOKEN_COUNTS)
        row, tokens = row + batch.num_rows, tokens + int(counts.sum())
    with difference_named():
        rechecker.check()
    return CountedTokens(documents=row, tokens=tokens, rechecked_documents=rechecker.documents)
