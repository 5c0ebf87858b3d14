"""Contamination: which documents hold n-grams of evaluation files, where, and of which examples.

In three steps. `everytoken.corpus.decontamination.matches.find_matches` looks at the text of every document, part by
part. `count_documents` counts over the whole corpus in how many documents each n-gram of the files is. `judge_part`
leaves out those that are in more than ``max_documents`` (GPT-3 ignored "13-grams that matched more than 10 training
documents, as inspection showed the majority of these to contain common cultural phrases, legal boilerplate, or
similar", Brown et al. 2020, appendix C), and says of each document that has any left how many, which share of its
n-grams, and where the first is.

Documents that are dropped as duplicates count nowhere: a text that is copied eleven times is in one document. GPT-3 cut
200 characters around a match out of the document; here documents are dropped whole or stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.arrays import Integers
from everytoken.corpus.decontamination.evaluation_files import Decontamination
from everytoken.corpus.decontamination.evaluation_ngrams import EvaluationNgrams, EvaluationStatistics, FileCounts
from everytoken.corpus.decontamination.matches import NAMED, MatchCounts
from everytoken.corpus.dedup import Duplicates, between, load_mapped
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.statistics import as_written
from everytoken.shards import Artifact, Built, Part, Rows, Shards, versioned

_COUNTS, _FOUND, _STARTS = "documents.npy", "examples_found.npy", "starts.npy"

CONTAMINATION = pa.schema(
    [
        pa.field("document", pa.int64(), False),
        *NAMED,
        pa.field("contaminated", pa.bool_(), False),
        pa.field("ngrams", pa.int64(), False),
        pa.field("matching_ngrams", pa.int64(), False),  # of these, every occurrence
        pa.field("share", pa.float64(), False),
        pa.field("start", pa.int64(), False),  # of the first match, in code points of the text
        pa.field("end", pa.int64(), False),
        pa.field("evaluation", pa.string(), False),  # file that has it first
        pa.field("example", pa.int64(), False),  # number of the example in it
    ]
)

WORST = 10


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
        matches: stored parts of `find_matches`; None without decontamination: then nothing is written.

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
    documents = np.zeros(len(index.arrays.hashes), np.int64)
    for part, start in zip(matches, starts.tolist(), strict=False):
        for batch in part.batches(["document", "matches"]):
            left = _without_duplicates(batch, start, repeated)
            numbers, times = np.unique(_matches_of(left, "ngram"), return_counts=True)
            documents[numbers] += times
    np.save(folder / _COUNTS, documents)
    is_counted = _is_counted(documents, max_documents)
    of_examples, of_places = index.arrays.places
    found = np.zeros(index.first_examples[-1], np.uint8)
    found[of_examples[((documents > 0) & is_counted)[of_places]]] = 1
    np.save(folder / _FOUND, found)
    files = {}
    for name, of_file in zip(index.names, np.split(found, index.first_examples[1:-1]), strict=True):
        counts = evaluation.statistics_as(EvaluationStatistics)["files"][name]
        share = int(of_file.sum()) / (counts["examples"] - counts["short_examples"])
        files[name] = FileFound(**counts, examples_found=int(of_file.sum()), share=share)
    n_found, n_ignored = int(np.count_nonzero(documents)), int(np.count_nonzero(~is_counted))
    return Built(NgramStatistics(found=n_found, ignored=n_ignored, files=files))


def _is_counted(documents: Integers, max_documents: int | None) -> Any:
    return np.full(len(documents), True) if max_documents is None else documents <= max_documents


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
        duplicates: that they were counted with; these documents are no rows here.
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
        **{name: chosen.column(name) for name in ("document", *(field.name for field in NAMED), "ngrams")},
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
