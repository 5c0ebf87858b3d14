"""Raw shards: all documents as flat little-endian ids in files of one size, so that every file sees every source.

``shard_00000.bin`` and following hold ``shard_size_tokens`` ids each, the last one fewer; ``manifest.json`` says what
is in them. A document is its content and EOS. Documents follow each other without a gap, so one may begin in a shard
and end in the next. Without ``cross_document_boundary`` none does: where the next document does not fit, the rest of
the shard is padded with EOS, and the document begins the next shard. Padding is thus only at the ends of shards.

With ``n_shards`` exactly so many full shards are written. The documents behind are left out; where documents cross
boundaries, the last one may be cut.

Their order is that of `everytoken.tokens.streams.raw_shard_order`: in every shard every source has its share.

Each shard is written to a temporary name, fsynced, renamed, read again and checked against the SHA-256 of what was
written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
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

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
RAW_SHARDS_FORMAT = "everytoken-raw-shards/1"
_TOTALS = ("tokens", "documents")  # of a strand
_PADDED_AT_ONCE = 1 << 20
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class LeftOut(TypedDict):
    """Documents behind the last shard, tokens of these and of a document that is cut there, and whether one is."""

    documents: int
    tokens: int
    cut_documents: int


class _CutStatistics(TypedDict, total=False):
    padding_tokens: int
    left_out: LeftOut


class RawShardStatistics(_CutStatistics):
    """Statistics of raw shards; ``tokens`` with EOS and padding.

    ``padding_tokens`` where no document crosses a boundary; ``left_out`` where the number of shards is given.
    """

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
    cross_document_boundary: bool = True,
    n_shards: int | None = None,
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
        cross_document_boundary: whether a document may begin in a shard and end in the next.
        n_shards: how many full shards are written; None: as many as the documents fill, the last one shorter.
        ranges: where parts are read and put in order; shards are written in this process.

    Returns:
        Statistics: shards, tokens, documents, dtype, eos_id, tokenizer_sha256, vocab_size, by_source (tokens,
            documents), and most_tokens_off_share: over shards and sources, by how many tokens a shard's count of a
            source differs at most from that source's share of the shard; padding_tokens without
            ``cross_document_boundary``, and left_out with ``n_shards``.

    Raises:
        StreamError: the vocabulary does not fit in ``dtype``; documents have no source, do not end in EOS, hold ids
            outside the vocabulary, or are not what their ``token_length`` says; a document is longer than a shard and
            may not cross a boundary; there are fewer tokens than ``n_shards`` need; or a shard that is read again is
            not what was written.
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
    counts = count_strands(tokens, None if cross_document_boundary else shard_size_tokens)
    total_tokens, total_documents = (sum(getattr(count, of) for count in counts.values()) for of in _TOTALS)
    if n_shards is not None and cross_document_boundary and total_tokens < n_shards * shard_size_tokens:
        full, begun = divmod(total_tokens, shard_size_tokens)
        raise _too_few(n_shards, shard_size_tokens, full, begun, 0)
    sources = [source for source, _ in counts]
    ranges = ranges.unless_small(total_tokens * DTYPES[dtype].itemsize)
    layout = _Layout(shard_size_tokens, DTYPES[dtype], eos_id, not cross_document_boundary, n_shards)
    with (
        closing(interleaved(tokens, counts, seed, shuffle_memory, folder, ranges)) as documents,
        _ShardWriter(folder, layout, sources) as writer,
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
            if writer.is_full:
                break
        if n_shards is not None and not writer.is_full:
            raise _too_few(n_shards, shard_size_tokens, len(writer.shards), writer.begun_tokens, writer.padding)
    by_source: dict[str, dict[str, int]] = {}
    for source, of_strand, of_documents in zip(sources, writer.tokens, writer.documents, strict=True):
        held = by_source.setdefault(source, {"tokens": 0, "documents": 0})
        held["tokens"] += int(of_strand)
        held["documents"] += int(of_documents)
    documents_held = sum(held["documents"] for held in by_source.values())
    tokens_held = sum(held["tokens"] for held in by_source.values())
    left_out = LeftOut(
        documents=total_documents - documents_held,
        tokens=total_tokens - tokens_held,
        cut_documents=int(writer.is_cut),
    )
    padded = {} if cross_document_boundary else {"padding_tokens": writer.padding}
    counted = {**padded, **({} if n_shards is None else {"left_out": left_out})}
    manifest = {
        "format": RAW_SHARDS_FORMAT,
        "dtype": dtype,
        "byte_order": "little",
        "shard_size_tokens": shard_size_tokens,
        **({} if cross_document_boundary else {"cross_document_boundary": False}),
        "tokens": tokens_held + writer.padding,
        "documents": documents_held,
        **counted,
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
        tokens=tokens_held + writer.padding,
        documents=documents_held,
        dtype=dtype,
        eos_id=eos_id,
        tokenizer_sha256=facts["sha256"],
        vocab_size=vocab_size,
        by_source=by_source,
        most_tokens_off_share=most_tokens_off_share(manifest),
    )
    if not cross_document_boundary:
        statistics["padding_tokens"] = writer.padding
        logger.info("%s", _said_padding(writer.padding, statistics["tokens"], len(writer.shards)))
    if n_shards is not None:
        statistics["left_out"] = left_out
        logger.info(
            "left out behind %s shards: %s documents, %s tokens",
            *(f"{count:,}" for count in (n_shards, left_out["documents"], left_out["tokens"])),
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
    total = manifest["tokens"] - manifest.get("padding_tokens", 0)
    return max(
        (
            abs(shard["tokens_by_source"].get(source, 0) * total - content_tokens(shard) * held["tokens"]) // total
            for shard in manifest["shards"]
            for source, held in manifest["by_source"].items()
        ),
        default=0,
    )


def content_tokens(shard: Mapping[str, Any]) -> int:
    """Return the tokens of documents in a shard, by its entry in the manifest: what is not its padding."""
    return int(shard["tokens"]) - int(shard.get("padding_tokens", 0))


def _said_padding(padding: int, tokens: int, shards: int) -> str:
    return (
        f"padding: {padding:,} of {tokens:,} tokens ({padding / max(1, tokens):.3%}) at the ends of {shards:,} shards"
    )


def _too_few(n_shards: int, size: int, full: int, begun: int, padding: int) -> StreamError:
    missing = (n_shards - full) * size - begun
    return StreamError(
        f"packing.n_shards is {n_shards:,}, of {size:,} tokens each, and the documents fill {full:,} and {begun:,} "
        f"tokens of the next, {padding:,} of padding among them: {missing:,} tokens are missing. Give more documents "
        "(ingestion.mixture.target_total_tokens, or more files), or lower packing.n_shards or packing.shard_size_tokens"
    )


@dataclass(frozen=True)
class _Layout:
    """How shards are cut: ``whole``: at ends of documents; ``most``: shards at most."""

    size: int
    dtype: np.dtype[Any]
    eos_id: int
    whole: bool
    most: int | None


class _ShardWriter:
    """Cuts flat ids into files of one size, and counts what is in each. A context manager.

    Attributes:
        tokens: of each strand, without padding, int64 (strands,).
        documents: of each strand that begin in a shard, int64 (strands,).
        is_cut: whether the last document continues behind the last shard.
    """

    def __init__(self, folder: Path, layout: _Layout, sources: Sequence[str]) -> None:
        self.shards: list[dict[str, Any]] = []
        self.tokens, self.documents = np.zeros(len(sources), np.int64), np.zeros(len(sources), np.int64)
        self.padding, self.is_cut = 0, False
        self._tokens = self._eos = self._padding = 0
        self._folder, self._layout, self._sources = folder, layout, sources
        self._size, self._dtype, self._eos_id = layout.size, layout.dtype, layout.eos_id
        self._open: ExitStack | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    @property
    def is_full(self) -> bool:
        """Whether all shards that are wanted are written."""
        return self._layout.most is not None and len(self.shards) == self._layout.most

    @property
    def begun_tokens(self) -> int:
        """Tokens in the shard that is not full yet."""
        return 0 if self._file is None else self._tokens

    def write(self, ids: np.ndarray, ends: np.ndarray, strand_of: np.ndarray) -> None:
        """Append documents: their ids, where each ends in them, and the number of the strand of each.

        What is behind the last shard that is wanted is left out.
        """
        starts = np.concatenate([[0], ends[:-1]])
        done = 0
        while done < len(ids) and not self.is_full:
            self._begun()
            stop = min(len(ids), done + self._size - self._tokens)
            if self._layout.whole:
                fitting = int(np.searchsorted(ends, stop, "right"))
                stop = max(done, int(ends[fitting - 1])) if fitting else done
            self._append(ids[done:stop])
            first, last = int(np.searchsorted(ends, done, "right")), int(np.searchsorted(starts, stop, "left"))
            inside = np.minimum(ends[first:last], stop) - np.maximum(starts[first:last], done)
            np.add.at(self._by_strand, strand_of[first:last], inside)
            np.add.at(self.documents, strand_of[int(np.searchsorted(starts, done, "left")) : last], 1)
            done = stop
            if self._layout.whole and done < len(ids):  # the next document does not fit
                self._pad()
            if self._tokens == self._size:
                self._finish()
        self.is_cut = self.is_full and done < len(ids) and done not in starts

    def _append(self, ids: np.ndarray) -> None:
        piece = ids.astype(self._dtype, copy=False)
        self._begun().write(piece.data)
        self._digest.update(piece.data)
        self._tokens += len(piece)
        self._eos += int(np.count_nonzero(piece == self._eos_id))

    def _pad(self) -> None:
        """Fill the rest of the shard with EOS."""
        self._padding = self._size - self._tokens
        for start in range(0, self._padding, _PADDED_AT_ONCE):
            self._append(np.full(min(_PADDED_AT_ONCE, self._padding - start), self._eos_id, self._dtype))
        self.padding += self._padding

    def _begun(self) -> BinaryIO:
        if self._file is None:
            self._open = ExitStack()
            temporary = self._open.enter_context(atomic_file(self._path()))
            self._file = self._open.enter_context(temporary.open("wb"))
            self._digest = hashlib.sha256()
            self._tokens = self._eos = self._padding = 0
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
        self.tokens += self._by_strand
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
                **({"padding_tokens": self._padding} if self._layout.whole else {}),
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
