"""Contamination: which documents hold n-grams of evaluation files, where, and of which examples.

In three steps. `find_matches` looks at the text of every document, part by part: the n-grams of it that the files have
(`everytoken.corpus.decontamination.evaluation_ngrams`, exact). `count_documents` counts over the whole corpus in how
many documents each of these n-grams is. `judge_part` leaves out those that are in more than ``max_documents`` (GPT-3
ignored "13-grams that matched more than 10 training documents, as inspection showed the majority of these to contain
common cultural phrases, legal boilerplate, or similar", Brown et al. 2020, appendix C), and says of each document that
has any left how many, which share of its n-grams, and where the first is.

Documents that are dropped as duplicates count nowhere: a text that is copied eleven times is in one document. GPT-3 cut
200 characters around a match out of the document; here documents are dropped whole or stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS
from everytoken.arrays import Integers
from everytoken.corpus.decontamination.evaluation_files import Decontamination
from everytoken.corpus.decontamination.evaluation_ngrams import EvaluationNgrams, EvaluationStatistics, FileCounts
from everytoken.corpus.decontamination.words import TEXT_BLOCK_BYTES, WordBlock, runs, word_spans
from everytoken.corpus.dedup import Duplicates, between, load_mapped
from everytoken.corpus.documents import DOCUMENTS
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.statistics import as_written
from everytoken.outofcore import begins, slices
from everytoken.shards import Artifact, Built, Part, Rows, Shards, versioned

_COUNTS, _FOUND, _STARTS = "documents.npy", "examples_found.npy", "starts.npy"

_INT64 = pa.int64()
_NAMED = [DOCUMENTS.field(name) for name in (*ADDRESS_COLUMNS, "id")]
_MATCH = pa.struct(
    [
        pa.field("ngram", _INT64, False),  # its number in the index of evaluation n-grams
        pa.field("times", _INT64, False),
        pa.field("start", _INT64, False),  # where it is first, in code points of the text
        pa.field("end", _INT64, False),
    ]
)
MATCHES = pa.schema(
    [
        pa.field("document", _INT64, False),  # number of the document in its part
        *_NAMED,
        pa.field("ngrams", _INT64, False),  # of the document
        pa.field("matches", pa.list_(pa.field("item", _MATCH, False)), False),  # in the order of the text
    ]
)
CONTAMINATION = pa.schema(
    [
        pa.field("document", _INT64, False),
        *_NAMED,
        pa.field("contaminated", pa.bool_(), False),
        pa.field("ngrams", _INT64, False),
        pa.field("matching_ngrams", _INT64, False),  # of these, every occurrence
        pa.field("share", pa.float64(), False),
        pa.field("start", _INT64, False),  # of the first match, in code points of the text
        pa.field("end", _INT64, False),
        pa.field("evaluation", pa.string(), False),  # file that has it first
        pa.field("example", _INT64, False),  # number of the example in it
    ]
)

WORST = 10


class MatchCounts(TypedDict):
    """Statistics of `find_matches`."""

    rows: int
    ngrams: int
    matching: int


class FileFound(FileCounts):
    """Counts of an evaluation file, and how many of its examples are in the corpus."""

    examples_found: int
    share: float


class NgramStatistics(TypedDict):
    """Statistics of `count_documents`."""

    found: int
    ignored: int
    files: dict[str, FileFound]


class JudgedDocuments(TypedDict):
    """Documents that match, and those of them that are contaminated."""

    matching: int
    contaminated: int


class WorstDocument(TypedDict):
    """A row of `CONTAMINATION` without the number of its document."""

    source: str
    shard_index: int
    row: int
    id: str | None
    contaminated: bool
    ngrams: int
    matching_ngrams: int
    share: float
    start: int
    end: int
    evaluation: str
    example: int


class JudgedStatistics(TypedDict):
    """Statistics of `judge_part`."""

    by_source: dict[str, JudgedDocuments]
    by_evaluation: dict[str, JudgedDocuments]
    worst: list[WorstDocument]


@versioned("find_matches", 1)
def find_matches(part: Part, *, evaluation: Artifact) -> Rows:
    """Return the documents of a part that have n-grams of the evaluation files, of schema `MATCHES`.

    Args:
        part: documents, with columns text, source, shard_index, row, id.
        evaluation: from `everytoken.corpus.decontamination.evaluation_index.index_evaluation`.

    Returns:
        Statistics: ``rows`` of the part, ``ngrams`` of all its documents, ``matching`` documents.
    """
    return Rows(MATCHES, _matching(part, evaluation))


def _matching(part: Part, evaluation: Artifact) -> Generator[pa.RecordBatch, None, MatchCounts]:
    index = EvaluationNgrams(evaluation)
    start = total = matching = 0
    for batch in part.batches(["text", *(field.name for field in _NAMED)]):
        texts = batch.column("text").cast(pa.large_binary())
        words, found = _scan(texts, index)
        if len(found):
            made = _match_rows(batch, start, words, found, index.ngram)
            matching += made.num_rows
            yield made
        total += int(_ngrams(words, index.ngram).sum())
        start += batch.num_rows
    return {"rows": start, "ngrams": total, "matching": matching}


def _scan(texts: pa.Array, index: EvaluationNgrams) -> tuple[Integers, Integers]:
    """Return the words of each text, int64 (n,), and what is found: document, n-gram, first word, int64 (k, 3)."""
    words = np.zeros(len(texts), np.int64)
    found = [np.empty((0, 3), np.int64)]
    for gathered in _blocks(texts, index.ngram):
        documents, repeated = np.array([run[:2] for run in gathered]).T
        block = WordBlock([run[2] for run in gathered], index.ngram)
        sizes = block.words_of_texts()
        before = np.cumsum(sizes - repeated) - (sizes - repeated)
        before -= before[np.searchsorted(documents, documents)]  # in runs of the same document
        firsts = words[documents] + before - repeated
        words[documents] = firsts + sizes  # of several runs the last one has the say
        matches = index.find(block)
        place = firsts[matches.texts] + matches.words
        found.append(np.stack([documents[matches.texts], matches.ngrams, place], axis=1))
    return words, np.concatenate(found)


def _blocks(texts: pa.Array, n: int) -> Iterator[list[tuple[int, int, bytes]]]:
    """Yield runs of some texts that are looked at together: document, words that the run before has too, the run."""
    gathered: list[tuple[int, int, bytes]] = []
    size = 0
    for document, text in enumerate(texts.to_pylist()):
        for repeated, run in runs(text, n):
            gathered.append((document, repeated, run))
            size += len(run)
            if size >= TEXT_BLOCK_BYTES:
                yield gathered
                gathered, size = [], 0
    if gathered:
        yield gathered


def _ngrams(words: Integers, n: int) -> Integers:
    return np.maximum(words - n + 1, 0)


def _match_rows(batch: pa.RecordBatch, start: int, words: Integers, found: Integers, n: int) -> pa.RecordBatch:
    """Return the rows of the documents of a batch that match; its first has the number ``start`` in the part."""
    found, times = _each_once(found)
    documents, firsts = np.unique(found[:, 0], return_index=True)
    offsets = np.append(firsts, len(found))
    chosen = batch.take(pa.array(documents))
    starts, ends = _spans(chosen.column("text"), words[documents], found[:, 2], np.diff(offsets), n)
    columns = (found[:, 1], times, starts, ends)
    matches = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(_MATCH))
    made = {
        **{field.name: chosen.column(field.name) for field in _NAMED},
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
    by_ngram = np.argsort(found[:, 0] * (found[:, 1].max() + 1) + found[:, 1])
    found = found[by_ngram]
    starts = np.flatnonzero(begins(found[:, :2]))
    times = np.diff(starts, append=len(found))
    firsts = np.minimum.reduceat(found[:, 2], starts)
    found = found[starts]
    found[:, 2] = firsts
    by_place = np.argsort(found[:, 0] * (firsts.max() + 1) + firsts)
    return found[by_place], times[by_place]


def _spans(texts: pa.Array, words: Integers, firsts: Integers, matches: Integers, n: int) -> tuple[Integers, Integers]:
    """Return where n-grams begin and end, in code points of their text, int64 (k,) each; all texts in one pass.

    Args:
        texts: that match, with their number of words, int64 (n,).
        words: see there.
        firsts: first word of each n-gram, int64 (k,), those of one text after those of the other.
        matches: how many n-grams each text has.
        n: words of an n-gram.
    """
    whole = b" ".join(texts.cast(pa.large_binary()).to_pylist())
    lengths = np.asarray(pc.utf8_length(texts).to_numpy(zero_copy_only=False), np.int64) + 1
    first_words = np.repeat(np.cumsum(words) - words, matches) + firsts
    offsets = np.repeat(np.cumsum(lengths) - lengths, matches)
    starts, ends = word_spans(whole, np.concatenate([first_words, first_words + n - 1]))
    return starts[: len(firsts)] - offsets, ends[len(firsts) :] - offsets


@versioned("count_documents", 1)
def count_documents(
    folder: Path,
    *,
    matches: Shards | None,
    duplicates: Artifact | None,
    evaluation: Artifact,
    max_documents: int | None,
) -> Built:
    """Count in how many documents each n-gram of the evaluation files is; documents that are duplicates do not count.

    Files: ``documents.npy`` int64 (d,), the count of each distinct n-gram; ``examples_found.npy`` uint8 (examples,), 1
    for an example with an n-gram that is in the corpus and not ignored; ``starts.npy`` int64 (parts + 1,), the position
    of the first document of each part.

    Args:
        folder: of the artifact.
        matches: stored parts of `find_matches`; None without decontamination: then nothing is written.
        duplicates: of these documents, or None where there are none.
        evaluation: that the matches were found with.
        max_documents: see `Decontamination`.

    Returns:
        Statistics: ``found`` distinct n-grams that are in any document, ``ignored`` of these, and ``files`` by name:
        ``examples``, ``short_examples``, ``ngrams``, ``examples_found``, ``share`` of the examples that can be found.
    """
    if matches is None:
        return Built(NgramStatistics(found=0, ignored=0, files={}))
    index = EvaluationNgrams(evaluation)
    starts = np.cumsum([0, *(counts["rows"] for counts in matches.statistics_as(MatchCounts))], dtype=np.int64)
    np.save(folder / _STARTS, starts)
    repeated = None if duplicates is None else Duplicates(duplicates)
    documents = np.lib.format.open_memmap(folder / _COUNTS, mode="w+", dtype=np.int64, shape=index.hashes.shape)
    for part, start in zip(matches, starts.tolist(), strict=False):
        for batch in part.batches(["document", "matches"]):
            left = _without_duplicates(batch, start, repeated)
            numbers, times = np.unique(_matches_of(left, "ngram"), return_counts=True)
            documents[numbers] += times
    found = ignored = 0
    for begin, end in slices(len(documents)):
        counts = documents[begin:end]
        found += int(np.count_nonzero(counts))
        ignored += int(np.count_nonzero(~_is_counted(counts, max_documents)))
    documents.flush()
    there = _write_examples_found(folder / _FOUND, documents, index, max_documents)
    ends = [*index.first_examples[1:].tolist(), len(there)]
    files: dict[str, FileFound] = {}
    for name, begin, end in zip(index.names, index.first_examples.tolist(), ends, strict=True):
        of_file = evaluation.statistics_as(EvaluationStatistics)["files"][name]
        examples = int(np.count_nonzero(there[begin:end]))
        share = examples / (of_file["examples"] - of_file["short_examples"])
        files[name] = FileFound(**of_file, examples_found=examples, share=share)
    return Built(NgramStatistics(found=found, ignored=ignored, files=files))


def _is_counted(documents: Integers, max_documents: int | None) -> Any:
    return np.full(len(documents), True) if max_documents is None else documents <= max_documents


def _write_examples_found(path: Path, documents: Integers, index: EvaluationNgrams, max_documents: int | None) -> Any:
    """Mark the examples that have an n-gram which is in the corpus and not ignored; uint8 (examples,)."""
    there = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(len(index.examples) - 1,))
    places = int(index.examples[-1])
    with_mark = path.with_name(".places")  # by the first place of each n-gram, 1 where it is in the corpus
    marks = np.memmap(with_mark, np.uint8, mode="w+", shape=(places,))
    for begin, end in slices(len(documents)):
        counts = documents[begin:end]
        marks[index.places[begin:end]] = (counts > 0) & _is_counted(counts, max_documents)
    for begin, end in slices(places):
        repeats = between(index.repeats, begin, end)
        marks[repeats[:, 0]] = marks[repeats[:, 1]]
        marked = begin + np.flatnonzero(marks[begin:end])
        there[np.searchsorted(index.examples[:-1], marked, side="right") - 1] = 1
    there.flush()
    with_mark.unlink()
    return there


def _without_duplicates(batch: pa.RecordBatch, start: int, duplicates: Duplicates | None) -> pa.RecordBatch:
    """Return the rows of a batch that are no duplicates; ``start`` is the position of the part's first document."""
    if duplicates is None or not batch.num_rows:
        return batch
    positions = start + batch.column("document").to_numpy()
    repeats = np.concatenate(
        [
            between(pairs, int(positions[0]), int(positions[-1]) + 1)[:, 0]
            for pairs in (duplicates.exact, duplicates.near)
        ]
    )
    return batch.filter(pa.array(~np.isin(positions, repeats)))


def _matches_of(batch: pa.RecordBatch, name: str) -> Integers:
    """Return a field of the matches of all rows, one after the other."""
    flat = pc.list_flatten(batch.column("matches"))
    return np.asarray(flat.field(name).to_numpy(zero_copy_only=False), np.int64)


@versioned("judge_part", 1)
def judge_part(
    part: Part, *, counts: Artifact, duplicates: Artifact | None, evaluation: Artifact, rules: Decontamination | None
) -> Rows:
    """Return the documents of a part that match, and whether they are contaminated, of schema `CONTAMINATION`.

    Args:
        part: matches that the counts were made from.
        counts: from `count_documents`.
        duplicates: that they were counted with; these documents are no rows here.
        evaluation: that the matches were found with.
        rules: what is ignored, and from when on a document is contaminated.

    Returns:
        Statistics: ``by_source`` with documents ``matching`` and ``contaminated``; ``by_evaluation``, the same by the
        file of the first match; ``worst``, the documents with the most matching n-grams.
    """
    if rules is None:
        raise SelectionError(f"{part.name} cannot be judged without rules: set ingestion.decontamination")
    return Rows(CONTAMINATION, _judged(part, counts, duplicates, EvaluationNgrams(evaluation), rules))


def _judged(
    part: Part, counts: Artifact, duplicates: Artifact | None, index: EvaluationNgrams, rules: Decontamination
) -> Generator[pa.RecordBatch, None, JudgedStatistics]:
    documents = load_mapped(counts.path(_COUNTS))
    start = int(load_mapped(counts.path(_STARTS))[part.index])
    repeated = None if duplicates is None else Duplicates(duplicates)
    tallies: dict[str, dict[str, Counter[str]]] = {"by_source": {}, "by_evaluation": {}}
    worst: list[WorstDocument] = []
    for batch in part.batches():
        made = _verdicts(_without_duplicates(batch, start, repeated), documents, index, rules)
        if not made.num_rows:
            continue
        for key, column in (("by_source", "source"), ("by_evaluation", "evaluation")):
            pairs = zip(made.column(column).to_pylist(), made.column("contaminated").to_pylist(), strict=True)
            for (name, contaminated), times in Counter(pairs).items():
                tally = tallies[key].setdefault(name, Counter(matching=0, contaminated=0))
                tally.update(matching=times, contaminated=times * contaminated)
        shown = made.take(np.argsort(-made.column("matching_ngrams").to_numpy(), kind="stable")[:WORST])
        worst = worst_of([*worst, *shown.drop_columns(["document"]).to_pylist()])
        yield made
    plain = {
        key: {
            name: JudgedDocuments(matching=tally[name]["matching"], contaminated=tally[name]["contaminated"])
            for name in sorted(tally)
        }
        for key, tally in tallies.items()
    }
    return JudgedStatistics(by_source=plain["by_source"], by_evaluation=plain["by_evaluation"], worst=worst)


def worst_of(rows: list[WorstDocument]) -> list[WorstDocument]:
    """Return the rows with the most matching n-grams, at most `WORST`; of equal ones those that come first."""
    return sorted(rows, key=lambda row: -row["matching_ngrams"])[:WORST]


def _verdicts(
    batch: pa.RecordBatch, documents: Integers, index: EvaluationNgrams, rules: Decontamination
) -> pa.RecordBatch:
    """Return the rows of matches that have any which is not ignored, of schema `CONTAMINATION`."""
    rows = pc.list_parent_indices(batch.column("matches")).to_numpy(zero_copy_only=False).astype(np.int64)
    ngrams, times, starts, ends = (_matches_of(batch, name) for name in ("ngram", "times", "start", "end"))
    counted = _is_counted(documents[ngrams], rules.max_documents)
    rows, ngrams, times, starts, ends = (column[counted] for column in (rows, ngrams, times, starts, ends))
    matching = np.zeros(batch.num_rows, np.int64)
    np.add.at(matching, rows, times)
    there, firsts = np.unique(rows, return_index=True)  # the matches of a row are in the order of the text
    chosen = batch.take(pa.array(there))
    matching, totals = matching[there], chosen.column("ngrams").to_numpy()
    least = as_written(rules.min_share)
    enough = [
        count >= rules.min_matches and count >= least * total
        for count, total in zip(matching.tolist(), totals.tolist(), strict=True)
    ]
    files, examples = index.examples_of(ngrams[firsts])
    columns = {
        **{name: chosen.column(name) for name in ("document", *(field.name for field in _NAMED), "ngrams")},
        "contaminated": pa.array(enough, pa.bool_()),
        "matching_ngrams": pa.array(matching),
        "share": pa.array(matching / totals),
        "start": pa.array(starts[firsts]),
        "end": pa.array(ends[firsts]),
        "evaluation": pa.array([index.names[number] for number in files.tolist()], pa.string()),
        "example": pa.array(examples),
    }
    return pa.record_batch([columns[field.name] for field in CONTAMINATION], CONTAMINATION)


def contaminated_rows(contamination: Shards, part: Part) -> pa.Table:
    """Return the rows of the contaminated documents of a part, of schema `CONTAMINATION`.

    Raises:
        SelectionError: there is no such part, so it is of other documents.
    """
    if part.index >= len(contamination) or contamination.parts[part.index].name != part.name:
        raise SelectionError(
            f"the contamination is of {len(contamination)} parts, and {part.name} is none of them. Find it again in "
            f"these documents."
        )
    table = contamination.parts[part.index].table()
    return table.filter(table.column("contaminated"))
