"""Makes the index of raw shards: documents of all sources interleaved, as `everytoken.tokens.streams.raw_shard_order`
says.

``order.npy`` has the document at each place, ``places.npy`` the place of each document; where documents lie is in the
files of `everytoken.provenance.indexes.token_positions`. Size: 10.1 bytes a document (fewer than 2**32 documents, of
fewer than 2**16 tokens each; else up to 20.1); windows take nothing. Where shards are padded or leave documents out,
``contents.npy`` adds 8 bytes a shard (`everytoken.provenance.indexes.shard_layout`).
`everytoken.provenance.indexes.flat_index` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everytoken.outofcore import ExternalSort
from everytoken.provenance.indexes.arrays import ArrayWriter, smallest_type
from everytoken.provenance.indexes.document_numbers import numbers_of, write_numbers
from everytoken.provenance.indexes.flat_index import FLAT, ORDER_FILE, PLACES_FILE
from everytoken.provenance.indexes.index_folder import FlatDescription, Made, require_same_counts, write_description
from everytoken.provenance.indexes.shard_layout import LayoutWriter
from everytoken.provenance.indexes.token_positions import PositionsWriter
from everytoken.shards import IN_THIS_PROCESS, Built, RangeMap, Shards, versioned
from everytoken.tokens.streams import (
    PartOfDataset,
    RawShardStatistics,
    StrandName,
    places,
    rows_by_strand,
    sources_and_sizes,
)

_PLACED = np.dtype([("place", "<u8"), ("strand", "<u8"), ("document", "<u8"), ("size", "<u4")])
_BYTES = 16  # a document is as much work as so many bytes of a stream, for `RangeMap.unless_small`
_INVERSE = np.dtype([("document", "<u8"), ("place", "<u8")])


@versioned("index_raw_shards", 1, unrecorded=["memory"], in_ranges=True)
def index_raw_shards(
    folder: Path,
    *,
    lengths: Mapping[str, Shards],
    order: tuple[str, ...],
    stream: Made,
    seed: int,
    shard_size_tokens: int,
    memory: int,
    cross_document_boundary: bool = True,
    n_shards: int | None = None,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write the index of raw shards.

    Args:
        folder: where the files go; also holds temporary files, up to 60 bytes a document.
        lengths: the documents, by split: rows with ``source`` and ``token_length``.
        order: the splits in the order in which the shards were made of them.
        stream: the shards; their statistics say tokens, documents and shards.
        memory: bytes for sorting; about 50 bytes a document of one part come on top, in each worker.

    Raises:
        ProvenanceError: the documents are not those of the shards.
        StreamError: a length is null or negative.
    """
    splits = {name: lengths[name] for name in order}
    numbers = numbers_of(splits)
    parts = [
        _NumberedPart(PartOfDataset(dataset, part), numbers.number_before(split, index))
        for dataset, (split, shards) in enumerate(splits.items())
        for index, part in enumerate(shards)
    ]
    ranges = ranges.unless_small(len(numbers) * _BYTES)
    totals, most = _totals(parts, ranges)
    strands = {strand: number for number, strand in enumerate(sorted(totals))}
    by_place, by_document = (ExternalSort(dtype, memory // 2, folder) for dtype in (_PLACED, _INVERSE))
    read = dict.fromkeys(totals, 0)
    for strand, documents, sizes in ranges.pieces(_InOrder(seed), parts, folder):
        ends = read[strand] + np.cumsum(sizes)
        records = np.empty(len(documents), _PLACED)
        records["place"] = places(ends - sizes, totals[strand])
        records["strand"], records["document"] = strands[strand], documents
        records["size"] = sizes
        by_place.add(records)
        read[strand] = int(ends[-1])
    kind = smallest_type(len(numbers))
    with ExitStack() as files:
        order_file, places_file = (
            files.enter_context(ArrayWriter(folder / name, kind)) for name in (ORDER_FILE, PLACES_FILE)
        )
        positions = files.enter_context(PositionsWriter(folder, most))
        layout = LayoutWriter(shard_size_tokens, whole=not cross_document_boundary, n_shards=n_shards)
        for block in by_place.sorted():
            inverse = np.empty(len(block), _INVERSE)
            inverse["document"] = block["document"]
            inverse["place"] = np.arange(order_file.count, order_file.count + len(block))
            by_document.add(inverse)
            order_file.append(block["document"])
            positions.append(block["size"].astype(np.int64))
            layout.append(block["size"].astype(np.int64))
        for block in by_document.sorted():
            places_file.append(block["place"])
    found = {"documents": layout.documents, "tokens": layout.tokens, "shards": layout.shards}
    require_same_counts("raw_shards", found, stream.statistics_as(RawShardStatistics))
    described = FlatDescription(
        kind=FLAT,
        stream=stream.root_digest,
        tokens=positions.tokens,
        shard_size_tokens=shard_size_tokens,
        splits=write_numbers(folder, numbers),
    )
    if not cross_document_boundary or n_shards is not None:
        layout.write(folder)
        described["shards"], described["stored_tokens"] = layout.shards, layout.tokens
    return Built(write_description(folder, described, numbers))


@dataclass(frozen=True)
class _NumberedPart:
    """A part of a dataset, and the number of its first document over all datasets."""

    of: PartOfDataset
    first: int

    @property
    def name(self) -> str:
        return self.of.name


def _totals(parts: Sequence[_NumberedPart], ranges: RangeMap) -> tuple[dict[StrandName, int], int]:
    """Return the tokens of each strand and of the largest document."""
    totals: dict[StrandName, int] = {}
    most = 0
    for of_part, largest in ranges(_totals_of, parts):
        most = max(most, largest)
        for strand, total in of_part.items():
            totals[strand] = totals.get(strand, 0) + total
    return totals, most


def _totals_of(given: _NumberedPart) -> tuple[dict[StrandName, int], int]:
    codes, sources, sizes = sources_and_sizes(given.of.part)
    sums = np.zeros(len(sources), np.int64)
    np.add.at(sums, codes, sizes)
    strands = [(source, given.of.dataset) for source in sources]
    return dict(zip(strands, sums.tolist(), strict=True)), int(sizes.max(initial=0))


@dataclass(frozen=True)
class _InOrder:
    """Yields for each strand of a part the numbers of its documents in their order, and their tokens."""

    seed: int

    def __call__(self, given: _NumberedPart) -> Iterator[tuple[StrandName, np.ndarray, np.ndarray]]:
        codes, sources, sizes = sources_and_sizes(given.of.part)
        for source, rows in zip(sources, rows_by_strand(given.of, codes, len(sources), self.seed), strict=True):
            yield (source, given.of.dataset), given.first + rows, sizes[rows]
