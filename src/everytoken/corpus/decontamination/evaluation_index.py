"""Making the index of `everytoken.corpus.decontamination.evaluation_ngrams`, out of core.

Nothing is held that grows with the files: places go to disk as they are read, repeats are found by
`everytoken.outofcore.grouping`, the distinct n-grams are spread over ranges of hashes and each range is sorted.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers
from everytoken.corpus.decontamination.evaluation_files import EvaluationFile, read_examples
from everytoken.corpus.decontamination.evaluation_ngrams import (
    BEGINS,
    EXAMPLES,
    FILES,
    HASHES,
    LENGTHS,
    PLACES,
    REPEATS,
    TABLE,
    WORDS,
    EvaluationStatistics,
    FileCounts,
    mapped,
)
from everytoken.corpus.decontamination.words import PADDING, TEXT_BLOCK_BYTES, Bytes, WordBlock, normalised, same_bytes
from everytoken.corpus.dedup import between
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.reading import ReadingLimits
from everytoken.outofcore import Scatter, begins, block_rows, find_repeats, slices
from everytoken.shards import Built, canonical_json, versioned, write_text

_BITS_PER_NGRAM = 32
_LEAST_TABLE = 10  # log2 of its bits


@versioned("index_evaluation", 1, unrecorded=["limits", "memory"])
def index_evaluation(
    folder: Path,
    *,
    ngram: int | None,
    files: Mapping[str, EvaluationFile],
    kinds: Mapping[str, str],
    limits: ReadingLimits,
    memory: int,
) -> Built:
    """Index the n-grams of evaluation files; see the module docstring.

    Files, all of them to be mapped into memory: ``words.bin``, the normalised texts, each with a line end, and 8 zero
    bytes; ``files.json``, names and the first example of each, and their number; ``examples.npy`` int64 (examples + 1,)
    the first place of each; ``hashes.npy`` uint64 (d,), sorted, and of the same n-grams ``places.npy`` int64 (d,),
    ``begins.npy`` int64 (d,) and ``lengths.npy`` int64 (d,), where their words are in ``words.bin``; ``repeats.npy``
    int64 (r, 2), (place, first place of this n-gram), sorted; ``table.npy`` uint8, the bit table.

    Args:
        folder: of the artifact.
        ngram: words of an n-gram; None when there are no files: then nothing is written.
        files: by name.
        kinds: format of each file: what the recipe knows of its name.
        limits: bounds of memory for reading.
        memory: bound for sorting, in bytes; the process itself needs about 200 MB more.

    Returns:
        Statistics: ``ngram``; ``files`` by name with ``examples``, ``short_examples`` (all texts have fewer words than
        an n-gram, so nothing can be found of them), ``ngrams`` (places); ``distinct``.

    Raises:
        SelectionError: a file cannot be read (see `read_examples`), or has no n-gram at all.
    """
    started = time.perf_counter()
    if ngram is None:
        return Built(EvaluationStatistics(ngram=None, files={}, distinct=0))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sorting-") as place:
        counts = _write_places(folder, Path(place), ngram, files, limits)
        written = _Places(folder, Path(place))
        repeats = _write_repeats(folder / REPEATS, written, memory, Path(place))
        distinct = written.count - len(repeats)
        _write_distinct(folder, written, repeats, distinct, memory, Path(place))
    statistics = EvaluationStatistics(ngram=ngram, files=counts, distinct=distinct)
    return Built(statistics, {"seconds": time.perf_counter() - started})


class _Places:
    """What is known of every place, in files: hash of its n-gram, first byte and number of bytes in the words."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._temporary, self._words = temporary, folder / WORDS
        self.count = (temporary / "hashes").stat().st_size // 8

    def hashes(self, start: int, stop: int) -> Hashes:
        """Read a range of hashes."""
        return np.fromfile(self._temporary / "hashes", np.uint64, stop - start, offset=8 * start)

    def ranges(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Read first bytes and sizes of a range of places."""
        files = (self._temporary / name for name in ("begins", "lengths"))
        firsts, sizes = (np.fromfile(file, np.int64, stop - start, offset=8 * start) for file in files)
        return firsts, sizes

    def same(self, places: Integers, others: Integers) -> npt.NDArray[np.bool_]:
        """Return whether the n-grams at places are those at other ones; what is mapped for it is let go of."""
        words = mapped(self._words, np.uint8)
        firsts, sizes = (mapped(self._temporary / name, np.int64) for name in ("begins", "lengths"))
        lengths = sizes[places]
        equal = np.asarray(lengths == sizes[others])
        equal[equal] = same_bytes(words, firsts[places[equal]], words, firsts[others[equal]], lengths[equal])
        return equal

    def ngram(self, place: int) -> bytes:
        """Return the words of the n-gram at a place."""
        (first,), (size,) = self.ranges(place, place + 1)
        return np.fromfile(self._words, np.uint8, int(size), offset=int(first)).tobytes()


def _write_places(
    folder: Path, temporary: Path, n: int, files: Mapping[str, EvaluationFile], limits: ReadingLimits
) -> dict[str, FileCounts]:
    """Write words and examples of all files, and hash and range of every place; return the counts of each file."""
    counts: dict[str, FileCounts] = {}
    entries = []
    with (
        (folder / WORDS).open("wb") as words,
        (temporary / "examples").open("wb") as examples,
        (temporary / "hashes").open("wb") as hashes,
        (temporary / "begins").open("wb") as begins_,
        (temporary / "lengths").open("wb") as lengths,
    ):
        place = number = 0
        hasher = _Hasher(n, hashes, begins_, lengths)
        for name, given in sorted(files.items()):
            entries.append({"name": name, "first_example": number})
            count = FileCounts(examples=0, short_examples=0, ngrams=0)
            for example in read_examples(name, given, limits):
                examples.write(place.to_bytes(8, "little"))
                before = place
                for text in example.texts:
                    found = normalised(text.encode("utf-8", "surrogatepass"))
                    ngrams = found.count(b" ") + 2 - n if found else 0
                    if ngrams > 0:
                        hasher.add(found, words.tell())
                        words.write(found + b"\n")
                        place += ngrams
                count["examples"] += 1
                count["short_examples"] += place == before
                count["ngrams"] += place - before
            if not count["ngrams"]:
                raise SelectionError(
                    f"evaluation file {name!r}: none of its {count['examples']:,} examples has a text of {n} words, so "
                    f"nothing can be found of it. Choose or join other fields, lower decontamination.ngram, or leave "
                    f"the file out."
                )
            counts[name] = count
            number += count["examples"]
        hasher.flush()
        words.write(PADDING)
        examples.write(place.to_bytes(8, "little"))
    np.save(folder / EXAMPLES, mapped(temporary / "examples", np.dtype("<i8")))
    write_text(folder / FILES, canonical_json(entries) + "\n")
    return counts


class _Hasher:
    """Gathers texts into blocks, and writes hash, begin and length of every n-gram in order."""

    def __init__(self, n: int, hashes: IO[bytes], begins_: IO[bytes], lengths: IO[bytes]) -> None:
        self._n, self._files = n, (hashes, begins_, lengths)
        self._texts: list[bytes] = []
        self._offsets: list[int] = []
        self._bytes = 0

    def add(self, text: bytes, offset: int) -> None:
        """Add a normalised text of at least one n-gram that begins at this byte of the words."""
        self._texts.append(text)
        self._offsets.append(offset)
        self._bytes += len(text)
        if self._bytes >= TEXT_BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered."""
        if not self._texts:
            return
        block = WordBlock(self._texts, self._n)
        ngrams, texts, _ = block.locate(np.arange(len(block.hashes)))
        found, lengths = block.starts[ngrams], block.sizes(ngrams)
        moved = np.array(self._offsets) - block.starts[block.first_words]
        for file, column in zip(self._files, (block.hashes[ngrams], found + moved[texts], lengths), strict=True):
            file.write(np.ascontiguousarray(column).data)
        self._texts, self._offsets, self._bytes = [], [], 0


def _write_repeats(path: Path, written: _Places, memory: int, temporary: Path) -> Integers:
    """Write (place, first place) of every place whose n-gram an earlier one has; return them mapped into memory."""
    count = written.count
    grouping = temporary / "grouping"
    grouping.mkdir()
    keys = (
        (np.arange(start, stop), written.hashes(start, stop)[:, None].view(np.int64)) for start, stop in slices(count)
    )
    pairs = find_repeats(keys, 1, count, count, memory, grouping)
    others: dict[bytes, int] = {}  # n-grams that have the hash of another one: a handful among 10^9
    filled = 0
    with (temporary / "repeats").open("wb") as file:
        for start, stop in slices(len(pairs)):
            some = np.array(pairs[start:stop])
            places, firsts = some.T
            equal = written.same(places, firsts)
            for row in np.flatnonzero(~equal).tolist():
                place = int(places[row])
                first = others.setdefault(written.ngram(place), place)
                some[row, 1], equal[row] = first, first != place
            file.write(some[equal].data)
            filled += int(np.count_nonzero(equal))
    repeats = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(filled, 2))
    kept = mapped(temporary / "repeats", np.int64).reshape(-1, 2)
    for start, stop in slices(filled):
        repeats[start:stop] = kept[start:stop]
    repeats.flush()
    return np.asarray(repeats)


def _write_distinct(
    folder: Path, written: _Places, repeats: Integers, distinct: int, memory: int, temporary: Path
) -> None:
    """Write hashes, places and ranges of the distinct n-grams, sorted by hash and place, and the bit table."""
    at_once = block_rows(4, memory)
    log_buckets = max(0, math.ceil(math.log2(2 * distinct / at_once)))
    log_bits = max(_LEAST_TABLE, log_buckets + 3, math.ceil(math.log2(_BITS_PER_NGRAM * distinct)))

    def bucket_of(rows: Integers) -> Integers:
        return _first_bits(rows[:, 0].view(np.uint64), log_buckets)

    scatter = Scatter(temporary / "distinct", 4, memory, 1 << log_buckets, bucket_of)
    for start, stop in slices(written.count):
        places = np.arange(start, stop)
        is_first = ~np.isin(places, between(repeats, start, stop)[:, 0])
        columns = (written.hashes(start, stop).view(np.int64), places, *written.ranges(start, stop))
        scatter.add(np.stack([column[is_first] for column in columns], axis=1))
    scatter.release()
    kinds = {HASHES: np.uint64, PLACES: np.int64, BEGINS: np.int64, LENGTHS: np.int64}
    with ExitStack() as stack:
        # not mapped into memory: what is written would count as memory of this process
        files = [stack.enter_context(_array_file(folder / name, kind, distinct)) for name, kind in kinds.items()]
        table = stack.enter_context(_array_file(folder / TABLE, np.uint8, 1 << (log_bits - 3)))
        for bucket in range(1 << log_buckets):
            rows = np.concatenate([np.empty((0, 4), np.int64), *scatter.chunks(bucket, at_once)])
            rows = rows[np.lexsort((rows[:, 1], rows[:, 0].view(np.uint64)))]
            for file, column in zip(files, rows.T, strict=True):
                file.write(np.ascontiguousarray(column).data)
            bits = _first_bits(rows[:, 0].view(np.uint64), log_bits)
            size = 1 << (log_bits - log_buckets - 3)
            table.write(_marked(bits, bucket * size, size).data)


@contextmanager
def _array_file(path: Path, kind: Any, count: int) -> Iterator[IO[bytes]]:
    """Open a ``.npy`` file of a column whose values are then written in order."""
    with path.open("wb") as file:
        description = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, description)
        yield file


def _first_bits(hashes: Hashes, count: int) -> Integers:
    return (hashes >> np.uint64(64 - count)).view(np.int64) if count else np.zeros(len(hashes), np.int64)


def _marked(bits: Integers, first: int, size: int) -> Bytes:
    """Return bytes ``first`` to ``first + size`` of the table, in which these bits are set; they are sorted."""
    table = np.zeros(size, np.uint8)
    places = (bits >> 3) - first
    starts = np.flatnonzero(begins(places))
    if len(starts):
        marks = np.left_shift(np.uint8(1), (bits & 7).astype(np.uint8))
        table[places[starts]] = np.bitwise_or.reduceat(marks, starts)
    return table
