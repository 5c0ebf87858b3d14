r"""Encoded files become one Megatron stream: ``documents.bin`` and ``documents.idx``, one sequence a document.

Bytes are copied and compared with their SHA-256, never decoded. The index is written piece by piece from the lengths,
in memory that does not grow with the documents: 10^9 of them have an index of 20 GB. Its layout is that of
`everytoken.tokens.streams.megatron`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np

from everytoken.shards import Built, versioned
from everytoken.text_to_stream.encode_file import LENGTHS_FILE, TOKENS_FILE
from everytoken.text_to_stream.errors import PreprocessingError
from everytoken.text_to_stream.parts import MadePart, MadeParts
from everytoken.tokens.encoding import EncodedCounts, sum_counts
from everytoken.tokens.streams import index_header
from everytoken.tokens.tokenizer import TokenizerStatistics

STREAM = "documents"  # .bin and .idx
_CHUNK = 1 << 20  # documents at a time


class JoinedFilesStatistics(TypedDict):
    """Statistics of `join_files`."""

    tokenizer: TokenizerStatistics
    total: EncodedCounts
    by_file: dict[str, EncodedCounts]


@versioned("join_files", 1, unrecorded=["parts", "measured"])
def join_files(
    folder: Path, *, files: Sequence[tuple[str, Sequence[str]]], parts: MadeParts, measured: Mapping[str, Any]
) -> Built:
    """Write the stream of all files, one after the other.

    Args:
        folder: where the stream goes.
        files: names of the input files, each with the fingerprints of its parts, in order.
        parts: what `everytoken.text_to_stream.encode_file` made of them.
        measured: what the run measured.

    Raises:
        PreprocessingError: there is no document, or the parts were made with libraries that differ.
        DamagedStore: a part is not what was written.
    """
    made = parts.by_fingerprint
    order = [made[fingerprint] for _, fingerprints in files for fingerprint in fingerprints]
    tokenizer = _tokenizer(order)
    dtype = np.dtype(tokenizer["dtype"])
    by_file = {name: sum_counts(made[one].counts for one in fingerprints) for name, fingerprints in files}
    total = sum_counts(part.counts for part in order)
    if not total["documents"]:
        raise PreprocessingError(f"the {len(files)} files have no document; a stream needs one")
    with (folder / f"{STREAM}.bin").open("wb") as stream:
        for part in order:
            part.copy(TOKENS_FILE, stream)
    with (folder / f"{STREAM}.idx").open("wb") as index:
        write_index(index, order, total["documents"], dtype)
    statistics = JoinedFilesStatistics(tokenizer=tokenizer, total=total, by_file=by_file)
    return Built(statistics, {**measured, "rechecked_documents": sum(part.rechecked for part in order)})


def write_index(index: BinaryIO, parts: Sequence[MadePart], documents: int, dtype: np.dtype[Any]) -> None:
    """Write a Megatron index of one sequence a document.

    Args:
        index: the open file.
        parts: have the lengths, in order.
        documents: how many there are.
        dtype: of the stream.
    """
    index.write(index_header(documents, dtype))
    for part in parts:
        part.copy(LENGTHS_FILE, index)
    pointer = 0
    for sizes in _lengths(parts):
        ends = pointer + np.cumsum(sizes, dtype="<i8") * dtype.itemsize
        index.write((ends - sizes.astype("<i8") * dtype.itemsize).data)
        pointer = int(ends[-1])
    for start in range(0, documents + 1, _CHUNK):
        index.write(np.arange(start, min(documents + 1, start + _CHUNK), dtype="<i8").data)


def _tokenizer(parts: Sequence[MadePart]) -> TokenizerStatistics:
    """Return the facts of the tokenizer: all parts were made with a library that gave the same ids for the probe."""
    first = parts[0]
    for part in parts:
        if part.tokenizer != first.tokenizer:
            raise PreprocessingError(
                f"the tokenizers library gave other ids for its probe text in {first.folder} and in {part.folder}: it "
                f"was changed between two runs. Remove {first.folder.parent} and run the command again."
            )
    return first.tokenizer


def _lengths(parts: Sequence[MadePart]) -> Iterator[np.ndarray]:
    for part in parts:
        with (part.folder / LENGTHS_FILE).open("rb") as file:
            while len(sizes := np.frombuffer(file.read(4 * _CHUNK), "<i4")):
                yield sizes
