"""The order of raw shards: documents of all sources interleaved in proportion, merged from disk in bounded memory.

A *strand* is the documents of one source of one dataset (annotated, unannotated): parts in plan order, and in a
part in the order of a seeded permutation of the part. A document that begins at token c of the T tokens of its strand
has the *place* ``floor(2**60 * c / T)``; all documents are written by (place, source, dataset). The next document thus
always comes from the strand of which the smallest share is written. Wherever the flow is cut, a strand is never more
than one document ahead of the share that all have reached, and never behind it: that is the round robin in proportion.

Memory is bounded by ``shuffle_memory``. A part is read once: it is put in order (`everytoken.outofcore.shuffle`), one
source after the other, into a temporary file a source, from which the strands are merged batch by batch. When the
merge comes to a part follows from lengths alone, so workers put parts in order ahead of it, two a worker. A file is
gone when its strand has read it, so on disk are these and the parts that some strand has begun and another has not
ended: few, where sources lie mixed in all parts; at worst all tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.outofcore import destinations, in_order
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, RangeMap, Shards
from everytoken.tokens.errors import StreamError

ORDER_RULE = (
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


@dataclass
class StrandCount:
    """Documents and tokens (EOS included) of a strand, and its tokens before each part that holds any, by name."""

    documents: int = 0
    tokens: int = 0
    parts: dict[str, int] = field(default_factory=dict)


def count_strands(tokens: Sequence[Shards], longest: int | None = None) -> dict[tuple[str, int], StrandCount]:
    """Return what each strand holds, by (source, dataset) in this order.

    Raises:
        StreamError: documents have no source; or one has more than ``longest`` tokens, where that is given.
    """
    counts: dict[tuple[str, int], StrandCount] = {}
    for dataset, shards in enumerate(tokens):
        for part in shards:
            names = part.schema.names
            if missing := [name for name in ("source", "token_length", "tokens") if name not in names]:
                raise StreamError(f"{part.name} has the columns {names}, expected encoded documents with {missing}")
            row = 0
            for batch in part.batches(["source", "token_length"]):
                if batch.column("source").null_count:
                    raise StreamError(f"{part.name}: a document has no source; shards are interleaved by source")
                coded = batch.column("source").cast(pa.string()).dictionary_encode()
                if longest is not None:
                    _require_short(part, row, batch.column("token_length").to_numpy(), longest)
                row += batch.num_rows
                sums = np.zeros((2, len(coded.dictionary)), np.int64)
                codes = coded.indices.to_numpy()
                np.add.at(sums[0], codes, 1)
                np.add.at(sums[1], codes, batch.column("token_length").to_numpy().astype(np.int64) + 1)
                for source, documents, total in zip(coded.dictionary.to_pylist(), *sums.tolist(), strict=True):
                    count = counts.setdefault((source, dataset), StrandCount())
                    count.parts.setdefault(part.name, count.tokens)
                    count.documents += documents
                    count.tokens += total
    for (source, _), count in counts.items():
        if count.tokens >= _MOST_TOKENS:
            raise StreamError(f"source {source!r} has {count.tokens:,} tokens, expected fewer than {_MOST_TOKENS:,}")
    return dict(sorted(counts.items()))


def _require_short(part: Part, first_row: int, lengths: np.ndarray, longest: int) -> None:
    """Refuse a document that no shard can hold whole, by its address."""
    if not (too_long := lengths >= longest).any():  # EOS comes on top
        return
    number = int(np.argmax(too_long))
    names = [name for name in ("id", *ADDRESS_COLUMNS) if name in part.schema.names]
    row = next(part.batches(names, first_row=first_row + number))
    address = ", ".join(f"{name} {row.column(name)[0].as_py()!r}" for name in names)
    raise StreamError(
        f"{part.name} row {first_row + number} ({address}) has {int(lengths[number]) + 1:,} tokens with EOS, and a "
        f"shard {longest:,} (packing.shard_size_tokens): no shard holds it whole. Raise packing.shard_size_tokens, or "
        "set packing.cross_document_boundary to true"
    )


@dataclass(frozen=True)
class _PartOfStrands:
    """A part of a dataset, and the file of each source that it holds, by name."""

    dataset: int
    part: Part
    files: Mapping[str, Path]

    @property
    def name(self) -> str:
        return self.part.name


def _in_turn(
    tokens: Sequence[Shards], counts: Mapping[tuple[str, int], StrandCount], scratch: Path
) -> list[_PartOfStrands]:
    """Return the parts that hold documents, in the order in which `_merged` comes to them."""
    found = []
    for dataset, shards in enumerate(tokens):
        for part in shards:
            strands = [
                ((count.parts[part.name] << 60) // max(1, count.tokens), number, source)
                for number, ((source, of), count) in enumerate(counts.items())
                if of == dataset and part.name in count.parts
            ]
            if strands:
                files = {source: scratch / f"{dataset}-{part.name}-{number}.arrow" for _, number, source in strands}
                found.append((min(strands), _PartOfStrands(dataset, part, files)))
    return [of for _, of in sorted(found, key=lambda turn: turn[0])]


@dataclass(frozen=True)
class _OrderPart:
    """Orders the rows of a part by (source, place in the permutation), and writes them source by source."""

    seed: int
    memory: int
    scratch: Path

    def __call__(self, of: _PartOfStrands) -> _PartOfStrands:
        import pyarrow.compute as pc  # here and below: it costs 0.07 s, and who reads an index needs none of it

        part, value_set = of.part, pa.array(of.files, pa.string())
        codes = np.concatenate(
            [
                pc.index_in(batch.column("source").cast(pa.string()), value_set=value_set).to_numpy()
                for batch in part.batches(["source"])
            ]
        )
        position = destinations(numpy_generator(self.seed, of.dataset, part.index).permutation(part.rows))
        ranks = destinations(np.lexsort((position, codes)))
        with closing(in_order(_ids(part), ranks, memory=self.memory, scratch=self.scratch)) as ordered:
            rows = _Rows(ordered)
            for count, path in zip(np.bincount(codes).tolist(), of.files.values(), strict=True):
                rows.write(count, path)
        return of


class _StrandFiles:
    """The documents of each part in order, in one file a source, written before the first of its strands gets there."""

    def __init__(self, ordered: Iterator[_PartOfStrands]) -> None:
        self._ordered = ordered
        self._written: dict[tuple[int, str], _PartOfStrands] = {}

    def documents(self, source: str, dataset: int, parts: Iterable[str]) -> Generator[pa.Array, None, None]:
        """Yield the ids of the documents of a strand in its order, as arrays of lists."""
        for name in parts:
            while (dataset, name) not in self._written:
                of = next(self._ordered)
                self._written[of.dataset, of.name] = of
            path = self._written[dataset, name].files[source]
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
                for batch in batches:
                    yield batch.column(0)
            path.unlink()


class _Rows:
    """Rows that are written to one file after the other."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self._left = batches, next(batches)

    def write(self, count: int, path: Path) -> None:
        """Write the next ``count`` rows, at least one, as an Arrow stream."""
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, self._left.schema) as writer:
            while count:
                if not self._left.num_rows:
                    self._left = next(self._batches)
                piece = self._left.slice(0, count)
                writer.write_batch(piece)
                self._left = self._left.slice(piece.num_rows)
                count -= piece.num_rows


def _ids(part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the ids of the documents of a part; each has ``token_length`` and EOS."""
    import pyarrow.compute as pc

    row = 0
    for batch in part.batches(["token_length", "tokens"]):
        found = pc.fill_null(pc.list_value_length(batch.column("tokens")), 0).to_numpy(zero_copy_only=False)
        expected = pc.fill_null(batch.column("token_length"), -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        if (wrong := (found != expected) | (found < 1)).any():
            i = int(np.argmax(wrong))
            raise StreamError(
                f"{part.name} row {row + i}: {found[i]} tokens, expected token_length + 1 = {expected[i]}. Encode the "
                "documents again."
            )
        row += batch.num_rows
        yield batch.select(["tokens"])


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


def interleaved(
    tokens: Sequence[Shards],
    counts: Mapping[tuple[str, int], StrandCount],
    seed: int,
    memory: int,
    folder: Path,
    ranges: RangeMap,
) -> Generator[tuple[np.ndarray, np.ndarray, np.ndarray], None, None]:
    """Yield all documents in order, some at a time: their ids one after the other, where each ends in them, and the
    number of the strand of each.

    Args:
        counts: what `count_strands` gave; strands are numbered in this order.
        seed: of the order of documents in parts.
        memory: bytes for rows in memory, in all processes together.
        ranges: where parts are read and put in order.

    Raises:
        StreamError: a document is not what its ``token_length`` says.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="strands-", dir=folder)))
        order = _OrderPart(seed, memory // ranges.workers, scratch)
        files = _StrandFiles(stack.enter_context(closing(ranges(order, _in_turn(tokens, counts, scratch)))))
        strands = [
            _Strand(stack.enter_context(closing(files.documents(source, dataset, count.parts))), count.tokens)
            for (source, dataset), count in counts.items()
        ]
        for documents, strand_of in _merged(strands):
            yield documents.flatten().to_numpy(), np.cumsum(_sizes(documents)), strand_of


def _merged(strands: Sequence[_Strand]) -> Iterator[tuple[pa.Array, np.ndarray]]:
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
    import pyarrow.compute as pc

    return np.asarray(pc.list_value_length(documents).to_numpy(zero_copy_only=False), np.int64)
