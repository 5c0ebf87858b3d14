"""Making the arrays of `everytoken.corpus.decontamination.evaluation_ngrams`, in memory: evaluation sets are small."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Hashes, Integers
from everytoken.corpus.decontamination.evaluation_files import EvaluationFile, read_examples
from everytoken.corpus.decontamination.evaluation_ngrams import (
    FILES,
    WORDS,
    EvaluationStatistics,
    FileCounts,
    NgramArrays,
    table_shift,
)
from everytoken.corpus.decontamination.word_blocks import same_bytes, word_blocks
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.reading import ReadingLimits
from everytoken.outofcore import begins
from everytoken.shards import Built, canonical_json, versioned, write_text

_BITS_PER_NGRAM = 32
_LEAST_TABLE = 10  # log2 of its bits
_BYTES_PER_NGRAM = 150  # while the arrays are made, measured


@versioned("index_evaluation", 1)
def index_nothing(folder: Path, *, ngram: None, files: Mapping[str, Any], kinds: Mapping[str, str]) -> Built:
    """Write no file: what `index_evaluation` is where there are no evaluation files; all parameters are empty."""
    return Built(EvaluationStatistics(ngram=None, files={}, distinct=0))


@versioned("index_evaluation_in_memory", 1, unrecorded=["limits", "max_ngrams"])
def index_evaluation(
    folder: Path,
    *,
    ngram: int,
    files: Mapping[str, EvaluationFile],
    kinds: Mapping[str, str],
    limits: ReadingLimits,
    max_ngrams: int,
) -> Built:
    """Index the n-grams of evaluation files; see `everytoken.corpus.decontamination.evaluation_ngrams`.

    Files: ``words.bin``, the normalised texts; ``files.json``, name and number of examples of each file; `NgramArrays`.

    Args:
        kinds: format of each file: what the recipe knows of its name.

    Returns:
        Statistics: ``ngram``; ``files`` by name with ``examples``, ``short_examples`` (all texts have fewer words than
        an n-gram, so nothing can be found of them), ``ngrams`` (places); ``distinct``.

    Raises:
        SelectionError: a file cannot be read (see `read_examples`), or has no n-gram at all; or there are too many.
    """
    started = time.perf_counter()
    of_texts, examples = array("q"), dict.fromkeys(sorted(files), 0)
    words, places = _gather(_texts(files, limits, of_texts, examples), ngram, max_ngrams)
    of_places = np.asarray(of_texts)[places.texts]
    counts = _counts(examples, of_places, ngram)
    firsts = _first_places(words, places)
    distinct = np.flatnonzero(firsts == np.arange(len(firsts)))
    distinct = distinct[np.argsort(places.hashes[distinct], kind="stable")]
    numbers = np.empty(len(firsts), np.int64)
    numbers[distinct] = np.arange(len(distinct))
    hashes = places.hashes[distinct]
    arrays = NgramArrays(
        hashes=hashes,
        begins=places.begins[distinct],
        sizes=places.sizes[distinct],
        firsts=of_places[distinct],
        places=np.stack([of_places, numbers[firsts]]),
        table=_bit_table(hashes),
    )
    for name, values in arrays._asdict().items():
        np.save(folder / f"{name}.npy", values)
    (folder / WORDS).write_bytes(words)
    entries = [{"name": name, "examples": count} for name, count in examples.items()]
    write_text(folder / FILES, canonical_json(entries) + "\n")
    statistics = EvaluationStatistics(ngram=ngram, files=counts, distinct=len(distinct))
    return Built(statistics, {"seconds": time.perf_counter() - started})


class _Places(NamedTuple):
    """Every place: hash of its n-gram, first byte and number of bytes in the words, number of the text; (p,) each."""

    hashes: Hashes
    begins: Integers
    sizes: Integers
    texts: Integers


def _texts(
    files: Mapping[str, EvaluationFile], limits: ReadingLimits, of_texts: array[int], examples: dict[str, int]
) -> Iterator[bytes]:
    """Yield all texts in UTF-8; append the number of each one's example, and count the examples of each file."""
    for name in examples:
        before = sum(examples.values())
        for example in read_examples(name, files[name], limits):
            for text in example.texts:
                of_texts.append(before + examples[name])
                yield text.encode("utf-8", "surrogatepass")
            examples[name] += 1


def _gather(texts: Iterator[bytes], n: int, max_ngrams: int) -> tuple[bytes, _Places]:
    """Return the normalised texts, and every place.

    Raises:
        SelectionError: there are more than ``max_ngrams``; beyond it they are only counted.
    """
    words, places = bytearray(), [_Places(np.empty(0, np.uint64), *(np.empty(0, np.int64) for _ in range(3)))]
    count = 0
    for block in word_blocks(texts, n):
        ngrams, of_texts = block.ngrams()
        count += len(ngrams)
        if count > max_ngrams:
            continue
        words += block.bytes[len(words) - block.first_byte :]
        begins, sizes = block.ranges(ngrams)
        places.append(_Places(block.hashes[ngrams], block.first_byte + begins, sizes, of_texts))
    if count > max_ngrams:
        raise SelectionError(
            f"the evaluation files have {count:,} n-grams, ingestion.max_evaluation_ngrams allows {max_ngrams:,}. "
            f"Raise it (an n-gram takes about {_BYTES_PER_NGRAM} bytes of memory), or leave files or fields out."
        )
    return bytes(words), _Places(*map(np.concatenate, zip(*places, strict=True)))


def _counts(examples: Mapping[str, int], of_places: Integers, n: int) -> dict[str, FileCounts]:
    """Count what each file has.

    Raises:
        SelectionError: a file has no n-gram.
    """
    ngrams = np.bincount(of_places, minlength=sum(examples.values()))
    counts, start = {}, 0
    for name, number in examples.items():
        of_file = ngrams[start : start + number]
        short = number - int(np.count_nonzero(of_file))
        if short == number:
            raise SelectionError(
                f"evaluation file {name!r}: none of its {number:,} examples has a text of {n} words, so "
                f"nothing can be found of it. Choose or join other fields, lower decontamination.ngram, or leave "
                f"the file out."
            )
        counts[name] = FileCounts(examples=number, short_examples=short, ngrams=int(of_file.sum()))
        start += number
    return counts


def _first_places(words: bytes, places: _Places) -> Integers:
    """Return of every place the first place that has the same n-gram, int64 (p,)."""
    order = np.argsort(places.hashes, kind="stable")
    begin = begins(places.hashes[order])
    firsts = np.empty(len(order), np.int64)
    firsts[order] = order[np.flatnonzero(begin)][np.cumsum(begin) - 1]
    again = np.flatnonzero(firsts != np.arange(len(firsts)))
    others = firsts[again]
    same = places.sizes[again] == places.sizes[others]
    same[same] = same_bytes(
        words, places.begins[again[same]], words, places.begins[others[same]], places.sizes[again[same]]
    )
    collided: dict[bytes, int] = {}  # n-grams that have the hash of another one: a handful among 10^9
    for place in again[~same].tolist():
        start = places.begins[place]
        firsts[place] = collided.setdefault(words[start : start + places.sizes[place]], place)
    return firsts


def _bit_table(hashes: Hashes) -> npt.NDArray[np.uint8]:
    size = 1 << max(_LEAST_TABLE, math.ceil(math.log2(_BITS_PER_NGRAM * len(hashes)))) - 3
    bits = hashes >> table_shift(size)
    table = np.zeros(size, np.uint8)
    np.bitwise_or.at(table, bits >> np.uint64(3), np.left_shift(np.uint8(1), (bits & np.uint64(7)).astype(np.uint8)))
    return table
