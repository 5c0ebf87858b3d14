"""Raw shards: all documents as flat little-endian ids in files of one size, so that every file sees every source.

``shard_00000.bin`` and following hold ``shard_size_tokens`` ids each, the last one fewer; ``manifest.json`` says what
is in them. A document is its content and EOS. Documents follow each other without a gap, so one may begin in a shard
and end in the next. Without ``cross_document_boundary`` none does: where the next document does not fit, the rest of
the shard is padded with EOS, and the document begins the next shard. Padding is thus only at the ends of shards.

With ``n_shards`` exactly so many full shards are written. The documents behind are left out; where documents cross
boundaries, the last one may be cut.

Their order is that of `everytoken.tokens.streams.raw_shard_order`: in every shard every source has its share.

Parts are put in order, then shards written, each by as many processes as the engine has. Each shard is written to a
temporary name, fsynced, renamed, read again and checked against the SHA-256 of what was written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict

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
from everytoken.tokens.streams.raw_shard_order import (
    ORDER_RULE,
    StrandCount,
    StrandName,
    count_strands,
    order_strands,
)
from everytoken.tokens.streams.strands import Strands
from everytoken.tokens.tokenizer import TokenizerIds

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
RAW_SHARDS_FORMAT = "everytoken-raw-shards/1"
_TOTALS = ("tokens", "documents")  # of a strand
_BYTES = 8  # to count a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`
_LEAST_AT_ONCE, _MOST_BYTES = 1 << 16, 16 << 20  # tokens and bytes of a shard that are put together at a time
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
        folder: where the files go; also holds temporary files: the ids that are not in a shard yet, and 8 bytes a
            document (`everytoken.tokens.streams.raw_shard_order`).
        tokens: datasets of encoded documents (``source``, ``token_length``, ``tokens``).
        tokenizer: with which they were encoded.
        shard_size_tokens: tokens in each shard but the last.
        dtype: of the ids in the files.
        seed: of the order of documents in parts.
        shuffle_memory: bytes for rows in memory, in all processes together; positions come on top (about 40 bytes a
            document of the parts that are read), and one document while shards are written.
        names: of the datasets, for the manifest; the rule of the order knows them by number. None: it names none.
        cross_document_boundary: whether a document may begin in a shard and end in the next.
        n_shards: how many full shards are written; None: as many as the documents fill, the last one shorter.
        ranges: where parts are read and put in order, and shards are written.

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
    longest, documents = None if cross_document_boundary else shard_size_tokens, sum(of.rows for of in tokens)
    counts = count_strands(tokens, ranges.unless_small(documents * _BYTES), longest)
    total_tokens, total_documents = (sum(getattr(count, of) for count in counts.values()) for of in _TOTALS)
    if n_shards is not None and cross_document_boundary and total_tokens < n_shards * shard_size_tokens:
        full, begun = divmod(total_tokens, shard_size_tokens)
        raise _too_few(n_shards, shard_size_tokens, full, begun, 0)
    until = total_tokens if n_shards is None else min(total_tokens, n_shards * shard_size_tokens)
    ranges = ranges.unless_small(until * DTYPES[dtype].itemsize)
    with TemporaryDirectory(prefix="strands-", dir=folder) as scratch:
        strands = order_strands(
            tokens,
            counts,
            facts,
            DTYPES[dtype],
            until=until,
            seed=seed,
            memory=shuffle_memory,
            scratch=Path(scratch),
            ranges=ranges,
        )
        cuts = _cuts(strands, total_tokens, shard_size_tokens, not cross_document_boundary, n_shards)
        padding, end = sum(cut.padding for cut in cuts), cuts[-1].end if cuts else 0
        if n_shards is not None and (full := sum(cut.tokens == shard_size_tokens for cut in cuts)) < n_shards:
            begun = cuts[-1].tokens if full < len(cuts) else 0
            raise _too_few(n_shards, shard_size_tokens, full, begun, padding)
        is_cut = strands.before(end).tokens < end
        by_source = _by_source(counts, *strands.counts_at(end))
        write = _WriteShard(folder, strands, eos_id, shuffle_memory // ranges.workers)
        shards = [*_written(write, cuts, [source for source, _ in counts], not cross_document_boundary, ranges)]
    documents_held, tokens_held = (sum(held[of] for held in by_source.values()) for of in ("documents", "tokens"))
    left_out = LeftOut(
        documents=total_documents - documents_held, tokens=total_tokens - tokens_held, cut_documents=int(is_cut)
    )
    padded = {} if cross_document_boundary else {"padding_tokens": padding}
    counted = {**padded, **({} if n_shards is None else {"left_out": left_out})}
    manifest = {
        "format": RAW_SHARDS_FORMAT,
        "dtype": dtype,
        "byte_order": "little",
        "shard_size_tokens": shard_size_tokens,
        **({} if cross_document_boundary else {"cross_document_boundary": False}),
        "tokens": tokens_held + padding,
        "documents": documents_held,
        **counted,
        "eos_id": eos_id,
        "tokenizer_sha256": facts["sha256"],
        "vocab_size": vocab_size,
        "seed": seed,
        "order": ORDER_RULE,
        **({} if names is None else {"datasets": _described(names, tokens, counts)}),
        "by_source": by_source,
        "shards": shards,
    }
    write_text(folder / MANIFEST_FILE, json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    statistics = RawShardStatistics(
        shards=len(shards),
        tokens=tokens_held + padding,
        documents=documents_held,
        dtype=dtype,
        eos_id=eos_id,
        tokenizer_sha256=facts["sha256"],
        vocab_size=vocab_size,
        by_source=by_source,
        most_tokens_off_share=most_tokens_off_share(manifest),
    )
    if not cross_document_boundary:
        statistics["padding_tokens"] = padding
        logger.info("%s", _said_padding(padding, statistics["tokens"], len(shards)))
    if n_shards is not None:
        statistics["left_out"] = left_out
        logger.info(
            "left out behind %s shards: %s documents, %s tokens",
            *(f"{count:,}" for count in (n_shards, left_out["documents"], left_out["tokens"])),
        )
    return Built(statistics, sha256={shard["name"]: shard["sha256"] for shard in shards})


def _described(
    names: Sequence[str], tokens: Sequence[Shards], counts: Mapping[StrandName, StrandCount]
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
class _ShardCut:
    """A shard: the tokens [first, end) of all documents, and padding."""

    number: int
    first: int
    end: int
    padding: int

    @property
    def name(self) -> str:
        return shard_name(self.number)

    @property
    def tokens(self) -> int:
        return self.end - self.first + self.padding


def _cuts(strands: Strands, total: int, size: int, whole: bool, most: int | None) -> list[_ShardCut]:
    """Cut all tokens into shards; ``whole``: at ends of documents; ``most``: shards at most."""
    cuts: list[_ShardCut] = []
    first = 0
    while first < total and len(cuts) != most:
        end = min(first + size, total)
        if whole:
            end = strands.before(end).tokens
        padding = size - (end - first) if whole and end < total else 0  # the next document does not fit
        cuts.append(_ShardCut(len(cuts), first, end, padding))
        first = end
    return cuts


def _by_source(names: Iterable[StrandName], documents: np.ndarray, tokens: np.ndarray) -> dict[str, dict[str, int]]:
    """Add up the documents and tokens of strands, (strands,) each, by source."""
    by_source: dict[str, dict[str, int]] = {}
    for (source, _), of_documents, of_tokens in zip(names, documents.tolist(), tokens.tolist(), strict=True):
        held = by_source.setdefault(source, {"tokens": 0, "documents": 0})
        held["tokens"] += of_tokens
        held["documents"] += of_documents
    return by_source


@dataclass(frozen=True)
class _WriteShard:
    """Writes a shard; returns its SHA-256 and its number of EOS."""

    folder: Path
    strands: Strands
    eos_id: int
    memory: int

    def __call__(self, cut: _ShardCut) -> tuple[str, int]:
        path, digest, eos = self.folder / cut.name, hashlib.sha256(), 0
        most = max(_LEAST_AT_ONCE, min(_MOST_BYTES, self.memory // 4) // self.strands.dtype.itemsize)
        padding = (np.full(count, self.eos_id, self.strands.dtype) for count in _in_pieces(cut.padding, most))
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            for piece in chain(self.strands.pieces(cut.first, cut.end, most), padding):
                file.write(piece.data)
                digest.update(piece.data)
                eos += int(np.count_nonzero(piece == self.eos_id))
        _forget(path)
        if (found := file_sha256(path)) != digest.hexdigest():
            raise StreamError(
                f"{path} has SHA-256 {found} when it is read again, {digest.hexdigest()} was written: the disk or its "
                "controller does not give back what it got. Use another disk."
            )
        return digest.hexdigest(), eos


def _in_pieces(count: int, most: int) -> Iterator[int]:
    for done in range(0, count, most):
        yield min(most, count - done)


def _written(
    write: _WriteShard, cuts: Sequence[_ShardCut], sources: Sequence[str], whole: bool, ranges: RangeMap
) -> Iterator[dict[str, Any]]:
    """Write the shards, and remove the files of strands that all later ones do without; yield what is in each."""
    strands, before = write.strands, np.zeros(len(sources), np.int64)
    left = [deque(strand.parts) for strand in strands.strands]
    for cut, (sha256, eos) in zip(cuts, ranges(write, cuts), strict=True):
        _, until = strands.counts_at(cut.end)
        by_source: dict[str, int] = {}
        for source, count in zip(sources, (until - before).tolist(), strict=True):
            by_source[source] = by_source.get(source, 0) + count
        before = until
        for parts, tokens in zip(left, until.tolist(), strict=True):
            while parts and parts[0].end_token <= tokens:
                parts.popleft().file.unlink()
        yield {
            "name": cut.name,
            "tokens": cut.tokens,
            "bytes": cut.tokens * strands.dtype.itemsize,
            "sha256": sha256,
            "eos_tokens": eos,
            **({"padding_tokens": cut.padding} if whole else {}),
            "tokens_by_source": by_source,
        }


def shard_name(number: int) -> str:
    """Return the name of a shard: ``shard_00000.bin``."""
    return f"shard_{number:05d}.bin"


def _forget(path: Path) -> None:
    """Drop the file from the page cache where the system can, so that it is read from the disk."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
