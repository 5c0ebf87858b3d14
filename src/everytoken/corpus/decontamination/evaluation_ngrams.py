"""The n-grams of evaluation files, as one array of hashes that is sorted.

The n-grams of all texts of all examples of all files are numbered as they stand: a *place*. Of places with equal
n-grams the first stands for all: these are the *distinct* ones, sorted by a 64-bit hash of their words, then by place.
A document's n-gram is looked up by its hash and then compared with the words themselves, so two n-grams of one hash are
never taken for each other.

A search reads a bit table first (32 to 64 bits an n-gram, which about 1 in 40 n-grams of ordinary text pass). All
workers of a machine share the arrays, which are mapped into memory.
"""

from __future__ import annotations

import json
import mmap
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers
from everytoken.corpus.decontamination.word_blocks import WordBlock, same_bytes
from everytoken.corpus.dedup import load_mapped
from everytoken.corpus.errors import SelectionError
from everytoken.shards import Artifact

FILES, WORDS = "files.json", "words.bin"


class NgramArrays(NamedTuple):
    """The arrays of the index, a file ``<name>.npy`` each.

    Attributes:
        hashes: of the distinct n-grams, uint64 (d,), sorted.
        begins, sizes: first byte in the words, and number of bytes, of the same n-grams, int64 (d,).
        firsts: the example that has each first, int64 (d,).
        places: example and n-gram of every place, int64 (2, p).
        table: a bit for the first bits of each hash, uint8.
    """

    hashes: Hashes
    begins: Integers
    sizes: Integers
    firsts: Integers
    places: Integers
    table: npt.NDArray[np.uint8]


class FileCounts(TypedDict):
    """Of an evaluation file; of ``short_examples`` all texts have fewer words than an n-gram."""

    examples: int
    short_examples: int
    ngrams: int


class EvaluationStatistics(TypedDict):
    """Statistics of `index_evaluation`; without files ``ngram`` is None."""

    ngram: int | None
    files: dict[str, FileCounts]
    distinct: int


class EvaluationNgrams:
    """What `everytoken.corpus.decontamination.evaluation_index.index_evaluation` made.

    Attributes:
        first_examples: number of the first example of each file, and of all examples, int64 (files + 1,).
        arrays: plain arrays over the mapped files, since each access to a memmap makes another one.
    """

    def __init__(self, artifact: Artifact) -> None:
        ngram = artifact.statistics_as(EvaluationStatistics)["ngram"]
        if ngram is None:
            raise SelectionError(f"{artifact.folder} has no n-grams: it was made without evaluation files")
        self.ngram = ngram
        entries = json.loads(artifact.path(FILES).read_text(encoding="utf-8"))
        self.names = [entry["name"] for entry in entries]
        self.first_examples = np.cumsum([0, *(entry["examples"] for entry in entries)])
        paths = [artifact.path(f"{name}.npy") for name in NgramArrays._fields]
        self.arrays = NgramArrays(*(np.asarray(load_mapped(path)) for path in paths))
        with artifact.path(WORDS).open("rb") as file:
            self._words = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def find(self, block: WordBlock) -> tuple[Integers, Integers]:
        """Return the n-grams of a block that the files have: their first words, and numbers among the distinct ones.

        Returns:
            Two arrays int64 (k,), in the order of the block.
        """
        sorted_hashes, table = self.arrays.hashes, self.arrays.table
        bits = block.hashes >> table_shift(len(table))
        marks = table[(bits >> np.uint64(3)).view(np.int64)] >> (bits & np.uint64(7)).astype(np.uint8)
        candidates = np.flatnonzero(marks & np.uint8(1))
        hashes = block.hashes[candidates]
        order = np.argsort(hashes)  # in this order the search stays where it was
        at = np.empty(len(hashes), np.int64)
        at[order] = np.searchsorted(sorted_hashes, hashes[order])
        ngrams = np.full(len(candidates), -1, np.int64)
        left = np.arange(len(candidates))
        while len(left):
            left = left[at[left] < len(sorted_hashes)]
            left = left[sorted_hashes[at[left]] == hashes[left]]
            equal = self._same_words(at[left], block, candidates[left])
            ngrams[left[equal]] = at[left[equal]]
            left = left[~equal]
            at[left] += 1  # another n-gram of the same hash
        found = np.flatnonzero(ngrams >= 0)
        return candidates[found], ngrams[found]

    def _same_words(self, ngrams: Integers, block: WordBlock, in_block: Integers) -> npt.NDArray[np.bool_]:
        """Return whether n-grams have the words of those in the block, bool (k,).

        Where text after text is the same, the ranges of one n-gram after the other overlap: all are compared as one.
        """
        starts, sizes = block.ranges(in_block)
        same: npt.NDArray[np.bool_] = self.arrays.sizes[ngrams] == sizes
        starts, sizes, begins = starts[same], sizes[same], self.arrays.begins[ngrams[same]]
        follows = (np.diff(in_block[same]) == 1) & (np.diff(begins) == np.diff(starts))
        heads = np.flatnonzero(np.append(True, ~follows)[: len(starts)])
        lasts = np.append(heads[1:], len(starts))[: len(heads)] - 1
        whole = starts[lasts] + sizes[lasts] - starts[heads]
        equal = np.repeat(same_bytes(self._words, begins[heads], block.bytes, starts[heads], whole), lasts - heads + 1)
        unsure = np.flatnonzero(~equal)
        equal[unsure] = same_bytes(self._words, begins[unsure], block.bytes, starts[unsure], sizes[unsure])
        same[same] = equal
        return same

    def examples_of(self, ngrams: Integers) -> tuple[Integers, Integers]:
        """Return for n-grams the number of the file and of the example in it that has each first, int64 (k,) each."""
        examples = self.arrays.firsts[ngrams]
        files = np.searchsorted(self.first_examples, examples, side="right") - 1
        return files, examples - self.first_examples[files]


def table_shift(size: int) -> np.uint64:
    """Return by how much a hash is shifted to the number of its bit in a table of so many bytes, a power of two."""
    return np.uint64(64 - (size.bit_length() - 1 + 3))
