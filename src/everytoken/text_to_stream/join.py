r"""Encoded files become one Megatron stream: ``documents.bin`` and ``documents.idx``, one sequence a document.

Each byte is read once: what is written is hashed on the way, and in another thread compared with the SHA-256 of its
part. The index is written piece by piece from the lengths, in memory that does not grow with the documents: 10^9 of
them have an index of 20 GB. Its layout is that of `everytoken.tokens.streams.megatron`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np

from everytoken.shards import Artifact, ArtifactStore, Built, DamagedStore, HashedFile, versioned
from everytoken.text_to_stream.encode_file import LENGTHS_FILE, TOKENS_FILE, FileStatistics
from everytoken.text_to_stream.errors import PreprocessingError
from everytoken.tokens.encoding import EncodedCounts, counts_in, sum_counts
from everytoken.tokens.streams import index_header
from everytoken.tokens.tokenizer import TokenizerStatistics

STREAM = "documents"  # .bin and .idx
_CHUNK = 1 << 20  # documents, or bytes, at a time


@dataclass(frozen=True)
class MadePart:
    """What the parent needs of a part that a worker made, and no more: a run may have 10^5 of them.

    Attributes:
        folder: where it is.
        sha256: of its files, by name.
        counts: of its documents.
        first_lossy: see `FileStatistics`.
        tokenizer: facts of the tokenizer.
        rechecked: documents that the reference encoded again.
    """

    folder: Path
    sha256: Mapping[str, str]
    counts: EncodedCounts
    first_lossy: int | None
    tokenizer: TokenizerStatistics
    rechecked: int


@dataclass(frozen=True)
class MakePart:
    """Makes one planned part in the folder ``working`` unless it is there: what a worker runs."""

    working: Path

    def __call__(self, task: tuple[str, Artifact]) -> MadePart:
        """Make a part, given with its fingerprint."""
        fingerprint, planned = task
        made = ArtifactStore(self.working / fingerprint).save(planned)
        statistics = made.statistics_as(FileStatistics)
        return MadePart(
            folder=self.working / fingerprint,
            sha256={name: entry["sha256"] for name, entry in made.ledger["files"].items()},
            counts=counts_in(statistics),
            first_lossy=statistics["first_lossy"],
            tokenizer=statistics["tokenizer"],
            rechecked=made.measured["rechecked_documents"],
        )


class JoinedFilesStatistics(TypedDict):
    """Statistics of `join_files`."""

    tokenizer: TokenizerStatistics
    total: EncodedCounts
    by_file: dict[str, EncodedCounts]


@versioned("join_files", 1, unrecorded=["parts", "measured"])
def join_files(
    folder: Path,
    *,
    files: Sequence[tuple[str, Sequence[str]]],
    parts: Mapping[str, MadePart],
    measured: Mapping[str, Any],
) -> Built:
    """Write the stream of all files, one after the other.

    Args:
        folder: where the stream goes.
        files: names of the input files, each with the fingerprints of its parts, in order.
        parts: what `everytoken.text_to_stream.encode_file` made of them, by fingerprint; no artifacts, as a store would
            lock and read them all before it joins them.
        measured: what the run measured.

    Raises:
        PreprocessingError: there is no document, or the parts were made with libraries that differ.
        DamagedStore: a part is not what was written.
    """
    order = [parts[fingerprint] for _, fingerprints in files for fingerprint in fingerprints]
    tokenizer = _tokenizer(order)
    by_file = {name: sum_counts(parts[one].counts for one in fingerprints) for name, fingerprints in files}
    total = sum_counts(part.counts for part in order)
    if not total["documents"]:
        raise PreprocessingError(f"the {len(files)} files have no document; a stream needs one")
    with HashedFile(folder / f"{STREAM}.bin") as stream, HashedFile(folder / f"{STREAM}.idx") as index:
        _copy(order, TOKENS_FILE, stream)
        write_index(index, order, total["documents"], np.dtype(tokenizer["dtype"]))
    statistics = JoinedFilesStatistics(tokenizer=tokenizer, total=total, by_file=by_file)
    sha256 = {f"{STREAM}.bin": stream.sha256.hexdigest(), f"{STREAM}.idx": index.sha256.hexdigest()}
    return Built(statistics, {**measured, "rechecked_documents": sum(part.rechecked for part in order)}, sha256)


def write_index(index: BinaryIO | RawIOBase, parts: Sequence[MadePart], documents: int, dtype: np.dtype[Any]) -> None:
    """Write a Megatron index of one sequence a document.

    Args:
        index: the open file.
        parts: have the lengths, in order.
        documents: how many there are.
        dtype: of the stream.
    """
    index.write(index_header(documents, dtype))
    _copy(parts, LENGTHS_FILE, index)
    pointer = 0
    for sizes in _lengths(parts):
        ends = pointer + np.cumsum(sizes, dtype="<i8") * dtype.itemsize
        index.write((ends - sizes.astype("<i8") * dtype.itemsize).data)
        pointer = int(ends[-1])
    for start in range(0, documents + 1, _CHUNK):
        index.write(np.arange(start, min(documents + 1, start + _CHUNK), dtype="<i8").data)


def _copy(parts: Sequence[MadePart], name: str, target: BinaryIO | RawIOBase) -> None:
    """Append a file of each part to ``target``; each is checked, in a thread, while the same bytes are written."""
    with ThreadPoolExecutor(1) as checking:  # hashing releases the GIL
        for part in parts:
            digest = hashlib.sha256()
            checked = checking.submit(digest.update, b"")
            with (part.folder / name).open("rb", buffering=0) as file:
                while block := file.read(_CHUNK):
                    checked.result()
                    checked = checking.submit(digest.update, block)
                    target.write(block)
            checked.result()
            if digest.hexdigest() != part.sha256[name]:
                raise DamagedStore(
                    f"{part.folder / name} is not the file that was written (its SHA-256 differs). Run the command "
                    "again: damaged parts are rebuilt."
                )


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
