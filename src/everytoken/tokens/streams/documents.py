"""Encoded documents as the streams take them: every id and every length of a part is checked where it is read."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from everytoken.outofcore import destinations, in_order
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Part, Shards
from everytoken.tokens.errors import StreamError
from everytoken.tokens.tokenizer import TokenizerIdentity, token_dtype


class WindowCounts(TypedDict):
    """What the statistics of every stream of windows have."""

    windows: int
    tokens: int
    tokenizer: TokenizerIdentity


@dataclass(frozen=True)
class TokenizerFacts:
    """What a stream records of the tokenizer that made its ids.

    Attributes:
        sha256: of the ``tokenizer.json``.
        vocab_size: every id is below.
        eos_token: ends every document.
    """

    sha256: str
    vocab_size: int
    eos_token: str
    eos_id: int

    @property
    def recorded(self) -> TokenizerIdentity:
        """What the ledger of a stream says."""
        return {
            "sha256": self.sha256,
            "vocab_size": self.vocab_size,
            "eos_token": self.eos_token,
            "eos_id": self.eos_id,
        }

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 when every id fits, else uint32."""
        return token_dtype(self.vocab_size)


def tokenizer_facts(tokenizer: Artifact) -> TokenizerFacts:
    """Return the facts in a tokenizer's ledger."""
    said = tokenizer.statistics_as(TokenizerIdentity)
    return TokenizerFacts(said["sha256"], said["vocab_size"], said["eos_token"], said["eos_id"])


def require_encoded(tokens: Shards, facts: TokenizerFacts, columns: Sequence[str] = ()) -> None:
    """Check the columns of every part.

    Raises:
        StreamError: there is no part, a part lacks a column, or its ids have not the type of the vocabulary.
    """
    if not len(tokens):
        raise StreamError("there are no parts of encoded documents; expected at least one")
    for part in tokens:
        schema = part.schema
        if not {"tokens", "token_length"} <= set(schema.names):
            raise StreamError(f"{part.name} has the columns {schema.names}; expected encoded documents with tokens")
        if missing := [name for name in columns if name not in schema.names]:
            raise StreamError(f"{part.name} has no column {missing}; the stream needs {list(columns)}")
        kind = schema.field("tokens").type.value_type
        if kind != pa.from_numpy_dtype(facts.dtype):
            raise StreamError(
                f"{part.name} has tokens of the type {kind}; a vocabulary of {facts.vocab_size} has ids of the type "
                f"{facts.dtype}. Encode the documents with the tokenizer that the stream is made for."
            )


def document_sizes(part: Part) -> np.ndarray:
    """Return content and EOS tokens of each document, int64 (rows,), from the lengths alone.

    Raises:
        StreamError: a length is null or negative.
    """
    import pyarrow.compute as pc  # it costs 0.07 s, and `everytoken trace` needs none of it

    lengths = [pc.fill_null(batch.column(0), -1).to_numpy() for batch in part.batches(["token_length"])]
    sizes = np.concatenate([np.empty(0, np.int64), *lengths]).astype(np.int64) + 1
    if len(sizes) and sizes.min() < 1:
        row = int(np.argmin(sizes))
        raise StreamError(f"{part.name} row {row}: token_length is null or negative. Encode the documents again.")
    return sizes


def checked_batches(
    part: Part, facts: TokenizerFacts, columns: Sequence[str] = (), most: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns``, ``token_length`` and ``tokens`` of a part.

    Every document has ``token_length`` ids and EOS, all below the vocabulary's size.

    Args:
        facts: the tokenizer they were made with.
        most: tokens that a document may have, EOS included.

    Raises:
        StreamError: names part, row and what was found.
    """
    names, row = list(dict.fromkeys([*columns, "token_length", "tokens"])), 0
    for batch in part.batches(names):
        batch = batch.select(names)
        if batch.num_rows:
            _check(part.name, row, batch.column("tokens"), batch.column("token_length"), facts, most)
        row += batch.num_rows
        yield batch


def _check(name: str, row: int, ids: pa.ListArray, lengths: pa.Array, facts: TokenizerFacts, most: int | None) -> None:
    """Check documents that begin at a row of the part ``name``."""
    again = f"Encode the documents again, with the tokenizer {facts.sha256[:12]} that the stream is made for"
    flat = ids.flatten()
    if ids.null_count or lengths.null_count or flat.null_count:
        raise StreamError(f"{name} row {row} or later: tokens or token_length is null. {again}.")
    offsets = ids.offsets.to_numpy().astype(np.int64)
    ends = offsets[1:] - offsets[0]
    found, expected = np.diff(offsets), lengths.to_numpy().astype(np.int64) + 1
    wrong = (found != expected) | (found < 1)
    if most is not None:
        wrong |= found > most
    if wrong.any():
        i = int(np.argmax(wrong))
        limit = f", at most {most} that fit in a window" if most else ""
        raise StreamError(
            f"{name} row {row + i}: {found[i]} tokens, expected token_length + 1 = {expected[i]}{limit}. "
            f"{again}, and with a cap that the windows can hold."
        )
    values = flat.to_numpy()
    if int(values.max()) >= facts.vocab_size:
        at = int(np.argmax(values >= facts.vocab_size))
        i = int(np.searchsorted(ends, at, side="right"))
        raise StreamError(
            f"{name} row {row + i}: token id {values[at]}, expected ids below the vocabulary's size "
            f"{facts.vocab_size}. {again}."
        )
    last = values[ends - 1]
    if (last != facts.eos_id).any():
        i = int(np.argmax(last != facts.eos_id))
        raise StreamError(
            f"{name} row {row + i} ends in the id {last[i]}; all documents must end in one EOS, "
            f"{facts.eos_token!r} with the id {facts.eos_id}. {again}."
        )


def shuffled_tokens(
    part: Part, facts: TokenizerFacts, *, seed: int, memory: int, scratch: Path
) -> Generator[np.ndarray, None, None]:
    """Yield the tokens of a part's documents, in the order ``numpy_generator(seed, index).permutation(rows)``, flat."""
    permutation, sizes = numpy_generator(seed, part.index).permutation(part.rows), document_sizes(part)
    documents = (batch.column("tokens") for batch in checked_batches(part, facts))
    yield from reordered_tokens(documents, sizes, permutation, facts.dtype, memory=memory, scratch=scratch)


def reordered_tokens(
    documents: Iterable[pa.ListArray],
    sizes: np.ndarray,
    permutation: np.ndarray,
    dtype: np.dtype[Any],
    *,
    memory: int,
    scratch: Path,
) -> Generator[np.ndarray, None, None]:
    """Yield the tokens of documents, in an order that is given, flat.

    Lengths are known before ids are read: when all ids fit into memory, each document goes straight to its place.

    Args:
        documents: lists of ids, none of them null.
        sizes: tokens of each document, int64 (n,).
        permutation: the document at each place, (n,).
        dtype: of the ids.
        memory: bytes for them.
        scratch: an existing folder for temporary files.
    """
    if sizes.sum() * dtype.itemsize > memory:
        position, batches = destinations(permutation), map(_as_bytes, documents)
        with closing(in_order(batches, position, memory=memory, scratch=scratch)) as ordered:
            for batch in ordered:
                yield _flat(batch.column(0), dtype)
        return
    ends = np.empty(len(sizes), np.int64)
    ends[permutation] = np.cumsum(sizes[permutation])
    shuffled, row = np.empty(sizes.sum(), dtype), 0
    for ids in documents:
        flat, end = ids.flatten().to_numpy(), 0
        here = slice(row, row + len(ids))
        for size, place in zip(sizes[here].tolist(), ends[here].tolist(), strict=True):
            end += size
            shuffled[place - size : place] = flat[end - size : end]
        row += len(ids)
    yield shuffled


# Arrow orders byte strings about eight times as fast as lists.
def _as_bytes(ids: pa.ListArray) -> pa.RecordBatch:
    """Return documents as byte strings, without a copy of their ids."""
    offsets, flat = ids.offsets.to_numpy().astype(np.int64), ids.flatten().to_numpy()
    starts = pa.py_buffer((offsets - offsets[0]) * flat.itemsize)
    column = pa.Array.from_buffers(pa.large_binary(), len(ids), [None, starts, pa.py_buffer(flat)])
    return pa.RecordBatch.from_arrays([column], ["document"])


def _flat(documents: pa.LargeBinaryArray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the ids of documents that are byte strings, one after the other, a view."""
    _, starts, data = documents.buffers()
    ends = np.frombuffer(starts, np.int64)[documents.offset : documents.offset + len(documents) + 1]
    return np.frombuffer(data, dtype, int(ends[-1] - ends[0]) // dtype.itemsize, int(ends[0]))
