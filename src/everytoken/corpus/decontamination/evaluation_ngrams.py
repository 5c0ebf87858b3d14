"""The n-grams of evaluation files, in one sorted array that is mapped into memory.

The n-grams of all texts of all examples of all files are numbered as they stand (a *place*: 0, 1, ...); of places with
equal n-grams the first stands for all. The *distinct* ones are sorted by a 64-bit hash of their words, then by place; a
document's n-gram is looked up by its hash and then compared with the words themselves, so two n-grams of one hash are
never taken for each other.

A search reads a bit table first (32 to 64 bits an n-gram, so about one n-gram of ordinary text in forty goes on) and
then a few pages of the array. Bytes on disk: 36 to 40 a distinct n-gram, 16 a repeated one, 8 an example, and the
words. `everytoken.corpus.decontamination.evaluation_index` makes the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers
from everytoken.corpus.decontamination.words import Bytes, WordBlock, same_bytes
from everytoken.corpus.dedup import load_mapped
from everytoken.corpus.errors import SelectionError
from everytoken.shards import Artifact

WORDS, FILES, EXAMPLES = "words.bin", "files.json", "examples.npy"
HASHES, PLACES, BEGINS, LENGTHS, TABLE = "hashes.npy", "places.npy", "begins.npy", "lengths.npy", "table.npy"
REPEATS = "repeats.npy"
_ARRAYS = (EXAMPLES, HASHES, PLACES, BEGINS, LENGTHS, TABLE, REPEATS)
_BETWEEN_WORDS = ord(" ")


class NgramMatches(NamedTuple):
    """N-grams of a block that the files have, in order; int64 (k,) each.

    ``texts`` and ``words``: where each is in the block; ``ngrams``: its number among the distinct ones.
    """

    texts: Integers
    words: Integers
    ngrams: Integers


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
    """A made index, mapped into memory."""

    def __init__(self, artifact: Artifact) -> None:
        ngram = artifact.statistics_as(EvaluationStatistics)["ngram"]
        if ngram is None:
            raise SelectionError(f"{artifact.folder} has no n-grams: it was made without evaluation files")
        self.ngram = ngram
        # plain arrays over the mapped files: each access to a memmap makes another one
        arrays = {name: np.asarray(load_mapped(artifact.path(name))) for name in _ARRAYS}
        self.hashes: Hashes = arrays[HASHES]
        self.places: Integers = arrays[PLACES]
        self.repeats: Integers = arrays[REPEATS]
        self.examples: Integers = arrays[EXAMPLES]
        found = json.loads(artifact.path(FILES).read_text(encoding="utf-8"))
        self.names: list[str] = [entry["name"] for entry in found]
        self.first_examples = np.array([entry["first_example"] for entry in found], np.int64)
        self._words: Bytes = np.asarray(mapped(artifact.path(WORDS), np.uint8))
        self._begins, self._lengths, self._table = arrays[BEGINS], arrays[LENGTHS], arrays[TABLE]
        self._shift = _shift_of(self._table)

    def find(self, block: WordBlock) -> NgramMatches:
        """Return the n-grams of the texts of a block that the files have: every one, and no other."""
        bits = block.hashes >> self._shift
        marks = self._table[(bits >> np.uint64(3)).view(np.int64)] >> (bits & np.uint64(7)).astype(np.uint8)
        candidates, texts, words = block.locate(np.flatnonzero(marks & np.uint8(1)))
        hashes = block.hashes[candidates]
        order = np.argsort(hashes)  # in this order the search stays where it was
        at = np.empty(len(hashes), np.int64)
        at[order] = np.searchsorted(self.hashes, hashes[order])
        sizes = block.sizes(candidates)
        ngrams = np.full(len(candidates), -1, np.int64)
        left = np.arange(len(candidates))
        while len(left):
            left = left[at[left] < len(self.hashes)]
            left = left[self.hashes[at[left]] == hashes[left]]
            here = at[left]
            equal = self._lengths[here] == sizes[left]
            equal[equal] = self._same_words(here[equal], block, candidates[left[equal]])
            ngrams[left[equal]] = here[equal]
            left = left[~equal]
            at[left] += 1  # another n-gram of the same hash
        found = ngrams >= 0
        return NgramMatches(texts[found], words[found], ngrams[found])

    def _same_words(self, ngrams: Integers, block: WordBlock, in_block: Integers) -> npt.NDArray[np.bool_]:
        """Return whether n-grams of as many bytes have the same words; bool (k,), those of the block in order.

        Where text after text is the same, each n-gram has one word that the one before it has not: that is compared,
        and is right when the one before is.
        """
        begins_, last = self._begins[ngrams], in_block + self.ngram - 1
        follows = np.zeros(len(ngrams), np.bool_)
        follows[1:] = np.diff(in_block) == 1
        follows[1:] &= np.diff(begins_) == block.lengths[in_block[:-1]] + 1
        same = np.empty(len(ngrams), np.bool_)
        heads, others = np.flatnonzero(~follows), np.flatnonzero(follows)
        same[heads] = self._each_word_same(begins_[heads], block, in_block[heads])
        words = block.lengths[last[others]]
        starts = begins_[others] + self._lengths[ngrams[others]] - words
        same[others] = self._words[starts - 1] == _BETWEEN_WORDS
        same[others] &= same_bytes(self._words, starts, block.bytes, block.starts[last[others]], words)
        wrong = np.cumsum(~same)
        before: Integers = wrong[heads] - ~same[heads]  # wrong ones before the head of each row of texts
        after_wrong = same & (wrong > np.repeat(before, np.diff(heads, append=len(ngrams))))
        unsure = np.flatnonzero(after_wrong)
        same[unsure] = self._each_word_same(begins_[unsure], block, in_block[unsure])
        return same

    def _each_word_same(self, places: Integers, block: WordBlock, in_block: Integers) -> npt.NDArray[np.bool_]:
        same = np.ones(len(places), np.bool_)
        places = places.copy()
        left = np.arange(len(places))
        for word in range(self.ngram):
            there = in_block[left] + word
            lengths = block.lengths[there]
            equal = same_bytes(self._words, places[left], block.bytes, block.starts[there], lengths)
            places[left] += lengths + 1
            if word < self.ngram - 1:
                equal &= self._words[places[left] - 1] == _BETWEEN_WORDS
            same[left[~equal]] = False
            left = left[equal]
        return same

    def examples_of(self, ngrams: Integers) -> tuple[Integers, Integers]:
        """Return for n-grams the number of the file and of the example in it that has each first, int64 (k,) each."""
        # examples without n-grams begin where the next one does: the last of equal ones has it
        examples = np.searchsorted(self.examples[:-1], self.places[ngrams], side="right") - 1
        files = np.searchsorted(self.first_examples, examples, side="right") - 1
        return files, examples - self.first_examples[files]


def mapped(path: Path, kind: Any) -> Any:
    """Return a file of numbers, mapped into memory."""
    return np.memmap(path, kind, mode="r") if path.stat().st_size else np.empty(0, kind)


def _shift_of(table: Bytes) -> np.uint64:
    return np.uint64(64 - (len(table).bit_length() - 1 + 3))
