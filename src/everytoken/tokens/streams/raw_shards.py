"""Raw shards: all documents as flat little-endian ids in files of one size, so that every file sees every source.

``shard_00000.bin`` and following hold ``shard_size_tokens`` ids each, the last one fewer; ``manifest.json`` says what
is in them. A document is its content and EOS. Documents stay whole and follow each other without a gap, so one may
begin in a shard and end in the next.

Their order is that of `everytoken.tokens.streams.raw_shard_order`: in every shard every source has its share.

Each shard is written to a temporary name, fsynced, renamed, read again and checked against the SHA-256 of what was
written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypedDict

import numpy as np

from everytoken.shards import (
    IN_THIS_PROCESS,
    Artifact,
    Built,
    RangeMap,
    Shards,
    atomic_file,
    file_sha256,
    versioned,
    write_text,
)
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.raw_shard_order import ORDER_RULE, StrandCount, count_strands, interleaved
from everytoken.tokens.tokenizer import TokenizerIds

MANIFEST_FILE = "manifest.json"
RAW_SHARDS_FORMAT = "everytoken-raw-shards/1"
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class RawShardStatistics(TypedDict):
    """Statistics of raw shards; ``tokens`` with EOS."""

    shards: int
    tokens: int
    documents: int
    dtype: str
    eos_id: int
    tokenizer_sha256: str
    vocab_size: int
    by_source: dict[str, dict[str, int]]
    most_tokens_off_share: int


@versioned("write_raw_shards", 1, unrecorded=["shuffle_memory"], in_ranges=True)
def write_raw_shards(
    folder: Path,
    *,
    tokens: Sequence[Shards],
    tokenizer: Artifact,
    shard_size_tokens: int,
    dtype: Literal["uint16", "uint32"],
    seed: int,
    shuffle_memory: int,
    names: Sequence[str] | None = None,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write ``shard_00000.bin`` and following, and ``manifest.json``.

    Args:
        folder: where the files go; also holds temporary files (`everytoken.tokens.streams.raw_shard_order`).
        tokens: datasets of encoded documents (``source``, ``token_length``, ``tokens``).
        tokenizer: with which they were encoded.
        shard_size_tokens: tokens in each shard but the last.
        dtype: of the ids in the files.
        seed: of the order of documents in parts.
        shuffle_memory: bytes for rows in memory, in all processes together; positions come on top (about 40 bytes a
            document of the parts that are read), and a batch of each strand, at most 16 MiB, while it is merged.
        names: of the datasets, for the manifest; the rule of the order knows them by number. None: it names none.
        ranges: where parts are read and put in order; shards are written in this process.

    Returns:
        Statistics: shards, tokens, documents, dtype, eos_id, tokenizer_sha256, vocab_size, by_source (tokens,
            documents), and most_tokens_off_share: over shards and sources, by how many tokens a shard's count of a
            source differs at most from that source's share of the shard.

    Raises:
        StreamError: the vocabulary does not fit in ``dtype``; documents have no source, do not end in EOS, hold ids
            outside the vocabulary, or are not what their ``token_length`` says; or a shard that is read again is not
            what was written.
    """
    facts = tokenizer.statistics_as(TokenizerIds)
    vocab_size, eos_id = facts["vocab_size"], facts["eos_id"]
    if vocab_size > (most := 1 << 8 * DTYPES[dtype].itemsize):
        raise StreamError(
            f"the vocabulary has {vocab_size:,} ids, {dtype} holds {most:,}: pack as uint32 (packing.dtype)"
        )
    if names is not None and len(names) != len(tokens):
        raise StreamError(f"{list(names)} are {len(names)} names, and {len(tokens)} datasets are given: name each")
    if shard_size_tokens < 1:
        raise StreamError(f"shard_size_tokens is {shard_size_tokens}; expected at least 1 token")
    counts = count_strands(tokens)
    sources = [source for source, _ in counts]
    ranges = ranges.unless_small(sum(count.tokens for count in counts.values()) * DTYPES[dtype].itemsize)
    with (
        closing(interleaved(tokens, counts, seed, shuffle_memory, folder, ranges)) as documents,
        _ShardWriter(folder, shard_size_tokens, DTYPES[dtype], sources, eos_id) as writer,
    ):
        for ids, ends, strand_of in documents:
            if int(ids.max()) >= vocab_size:
                whose = sources[int(strand_of[np.searchsorted(ends, np.argmax(ids >= vocab_size), "right")])]
                raise StreamError(
                    f"a document of {whose!r} holds id {int(ids.max())}, outside the vocabulary of {vocab_size:,} ids: "
                    "encode the documents again, with this tokenizer"
                )
            if (wrong := ids[ends - 1] != eos_id).any():
                number = int(np.argmax(wrong))
                raise StreamError(
                    f"a document of {sources[int(strand_of[number])]!r} ends in id {int(ids[ends[number] - 1])}, "
                    f"expected EOS {eos_id}: encode the documents again, with this tokenizer"
                )
            writer.write(ids, ends, strand_of)
    by_source: dict[str, dict[str, int]] = {}
    for (source, _), count in counts.items():
        held = by_source.setdefault(source, {"tokens": 0, "documents": 0})
        held["tokens"] += count.tokens
        held["documents"] += count.documents
    manifest = {
        "format": RAW_SHARDS_FORMAT,
        "dtype": dtype,
        "byte_order": "little",
        "shard_size_tokens": shard_size_tokens,
        "tokens": sum(held["tokens"] for held in by_source.values()),
        "documents": sum(held["documents"] for held in by_source.values()),
        "eos_id": eos_id,
        "tokenizer_sha256": facts["sha256"],
        "vocab_size": vocab_size,
        "seed": seed,
        "order": ORDER_RULE,
        **({} if names is None else {"datasets": _described(names, tokens, counts)}),
        "by_source": by_source,
        "shards": writer.shards,
    }
    write_text(folder / MANIFEST_FILE, json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    statistics = RawShardStatistics(
        shards=len(writer.shards),
        tokens=sum(held["tokens"] for held in by_source.values()),
        documents=sum(held["documents"] for held in by_source.values()),
        dtype=dtype,
        eos_id=eos_id,
        tokenizer_sha256=facts["sha256"],
        vocab_size=vocab_size,
        by_source=by_source,
        most_tokens_off_share=most_tokens_off_share(manifest),
    )
    return Built(statistics, sha256={shard["name"]: shard["sha256"] for shard in writer.shards})


def _described(
    names: Sequence[str], tokens: Sequence[Shards], counts: Mapping[tuple[str, int], StrandCount]
) -> list[dict[str, Any]]:
    """Return what each dataset is, by the number that it has in the rule of the order."""
    return [
        {
            "dataset": number,
            "name": name,
            "digest": shards.root_digest,
            "documents": sum(count.documents for (_, of), count in counts.items() if of == number),
            "tokens": sum(count.tokens for (_, of), count in counts.items() if of == number),
        }
        for number, (name, shards) in enumerate(zip(names, tokens, strict=True))
    ]


def most_tokens_off_share(manifest: dict[str, Any]) -> int:
    """Return by how many tokens at most a shard's count of a source differs from the source's share of the shard."""
    total = manifest["tokens"]
    return max(
        (
            abs(shard["tokens_by_source"].get(source, 0) * total - shard["tokens"] * held["tokens"]) // total
            for shard in manifest["shards"]
            for source, held in manifest["by_source"].items()
        ),
        default=0,
    )


class _ShardWriter:
    """Cuts flat ids into files of one size, and counts what is in each. A context manager."""

    def __init__(self, folder: Path, size: int, dtype: np.dtype[Any], sources: Sequence[str], eos_id: int) -> None:
        self.shards: list[dict[str, Any]] = []
        self._folder, self._size, self._dtype, self._sources, self._eos_id = folder, size, dtype, sources, eos_id
        self._open: ExitStack | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, ids: np.ndarray, ends: np.ndarray, strand_of: np.ndarray) -> None:
        """Append documents: their ids, where each ends in them, and the number of the strand of each."""
        starts = np.concatenate([[0], ends[:-1]])
        done = 0
        while done < len(ids):
            file = self._begun()
            stop = min(len(ids), done + self._size - self._tokens)
            piece = ids[done:stop].astype(self._dtype, copy=False)
            file.write(piece.data)
            self._digest.update(piece.data)
            self._tokens += len(piece)
            self._eos += int(np.count_nonzero(piece == self._eos_id))
            first, last = int(np.searchsorted(ends, done, "right")), int(np.searchsorted(starts, stop, "left"))
            inside = np.minimum(ends[first:last], stop) - np.maximum(starts[first:last], done)
            np.add.at(self._by_strand, strand_of[first:last], inside)
            done = stop
            if self._tokens == self._size:
                self._finish()

    def _begun(self) -> BinaryIO:
        if self._file is None:
            self._open = ExitStack()
            temporary = self._open.enter_context(atomic_file(self._path()))
            self._file = self._open.enter_context(temporary.open("wb"))
            self._digest = hashlib.sha256()
            self._tokens = self._eos = 0
            self._by_strand = np.zeros(len(self._sources), np.int64)
        return self._file

    def _path(self) -> Path:
        return self._folder / shard_name(len(self.shards))

    def _finish(self) -> None:
        assert self._open is not None
        self._open.close()  # closes the file, then fsyncs and renames it
        self._open = self._file = None
        path, sha256 = self._path(), self._digest.hexdigest()
        _forget(path)
        if (found := file_sha256(path)) != sha256:
            raise StreamError(
                f"{path} has SHA-256 {found} when it is read again, {sha256} was written: the disk or its controller "
                "does not give back what it got. Use another disk."
            )
        by_source: dict[str, int] = {}
        for source, count in zip(self._sources, self._by_strand.tolist(), strict=True):
            by_source[source] = by_source.get(source, 0) + count
        self.shards.append(
            {
                "name": path.name,
                "tokens": self._tokens,
                "bytes": self._tokens * self._dtype.itemsize,
                "sha256": sha256,
                "eos_tokens": self._eos,
                "tokens_by_source": by_source,
            }
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._open is None:
            return
        if kind is None:
            self._finish()
        else:
            self._open.__exit__(kind, error, trace)


def shard_name(number: int) -> str:
    """Return the name of a shard: ``shard_00000.bin``."""
    return f"shard_{number:05d}.bin"


def _forget(path: Path) -> None:
    """Drop the file from the page cache where the system can, so that it is read from the disk."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
