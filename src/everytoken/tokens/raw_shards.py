"""Raw shards: all documents as flat little-endian ids in files of one size, so that every file sees every source.

``shard_00000.bin`` and following hold ``shard_size_tokens`` ids each, the last one fewer; ``manifest.json`` says what
is in them. A document is its content and EOS. Documents stay whole and follow each other without a gap, so one may
begin in a shard and end in the next.

Order. A *strand* is the documents of one source of one dataset (annotated, unannotated): parts in plan order, and in a
part in the order of a seeded permutation of the part. A document that begins at token c of the T tokens of its strand
has the *place* ``floor(2**60 * c / T)``; all documents are written by (place, source, dataset). The next document thus
always comes from the strand of which the smallest share is written. Wherever the flow is cut, a strand is never more
than one document ahead of the share that all have reached, and never behind it: that is the round robin in proportion.

Memory is bounded by ``shuffle_memory``: a strand is shuffled part by part (`everytoken.tokens.shuffle`) and merged
batch by batch. A part is read once for each source that it holds.

Each shard is written to a temporary name, fsynced, renamed, read again and checked against the SHA-256 of what was
written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Part, Shards, atomic_file, file_sha256, versioned, write_text
from everytoken.tokens.errors import StreamError
from everytoken.tokens.shuffle import destinations, in_order

MANIFEST_FILE = "manifest.json"
FORMAT = "everytoken-raw-shards/1"
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
ORDER = (
    "Documents of one source of one dataset: parts in plan order, in a part by "
    "numpy.random.default_rng((seed, dataset, part)).permutation(rows). One that begins at token c of their T tokens "
    "has the place floor(2**60 * c / T); all documents are in the order of (place, source, dataset)."
)
_MOST_TOKENS = 1 << 43  # of one strand: `places` shifts by 20 bits in int64


def places(starts: np.ndarray, total: int) -> np.ndarray:
    """Return ``floor(2**60 * start / total)`` of each start, int64 (n,), 0 <= start <= total < 2**43."""
    digits = np.zeros(len(starts), np.int64)
    rest = np.asarray(starts, np.int64)
    for _ in range(3):  # 20 binary digits at a time
        digits = (digits << 20) + (rest << 20) // total
        rest = (rest << 20) % total
    return digits


@versioned(1, unrecorded=["shuffle_memory"])
def write_raw_shards(
    folder: Path,
    *,
    tokens: Sequence[Shards],
    tokenizer: Artifact,
    shard_size_tokens: int,
    dtype: Literal["uint16", "uint32"],
    seed: int,
    shuffle_memory: int,
) -> Built:
    """Write ``shard_00000.bin`` and following, and ``manifest.json``.

    Args:
        folder: where the files go; also holds temporary files, up to the size of one part of each source.
        tokens: datasets of encoded documents (``source``, ``token_length``, ``tokens``).
        tokenizer: with which they were encoded.
        shard_size_tokens: tokens in each shard but the last.
        dtype: of the ids in the files.
        seed: of the order of documents in parts.
        shuffle_memory: bytes for rows in memory; positions come on top (about 40 bytes a document of a part, for each
            source).

    Returns:
        Statistics: shards, tokens, documents, dtype, eos_id, tokenizer_sha256, vocab_size, by_source (tokens,
            documents), and most_tokens_off_share: over shards and sources, by how many tokens a shard's count of a
            source differs at most from that source's share of the shard.

    Raises:
        StreamError: the vocabulary does not fit in ``dtype``; documents have no source, do not end in EOS, hold ids
            outside the vocabulary, or are not what their ``token_length`` says; or a shard that is read again is not
            what was written.
    """
    facts = tokenizer.statistics
    vocab_size, eos_id = int(facts["vocab_size"]), int(facts["eos_id"])
    if vocab_size > (most := 1 << 8 * DTYPES[dtype].itemsize):
        raise StreamError(
            f"the vocabulary has {vocab_size:,} ids, {dtype} holds {most:,}: pack as uint32 (packing.dtype)"
        )
    if shard_size_tokens < 1:
        raise StreamError(f"shard_size_tokens is {shard_size_tokens}; expected at least 1 token")
    counts = _count(tokens)
    memory = max(1, shuffle_memory // max(1, len(counts)))
    with ExitStack() as stack:
        strands = [
            _Strand(
                stack.enter_context(closing(_documents(tokens[dataset], dataset, source, count, seed, memory, folder))),
                count.tokens,
            )
            for (source, dataset), count in counts.items()
        ]
        sources = [source for source, _ in counts]
        writer = stack.enter_context(_ShardWriter(folder, shard_size_tokens, DTYPES[dtype], sources, eos_id))
        for documents, strand_of in _interleaved(strands):
            ids, ends = _flat(documents)
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
        "format": FORMAT,
        "dtype": dtype,
        "byte_order": "little",
        "shard_size_tokens": shard_size_tokens,
        "tokens": sum(held["tokens"] for held in by_source.values()),
        "documents": sum(held["documents"] for held in by_source.values()),
        "eos_id": eos_id,
        "tokenizer_sha256": facts["sha256"],
        "vocab_size": vocab_size,
        "seed": seed,
        "order": ORDER,
        "by_source": by_source,
        "shards": writer.shards,
    }
    write_text(folder / MANIFEST_FILE, json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    kept = ("tokens", "documents", "dtype", "eos_id", "tokenizer_sha256", "vocab_size", "by_source")
    return Built(
        {
            "shards": len(writer.shards),
            **{name: manifest[name] for name in kept},
            "most_tokens_off_share": most_tokens_off_share(manifest),
        }
    )


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


@dataclass
class _Count:
    """Documents and tokens (EOS included) of a strand, and the parts that hold any."""

    documents: int = 0
    tokens: int = 0
    parts: set[str] = field(default_factory=set)


def _count(tokens: Sequence[Shards]) -> dict[tuple[str, int], _Count]:
    """Return what each strand holds, by (source, dataset) in this order."""
    counts: dict[tuple[str, int], _Count] = {}
    for dataset, shards in enumerate(tokens):
        for part in shards:
            names = part.schema.names
            if missing := [name for name in ("source", "token_length", "tokens") if name not in names]:
                raise StreamError(f"{part.name} has the columns {names}, expected encoded documents with {missing}")
            for batch in part.batches(["source", "token_length"]):
                if batch.column("source").null_count:
                    raise StreamError(f"{part.name}: a document has no source; shards are interleaved by source")
                coded = batch.column("source").cast(pa.string()).dictionary_encode()
                sums = np.zeros((2, len(coded.dictionary)), np.int64)
                codes = coded.indices.to_numpy()
                np.add.at(sums[0], codes, 1)
                np.add.at(sums[1], codes, batch.column("token_length").to_numpy().astype(np.int64) + 1)
                for source, documents, total in zip(coded.dictionary.to_pylist(), *sums.tolist(), strict=True):
                    count = counts.setdefault((source, dataset), _Count())
                    count.documents += documents
                    count.tokens += total
                    count.parts.add(part.name)
    for (source, _), count in counts.items():
        if count.tokens >= _MOST_TOKENS:
            raise StreamError(f"source {source!r} has {count.tokens:,} tokens, expected fewer than {_MOST_TOKENS:,}")
    return dict(sorted(counts.items()))


def _documents(
    shards: Shards, dataset: int, source: str, count: _Count, seed: int, memory: int, scratch: Path
) -> Generator[pa.Array, None, None]:
    """Yield the ids of the documents of a strand in its order, as arrays of lists."""
    for part in shards:
        if part.name not in count.parts:
            continue
        position = destinations(numpy_generator(seed, dataset, part.index).permutation(part.rows))
        own = np.concatenate([_is(source, batch) for batch in part.batches(["source"])])
        ranks = destinations(np.argsort(position[own]))
        with closing(in_order(_of_source(part, source), ranks, memory=memory, scratch=scratch)) as ordered:
            for batch in ordered:
                yield batch.column(0)


def _is(source: str, batch: pa.RecordBatch) -> np.ndarray:
    return np.asarray(pc.equal(batch.column("source"), source).to_numpy(zero_copy_only=False))


def _of_source(part: Part, source: str) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in part.batches(["source", "token_length", "tokens"]):
        found = pc.fill_null(pc.list_value_length(batch.column("tokens")), 0).to_numpy(zero_copy_only=False)
        expected = pc.fill_null(batch.column("token_length"), -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        if (wrong := (found != expected) | (found < 1)).any():
            i = int(np.argmax(wrong))
            raise StreamError(
                f"{part.name} row {row + i}: {found[i]} tokens, expected token_length + 1 = {expected[i]}. Encode the "
                "documents again."
            )
        row += batch.num_rows
        yield batch.select(["tokens"]).filter(pa.array(_is(source, batch)))


class _Strand:
    """A strand that is read batch by batch: the documents held, and where the first one that is not held begins."""

    def __init__(self, documents: Iterator[pa.Array], total: int) -> None:
        self._documents, self._total, self._read = documents, total, 0
        self._held: pa.Array | None = None
        self._places = np.empty(0, np.int64)

    @property
    def unread(self) -> int | None:
        """The place of the first document that is not held; None when all are."""
        return None if self._read == self._total else int(places(np.array([self._read]), self._total)[0])

    def fill(self) -> None:
        """Hold the next batch; none must be held."""
        while not len(self._places) and self._read < self._total:
            self._held = next(self._documents)
            ends = self._read + np.cumsum(_sizes(self._held))
            starts = np.concatenate([[self._read], ends[:-1]]) if len(ends) else ends
            self._places = places(starts, self._total)
            self._read = int(ends[-1]) if len(ends) else self._read

    def take(self, place: int | None, side: Literal["left", "right"]) -> tuple[pa.Array, np.ndarray] | None:
        """Give the documents before ``place`` (``right``: and at it), all when it is None; None when there are none."""
        count = len(self._places) if place is None else int(np.searchsorted(self._places, place, side))
        if not count or self._held is None:
            return None
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        there, self._places = self._places[:count], self._places[count:]
        return taken, there


def _interleaved(strands: Sequence[_Strand]) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yield documents in order, and the number of the strand of each.

    What is held of every strand can be put in order up to the first document that is not held of any.
    """
    for strand in strands:
        strand.fill()
    more = True
    while more:
        unread = [(place, number) for number, strand in enumerate(strands) if (place := strand.unread) is not None]
        place, limiting = min(unread, default=(None, len(strands)))
        taken = [(n, s.take(place, "right" if n < limiting else "left")) for n, s in enumerate(strands)]
        found = [(number, *documents) for number, documents in taken if documents is not None]
        if found:
            numbers = np.repeat([number for number, _, _ in found], [len(there) for _, _, there in found])
            order = np.lexsort((numbers, np.concatenate([there for _, _, there in found])))
            documents = pa.concat_arrays([_wide(documents) for _, documents, _ in found])
            yield documents.take(pa.array(order)), numbers[order]
        if more := place is not None:
            strands[limiting].fill()


def _wide(documents: pa.Array) -> pa.Array:
    """Return the lists with 64-bit offsets: those of several strands together may not fit in 32 bits."""
    return documents.cast(pa.large_list(documents.type.value_type))


def _sizes(documents: pa.Array) -> np.ndarray:
    return np.asarray(pc.list_value_length(documents).to_numpy(zero_copy_only=False), np.int64)


def _flat(documents: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all documents, and where each one ends in them."""
    return documents.flatten().to_numpy(), np.cumsum(_sizes(documents))


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
