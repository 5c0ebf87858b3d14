"""The canary stream: one document a window, of all conditions together in seeded order.

As in the annotated stream (`everytoken.tokens.streams`), window i holds document ``permutation[i]`` of all documents in
part and row order: content, EOS, then EOS as padding; ``token_lengths.npy`` and ``sidecar.parquet`` have row i for
window i. It must never be shuffled again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.seeds import numpy_generator
from everytoken.shards import Built, Rows, Shards, fsync_file, versioned, write_rows
from everytoken.tokens.errors import StreamError
from everytoken.tokens.megatron import WindowWriter
from everytoken.tokens.padding import padded
from everytoken.tokens.shuffle import destinations, in_order
from everytoken.tokens.streams import SIDECAR_FILE, TOKEN_LENGTHS_FILE

CANARY = "canary"
_PADDED_WINDOWS = 8_192  # at most this many windows are built at a time


@versioned(1, unrecorded=["shuffle_memory"])
def write_canary_stream(folder: Path, *, tokens: Shards, seq_length: int, seed: int, shuffle_memory: int) -> Built:
    """Write ``canary.bin``, ``canary.idx``, ``token_lengths.npy`` (int32) and ``sidecar.parquet``.

    The order is ``numpy_generator(seed).permutation(documents)``. The sidecar has every column of the documents but
    their tokens.

    Args:
        folder: where the files go; also holds temporary files, up to the size of the documents uncompressed.
        tokens: of `everytoken.tokens.canary.encode_canary_part`, effects before universes.
        seq_length: tokens that a window predicts; a window has one more.
        seed: see above.
        shuffle_memory: bytes for rows in memory; positions and lengths come on top (21 bytes a document).

    Returns:
        Statistics: windows, tokens (content), documents, padding_tokens (after the EOS), remainder_tokens (0), eos_id.

    Raises:
        StreamError: the parts differ in their columns, or a document does not fit in a window.
    """
    window, documents = seq_length + 1, tokens.rows
    schema = _schema(tokens)
    dtype = np.dtype(schema.field("tokens").type.value_type.to_pandas_dtype())
    sidecar = pa.schema([field for field in schema if field.name != "tokens"])
    position = destinations(numpy_generator(seed).permutation(documents))
    lengths = np.empty(documents, "<i4")

    def rows(ordered: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        written, eos_ids = 0, set()
        for batch in ordered:
            for start in range(0, batch.num_rows, _PADDED_WINDOWS):
                ids = batch.column("tokens").slice(start, _PADDED_WINDOWS)
                own = batch.column("token_length").slice(start, _PADDED_WINDOWS).to_numpy()
                windows, eos_id = padded(ids, own, window)
                writer.write(windows)
                eos_ids.add(eos_id)
                lengths[written : written + len(own)] = own
                written += len(own)
            yield batch.select(sidecar.names)
        if len(eos_ids) > 1:
            raise StreamError(f"documents end in the ids {sorted(eos_ids)}; all must end in one EOS")
        return {"eos_id": next(iter(eos_ids), None)}

    with (
        closing(in_order(_documents(tokens, window), position, memory=shuffle_memory, scratch=folder)) as ordered,
        WindowWriter(folder / CANARY, window, dtype) as writer,
    ):
        statistics = write_rows(Rows(sidecar, rows(ordered)), folder / SIDECAR_FILE).statistics
    np.save(folder / TOKEN_LENGTHS_FILE, lengths)
    fsync_file(folder / TOKEN_LENGTHS_FILE)
    content = int(lengths.sum(dtype=np.int64))
    return Built(
        {
            "windows": writer.windows,
            "tokens": content,
            "documents": documents,
            "padding_tokens": writer.windows * window - content - documents,
            "remainder_tokens": 0,
            "eos_id": statistics["eos_id"],
        }
    )


def _schema(tokens: Shards) -> pa.Schema:
    schemas = [part.schema.remove_metadata() for part in tokens]
    if not schemas:
        raise StreamError("there are no encoded canary documents; encode at least one file of them")
    for part, schema in zip(tokens, schemas, strict=True):
        if not {"tokens", "token_length"} <= set(schema.names) or not schema.equals(schemas[0]):
            raise StreamError(
                f"{part.name} has the columns {schema}; expected those of the first part, with token_length and tokens:"
                f" {schemas[0]}"
            )
    return schemas[0]


def _documents(tokens: Shards, window: int) -> Iterator[pa.RecordBatch]:
    """Yield all documents; each has ``token_length`` + 1 tokens, at most ``window``."""
    for part in tokens:
        row = 0
        for batch in part.batches():
            found = pc.fill_null(pc.list_value_length(batch.column("tokens")), 0).to_numpy(zero_copy_only=False)
            expected = pc.fill_null(batch.column("token_length"), -1).to_numpy(zero_copy_only=False) + 1
            wrong = (found != expected) | (found < 1) | (found > window)
            if wrong.any():
                i = int(np.argmax(wrong))
                raise StreamError(
                    f"{part.name} row {row + i}: {found[i]} tokens, expected token_length + 1 = {expected[i]}, at most "
                    f"{window} that fit in a window. Encode the documents again, with a cap that the windows can hold."
                )
            row += batch.num_rows
            yield batch
