"""The order of raw shards: documents of all sources interleaved in proportion, put in order on disk by part.

A *strand* is the documents of one source of one dataset (annotated, unannotated): parts in plan order, and in a
part in the order of a seeded permutation of the part. A document that begins at token c of the T tokens of its strand
has the *place* ``floor(2**60 * c / T)``; all documents are written by (place, source, dataset). The next document thus
always comes from the strand of which the smallest share is written. Wherever the flow is cut, a strand is never more
than one document ahead of the share that all have reached, and never behind it: that is the round robin in proportion.

It is done in two phases, each in as many processes as the engine has. A part is read once, and its documents are
written strand after strand to temporary files (`order_strands`). Then each shard takes its tokens from these
(`everytoken.tokens.streams.strands`). Memory is bounded by ``shuffle_memory``. On disk are all tokens that the shards
hold, once, as a file is gone when the last shard that needs it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.outofcore import destinations
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, RangeMap, Shards
from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams.documents import document_sizes, reordered_tokens
from everytoken.tokens.streams.strands import PartOfStrand, StrandOnDisk, Strands
from everytoken.tokens.tokenizer import TokenizerIds

ORDER_RULE = (
    "Documents of one source of one dataset: parts in plan order, in a part by "
    "numpy.random.default_rng((seed, dataset, part)).permutation(rows). One that begins at token c of their T tokens "
    "has the place floor(2**60 * c / T); all documents are in the order of (place, source, dataset)."
)
_MOST_TOKENS = 1 << 43  # of one strand: `places` shifts by 20 bits in int64
_ALL = 1 << 60  # above every place

StrandName = tuple[str, int]
"""Source and dataset."""


@dataclass
class StrandCount:
    """Documents and tokens (EOS included) of a strand, and those of each part that holds any, by name."""

    documents: int = 0
    tokens: int = 0
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PartOfDataset:
    """A part, and the number of its dataset."""

    dataset: int
    part: Part

    @property
    def name(self) -> str:
        """The name of the part."""
        return self.part.name


def _parts_of(tokens: Sequence[Shards]) -> list[PartOfDataset]:
    return [PartOfDataset(dataset, part) for dataset, shards in enumerate(tokens) for part in shards]


def sources_and_sizes(part: Part) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Return the number of the source of each row, the sources by number, and the tokens of each row, EOS included.

    Raises:
        StreamError: a document has no source, or no length.
    """
    numbers: dict[str, int] = {}
    codes: list[Any] = [np.empty(0, np.int64)]
    for batch in part.batches(["source"]):
        if batch.column("source").null_count:
            raise StreamError(f"{part.name}: a document has no source; shards are interleaved by source")
        coded = batch.column("source").cast(pa.string()).dictionary_encode()
        of_code = [numbers.setdefault(name, len(numbers)) for name in coded.dictionary.to_pylist()]
        codes.append(np.array(of_code, np.int64)[coded.indices.to_numpy()])
    return np.concatenate(codes), list(numbers), document_sizes(part)


def rows_by_strand(of: PartOfDataset, codes: np.ndarray, sources: int, seed: int) -> list[np.ndarray]:
    """Return the rows of a part that belong to each of its sources, in the order of their strand, int64 (n,) each.

    Args:
        codes: the number of the source of each row.
        sources: how many there are.
    """
    permutation = numpy_generator(seed, of.dataset, of.part.index).permutation(of.part.rows)
    order = np.lexsort((destinations(permutation), codes))
    return np.split(order, np.cumsum(np.bincount(codes, minlength=sources))[:-1]) if sources else []


def count_strands(
    tokens: Sequence[Shards], ranges: RangeMap, longest: int | None = None
) -> dict[StrandName, StrandCount]:
    """Return what each strand holds, by (source, dataset) in this order.

    Raises:
        StreamError: documents have no source; or one has more than ``longest`` tokens, where that is given.
    """
    counts: dict[StrandName, StrandCount] = {}
    parts = _parts_of(tokens)
    for of, found in zip(parts, ranges(_CountPart(longest), parts), strict=True):
        for source, documents, total in found:
            count = counts.setdefault((source, of.dataset), StrandCount())
            count.parts[of.name] = documents, total
            count.documents += documents
            count.tokens += total
    for (source, _), count in counts.items():
        if count.tokens >= _MOST_TOKENS:
            raise StreamError(f"source {source!r} has {count.tokens:,} tokens, expected fewer than {_MOST_TOKENS:,}")
    return dict(sorted(counts.items()))


@dataclass(frozen=True)
class _CountPart:
    """Returns the documents and tokens of each source of a part."""

    longest: int | None

    def __call__(self, of: PartOfDataset) -> list[tuple[str, int, int]]:
        part, names = of.part, of.part.schema.names
        if missing := [name for name in ("source", "token_length", "tokens") if name not in names]:
            raise StreamError(f"{part.name} has the columns {names}, expected encoded documents with {missing}")
        codes, sources, sizes = sources_and_sizes(part)
        if self.longest is not None and (too_long := sizes > self.longest).any():
            raise _too_long(part, int(np.argmax(too_long)), sizes, self.longest)
        totals = np.zeros(len(sources), np.int64)
        np.add.at(totals, codes, sizes)
        documents = np.bincount(codes, minlength=len(sources))
        return list(zip(sources, documents.tolist(), totals.tolist(), strict=True))


def _too_long(part: Part, row: int, sizes: np.ndarray, longest: int) -> StreamError:
    """Return the error for a document that no shard can hold whole, with its address."""
    names = [name for name in ("id", *ADDRESS_COLUMNS) if name in part.schema.names]
    found = next(part.batches(names, first_row=row))
    address = ", ".join(f"{name} {found.column(name)[0].as_py()!r}" for name in names)
    return StreamError(
        f"{part.name} row {row} ({address}) has {int(sizes[row]):,} tokens with EOS, and a "
        f"shard {longest:,} (packing.shard_size_tokens): no shard holds it whole. Raise packing.shard_size_tokens, or "
        "set packing.cross_document_boundary to true"
    )


def order_strands(
    tokens: Sequence[Shards],
    counts: Mapping[StrandName, StrandCount],
    facts: TokenizerIds,
    dtype: np.dtype[Any],
    *,
    until: int,
    seed: int,
    memory: int,
    scratch: Path,
    ranges: RangeMap,
) -> Strands:
    """Write the strands to files, part by part; return them.

    Args:
        counts: what `count_strands` gave; strands are numbered in this order.
        facts: of the tokenizer that encoded the documents.
        dtype: of the ids in the files.
        until: tokens of all documents that are wanted, from the first on; parts behind them are not read.
        seed: of the order of documents in parts.
        memory: bytes for rows in memory, in all processes together.
        scratch: an existing folder for the files.
        ranges: where parts are read and put in order.

    Raises:
        StreamError: a document is not what its ``token_length`` and the tokenizer say.
    """
    behind = (until << 60) // max(1, sum(count.tokens for count in counts.values())) + 1
    parts = _parts_of(tokens)
    first_places = _first_places(parts, counts)
    wanted = [of for of, place in zip(parts, first_places, strict=True) if place < min(behind, _ALL)]
    strands = Strands(scratch, tuple(_on_disk(wanted, counts, scratch)), dtype)
    strands.make_starts()
    numbers = {name: number for number, name in enumerate(counts)}
    own = {(of.number, part.file.name): part for of in strands.strands for part in of.parts}
    order = _OrderPart(strands, numbers, own, facts, seed, memory // ranges.workers)
    for _ in ranges(order, wanted):
        pass
    return strands


def _first_places(parts: Sequence[PartOfDataset], counts: Mapping[StrandName, StrandCount]) -> list[int]:
    """Return the place of the first document of each part; above all places where it holds none."""
    first: dict[tuple[int, str], int] = {}
    for (_, dataset), count in counts.items():
        before = 0
        for name, (_, total) in count.parts.items():
            place = (before << 60) // count.tokens
            first[dataset, name] = min(place, first.get((dataset, name), place))
            before += total
    return [first.get((of.dataset, of.name), _ALL) for of in parts]


def _on_disk(
    wanted: Sequence[PartOfDataset], counts: Mapping[StrandName, StrandCount], scratch: Path
) -> Iterator[StrandOnDisk]:
    """Yield what of each strand will be on disk: its parts up to the first one that is not wanted."""
    names, first_start = {(of.dataset, of.name) for of in wanted}, 0
    for number, ((_, dataset), count) in enumerate(counts.items()):
        held: list[PartOfStrand] = []
        first = first_token = 0
        for name, (documents, total) in count.parts.items():
            if (dataset, name) not in names:
                break
            file, end = scratch / _file_name(number, name), (first + documents, first_token + total)
            held.append(PartOfStrand(file, first, end[0], first_token, end[1]))
            first, first_token = end
        yield StrandOnDisk(number, count.tokens, first_start, tuple(held))
        first_start += first + 1


def _file_name(strand: int, part: str) -> str:
    return f"{strand}-{part}.ids"


@dataclass(frozen=True)
class _OrderPart:
    """Writes the documents of a part, strand after strand, and where each begins.

    Attributes:
        numbers: of the strands.
        parts: of strands, by the number of the strand and the name of the file.
    """

    strands: Strands
    numbers: Mapping[StrandName, int]
    parts: Mapping[tuple[int, str], PartOfStrand]
    facts: TokenizerIds
    seed: int
    memory: int

    def __call__(self, of: PartOfDataset) -> None:
        part, scratch = of.part, self.strands.scratch
        codes, sources, sizes = sources_and_sizes(part)
        rows, files = rows_by_strand(of, codes, len(sources), self.seed), []
        for source, own in zip(sources, rows, strict=True):
            strand = self.numbers[source, of.dataset]
            name, ends = _file_name(strand, of.name), np.cumsum(sizes[own])
            files.append((scratch / name, int(ends[-1])))
            if (held := self.parts.get((strand, name))) is not None:  # else it is behind all that is wanted
                self.strands.write_starts(strand, held.first, held.first_token + ends - sizes[own])
        kind = np.dtype(part.schema.field("tokens").type.value_type.to_pandas_dtype())
        documents = _checked(part, self.facts)
        pieces = reordered_tokens(documents, sizes, np.concatenate(rows), kind, memory=self.memory, scratch=scratch)
        _write_in_turn(pieces, files, self.strands.dtype)


def _write_in_turn(pieces: Iterator[np.ndarray], files: Sequence[tuple[Path, int]], dtype: np.dtype[Any]) -> None:
    """Write ids to one file after the other, as many to each as it is given with."""
    left = np.empty(0, dtype)
    for path, count in files:
        with path.open("wb") as file:
            while count:
                left = left if len(left) else next(pieces)
                piece, left = left[:count], left[count:]
                file.write(np.ascontiguousarray(piece, dtype).data)
                count -= len(piece)


def _checked(part: Part, facts: TokenizerIds) -> Iterator[pa.Array]:
    """Yield the ids of the documents of a part; each has ``token_length`` and EOS."""
    import pyarrow.compute as pc  # here and below: it costs 0.07 s, and who reads an index needs none of it

    row = 0
    for batch in part.batches(["source", "token_length", "tokens"]):
        ids = batch.column("tokens")
        found = pc.fill_null(pc.list_value_length(ids), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        expected = pc.fill_null(batch.column("token_length"), -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        if (wrong := (found != expected) | (found < 1)).any():
            i = int(np.argmax(wrong))
            raise StreamError(
                f"{part.name} row {row + i}: {found[i]} tokens, expected token_length + 1 = {expected[i]}. Encode the "
                "documents again."
            )
        if batch.num_rows:
            _check_ids(part.name, row, batch.column("source"), ids.flatten().to_numpy(), np.cumsum(found), facts)
        row += batch.num_rows
        yield ids


def _check_ids(name: str, row: int, sources: pa.Array, ids: np.ndarray, ends: np.ndarray, facts: TokenizerIds) -> None:
    """Check the ids of documents that begin at a row of the part ``name``."""
    vocab_size, eos_id = facts["vocab_size"], facts["eos_id"]
    if int(ids.max()) >= vocab_size:
        i = int(np.searchsorted(ends, np.argmax(ids >= vocab_size), "right"))
        raise StreamError(
            f"{name} row {row + i}: a document of {sources[i].as_py()!r} holds id {int(ids.max())}, outside the "
            f"vocabulary of {vocab_size:,} ids: encode the documents again, with this tokenizer"
        )
    if (wrong := ids[ends - 1] != eos_id).any():
        i = int(np.argmax(wrong))
        raise StreamError(
            f"{name} row {row + i}: a document of {sources[i].as_py()!r} ends in id {int(ids[ends[i] - 1])}, "
            f"expected EOS {eos_id}: encode the documents again, with this tokenizer"
        )
