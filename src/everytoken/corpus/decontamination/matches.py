"""Matches: the n-grams of evaluation files that documents have, and where.

The first of three steps, part by part and exact, see `everytoken.corpus.decontamination.evaluation_ngrams`;
`everytoken.corpus.decontamination.contamination` has the other two.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypedDict

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS
from everytoken.arrays import Integers
from everytoken.corpus.decontamination.evaluation_ngrams import EvaluationNgrams
from everytoken.corpus.decontamination.word_blocks import word_blocks
from everytoken.corpus.decontamination.words import word_spans
from everytoken.corpus.documents import DOCUMENTS
from everytoken.outofcore import begins
from everytoken.shards import Artifact, Part, Rows, versioned

NAMED = [DOCUMENTS.field(name) for name in (*ADDRESS_COLUMNS, "id")]
_MATCH = pa.struct(
    [
        pa.field("ngram", pa.int64(), False),  # its number in the index of evaluation n-grams
        pa.field("times", pa.int64(), False),
        pa.field("start", pa.int64(), False),  # where it is first, in code points of the text
        pa.field("end", pa.int64(), False),
    ]
)
MATCHES = pa.schema(
    [
        pa.field("document", pa.int64(), False),  # number of the document in its part
        *NAMED,
        pa.field("ngrams", pa.int64(), False),  # of the document
        pa.field("matches", pa.list_(pa.field("item", _MATCH, False)), False),  # in the order of the text
    ]
)


class MatchCounts(TypedDict):
    """Statistics of `find_matches`."""

    rows: int
    ngrams: int
    matching: int


@versioned("find_matches", 1)
def find_matches(part: Part, *, evaluation: Artifact) -> Rows:
    """Return the documents of a part that have n-grams of the evaluation files, of schema `MATCHES`.

    Args:
        part: documents, with columns text, source, shard_index, row, id.

    Returns:
        Statistics: ``rows`` of the part, ``ngrams`` of all its documents, ``matching`` documents.
    """
    return Rows(MATCHES, _matching(part, evaluation))


def _matching(part: Part, evaluation: Artifact) -> Generator[pa.RecordBatch, None, MatchCounts]:
    index = EvaluationNgrams(evaluation)
    start = total = matching = 0
    for batch in part.batches(["text", *(field.name for field in NAMED)]):
        words, found = _scan(batch.column("text"), index)
        if len(found):
            made = _match_rows(batch, start, words, found, index.ngram)
            matching += made.num_rows
            yield made
        total += int(_ngrams(words, index.ngram).sum())
        start += batch.num_rows
    return {"rows": start, "ngrams": total, "matching": matching}


def _scan(texts: pa.Array, index: EvaluationNgrams) -> tuple[Integers, Integers]:
    """Return the words of each text, int64 (n,), and what is found: text, n-gram, first word in it, int64 (k, 3)."""
    ends, found = np.empty(len(texts), np.int64), [np.empty((0, 2), np.int64)]
    for block in word_blocks(texts.cast(pa.large_binary()).to_pylist(), index.ngram):
        ends[block.first_text : block.first_text + len(block.separators)] = block.first_word + block.separators
        places, ngrams = index.find(block)
        found.append(np.stack([block.first_word + places, ngrams], axis=1))
    places, ngrams = np.concatenate(found).T
    starts = np.append(0, ends + 1)
    of_texts = np.searchsorted(ends, places)
    return ends - starts[:-1], np.stack([of_texts, ngrams, places - starts[of_texts]], axis=1)


def _ngrams(words: Integers, n: int) -> Integers:
    return np.maximum(words - n + 1, 0)


def _match_rows(batch: pa.RecordBatch, start: int, words: Integers, found: Integers, n: int) -> pa.RecordBatch:
    """Return the rows of the documents of a batch that match; its first has the number ``start`` in the part."""
    found, times = _each_once(found)
    documents, firsts = np.unique(found[:, 0], return_index=True)
    offsets = np.append(firsts, len(found))
    chosen = batch.take(pa.array(documents))
    spans = _spans(chosen.column("text").to_pylist(), words[documents], found[:, 2], np.diff(offsets), n)
    columns = (found[:, 1], times, *spans)
    matches = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(_MATCH))
    made = {
        **{field.name: chosen.column(field.name) for field in NAMED},
        "document": pa.array(documents + start),
        "ngrams": pa.array(_ngrams(words[documents], n)),
        "matches": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), matches, MATCHES.field("matches").type),
    }
    return pa.record_batch([made[field.name] for field in MATCHES], MATCHES)


def _each_once(found: Integers) -> tuple[Integers, Integers]:
    """Return each n-gram of a document once, where it is first, in the order of the text; and how often it is there.

    Args:
        found: document, n-gram and first word, int64 (k, 3).
    """
    found = found[np.argsort(found[:, 0] * (found[:, 1].max() + 1) + found[:, 1])]
    starts = np.flatnonzero(begins(found[:, :2]))
    times = np.diff(starts, append=len(found))
    firsts = np.column_stack([found[starts, :2], np.minimum.reduceat(found[:, 2], starts)])
    by_place = np.argsort(firsts[:, 0] * (firsts[:, 2].max() + 1) + firsts[:, 2])
    return firsts[by_place], times[by_place]


def _spans(texts: list[str], words: Integers, firsts: Integers, matches: Integers, n: int) -> tuple[Integers, Integers]:
    """Return where n-grams begin and end, in code points of their text, int64 (k,) each; all texts in one pass.

    Args:
        words: of each text, int64 (n,).
        firsts: first word of each n-gram, int64 (k,), those of one text after those of the other.
        matches: how many n-grams each text has, int64 (n,).
    """
    lengths = np.array([len(text) + 1 for text in texts])
    firsts = np.repeat(np.cumsum(words) - words, matches) + firsts
    offsets = np.repeat(np.cumsum(lengths) - lengths, matches)
    starts, ends = word_spans(" ".join(texts), np.concatenate([firsts, firsts + n - 1]))
    return starts[: len(firsts)] - offsets, ends[len(firsts) :] - offsets
