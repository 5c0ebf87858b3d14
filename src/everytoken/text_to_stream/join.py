r"""Parts become one Megatron stream: ``documents.bin`` and ``documents.idx``, one sequence a document.

The tokens are joined while parts are still being made. The index is written piece by piece from the lengths, in memory
that does not grow with the documents: 10^9 of them have an index of 20 GB. Its layout is that of
`everytoken.tokens.streams.megatron`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypedDict

import numpy as np

from everytoken.shards import Built, HashedFile, link_file, versioned
from everytoken.text_to_stream.errors import PreprocessingError
from everytoken.text_to_stream.parts import LENGTHS, RECORD, TOKENS, MadePart
from everytoken.tokens.encoding import EncodedCounts, sum_counts
from everytoken.tokens.streams import index_header
from everytoken.tokens.tokenizer import TokenizerStatistics

STREAM = "documents"  # .bin and .idx
_CHUNK = 1 << 20  # documents, or bytes, at a time


@dataclass(frozen=True)
class JoinedTokens:
    """The tokens of all parts in one file, and its SHA-256."""

    path: Path
    sha256: str


class Joiner:
    """Joins the tokens of parts in a thread, in order, while others are made: each byte is read and written once.

    A context manager.
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # of a run that was killed: a stream may be the same file
        self._path, self._file = path, HashedFile(path)
        self._pool, self._done = ThreadPoolExecutor(1), list[Future[None]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()

    def add(self, part: MadePart) -> None:
        """Append a part after those that were added before."""
        self._done.append(self._pool.submit(self._append, part))

    def _append(self, part: MadePart) -> None:
        for block in part.blocks(TOKENS):
            self._file.write(block)

    def finish(self) -> JoinedTokens:
        """Wait until all parts are joined.

        Raises:
            DamagedStore: a part is not what was written.
        """
        for done in self._done:
            done.result()
        self._file.close()
        return JoinedTokens(self._path, self._file.sha256.hexdigest())


class JoinedFilesStatistics(TypedDict):
    """Statistics of `join_files`."""

    tokenizer: TokenizerStatistics
    total: EncodedCounts
    by_file: dict[str, EncodedCounts]


@versioned("join_files", 1, unrecorded=["parts", "joined", "measured"])
def join_files(
    folder: Path,
    *,
    files: Sequence[tuple[str, Sequence[str]]],
    parts: Mapping[str, MadePart],
    joined: JoinedTokens,
    measured: Mapping[str, Any],
) -> Built:
    """Write the stream of all files, one after the other.

    Args:
        folder: where the stream goes.
        files: names of the input files, each with the fingerprints of its parts, in order.
        parts: what was made of them, by fingerprint.
        joined: their tokens in this order.
        measured: what the run measured.

    Raises:
        PreprocessingError: there is no document, or the parts were made with libraries that differ.
        DamagedStore: a part is not what was written.
    """
    order = [parts[fingerprint] for _, fingerprints in files for fingerprint in fingerprints]
    tokenizer = _tokenizer(order)
    by_file = {name: sum_counts(parts[one].record["counts"] for one in fingerprints) for name, fingerprints in files}
    total = sum_counts(part.record["counts"] for part in order)
    if not total["documents"]:
        raise PreprocessingError(f"the {len(files)} files have no document; a stream needs one")
    link_file(joined.path, folder / f"{STREAM}.bin")
    with HashedFile(folder / f"{STREAM}.idx") as index:
        write_index(index, order, total["documents"], np.dtype(tokenizer["dtype"]))
    statistics = JoinedFilesStatistics(tokenizer=tokenizer, total=total, by_file=by_file)
    sha256 = {f"{STREAM}.bin": joined.sha256, f"{STREAM}.idx": index.sha256.hexdigest()}
    return Built(
        statistics, {**measured, "rechecked_documents": sum(part.record["rechecked"] for part in order)}, sha256
    )


def write_index(index: BinaryIO | RawIOBase, parts: Sequence[MadePart], documents: int, dtype: np.dtype[Any]) -> None:
    """Write a Megatron index of one sequence a document.

    Args:
        index: the open file.
        parts: have the lengths, in order.
        documents: how many there are.
        dtype: of the stream.
    """
    index.write(index_header(documents, dtype))
    for part in parts:
        for block in part.blocks(LENGTHS):
            index.write(block)
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
        if part.record["tokenizer"] != first.record["tokenizer"]:
            raise PreprocessingError(
                f"the tokenizers library gave other ids for its probe text in {first.path(RECORD)} and in "
                f"{part.path(RECORD)}: it "
                f"was changed between two runs. Remove {first.folder} and run the command again."
            )
    return first.record["tokenizer"]


def _lengths(parts: Sequence[MadePart]) -> Iterator[np.ndarray]:
    for part in parts:
        with part.path(LENGTHS).open("rb") as file:
            while len(sizes := np.frombuffer(file.read(4 * _CHUNK), "<i4")):
                yield sizes
