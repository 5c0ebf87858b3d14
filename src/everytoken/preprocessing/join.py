r"""Encoded files become one Megatron stream: ``documents.bin`` and ``documents.idx``, one sequence a document.

Bytes are copied, never decoded. The index is written piece by piece from the lengths, in memory that does not grow with
the documents: 10^9 of them have an index of 20 GB. Its layout is that of `everytoken.tokens.megatron`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from everytoken.preprocessing import counts
from everytoken.preprocessing.encode_file import LENGTHS_FILE, TOKENS_FILE
from everytoken.preprocessing.errors import PreprocessingError
from everytoken.shards.artifacts import Artifact, Built
from everytoken.shards.recipe import versioned
from everytoken.tokens.counts import COUNTED
from everytoken.tokens.megatron import _CODES, _HEADER, _MAGIC, _VERSION

STREAM = "documents"  # .bin and .idx
_CHUNK = 1 << 20  # documents at a time


@versioned(1, unrecorded=["parts", "measured"])
def join_files(
    folder: Path,
    *,
    files: Sequence[tuple[str, Sequence[str]]],
    parts: Mapping[str, Artifact],
    measured: Mapping[str, Any],
) -> Built:
    """Write the stream of all files, one after the other.

    Statistics: the counts of `everytoken.preprocessing.counts` in ``total`` and ``by_file``, and the facts of the
    ``tokenizer``.

    Args:
        folder: where the stream goes.
        files: names of the input files, each with the fingerprints of its parts, in order.
        parts: made by `everytoken.preprocessing.encode_file`, by fingerprint.
        measured: what the run measured.

    Raises:
        PreprocessingError: there is no document, or the parts were made with libraries that differ.
    """
    order = [parts[fingerprint] for _, fingerprints in files for fingerprint in fingerprints]
    tokenizer = _tokenizer(order)
    dtype = np.dtype(tokenizer["dtype"])
    by_file = {name: counts.total(parts[fingerprint].statistics for fingerprint in prints) for name, prints in files}
    total = counts.total(by_file.values())
    if not total["documents"]:
        raise PreprocessingError(f"the {len(files)} files have no document; a stream needs one")
    with (folder / f"{STREAM}.bin").open("wb") as stream:
        for part in order:
            with part.path(TOKENS_FILE).open("rb") as tokens:
                shutil.copyfileobj(tokens, stream, 1 << 20)
    with (folder / f"{STREAM}.idx").open("wb") as index:
        _write_index(index, [part.path(LENGTHS_FILE) for part in order], total["documents"], dtype)
    rechecked = sum(part.measured["rechecked_documents"] for part in order)
    statistics = {"tokenizer": tokenizer, "total": total, "by_file": by_file}
    return Built(statistics, {**measured, "rechecked_documents": rechecked})


def _tokenizer(parts: Sequence[Artifact]) -> dict[str, Any]:
    """Return the facts of the tokenizer: all parts were made with a library that gave the same ids for the probe."""
    first: dict[str, Any] = parts[0].statistics["tokenizer"]
    for part in parts:
        if part.statistics["tokenizer"] != first:
            folders = f"{parts[0].folder} and {part.folder}"
            raise PreprocessingError(
                f"the tokenizers library gave other ids for the probe text in {folders}: it was changed between two "
                f"runs. Remove both folders, or all in {parts[0].folder and parts[0].folder.parent}, and run again."
            )
    return first


def _write_index(index: BinaryIO, lengths: Sequence[Path], documents: int, dtype: np.dtype[Any]) -> None:
    index.write(_HEADER.pack(_MAGIC, _VERSION, _CODES[dtype], documents, documents + 1))
    for path in lengths:
        with path.open("rb") as file:
            shutil.copyfileobj(file, index, 1 << 20)
    pointer = 0
    for sizes in _chunks(lengths):
        ends = pointer + np.cumsum(sizes, dtype="<i8") * dtype.itemsize
        index.write((ends - sizes.astype("<i8") * dtype.itemsize).data)
        pointer = int(ends[-1])
    for start in range(0, documents + 1, _CHUNK):
        index.write(np.arange(start, min(documents + 1, start + _CHUNK), dtype="<i8").data)


def _chunks(lengths: Sequence[Path]) -> Iterator[np.ndarray]:
    for path in lengths:
        with path.open("rb") as file:
            while len(sizes := np.frombuffer(file.read(4 * _CHUNK), "<i4")):
                yield sizes
